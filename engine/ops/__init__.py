"""One folder an operation: its meaning (NumPy), its egglog rules, its C code, its byte and FLOP counts.

A folder is found by being here: nothing central lists them. It may import `engine.compiler`'s types (`dtype`, `shape`)
and `engine.ops.base`, and nothing else of the engine.
"""
