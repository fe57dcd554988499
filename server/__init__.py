"""The HTTP server: everything between a socket and the engine process.

A request is a straight line: `routes` parse and validate (`protocol`), `chat` renders the template,
`generation` runs the choices on the engine and turns tokens into text, `formats` writes
OpenAI-shaped JSON, `streaming` sends it. `launcher` starts and stops the whole. May import `models`
and `engine`; neither imports this package.
"""
