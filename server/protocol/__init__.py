"""What clients send: pydantic models of request bodies, and how their errors become OpenAI error
objects.
"""
