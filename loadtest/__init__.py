"""`egglm load`: an open-loop load generator for OpenAI-compatible chat servers.

It measures any server over HTTP and imports none of EggLM's other packages.
"""
