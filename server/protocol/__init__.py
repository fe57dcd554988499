"""What clients send: pydantic models of request bodies, and what their errors say."""
