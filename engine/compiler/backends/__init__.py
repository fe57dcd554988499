"""Graphs that were made elsewhere, compiled for a runtime that is chosen by name.

`foreign.py` is their neutral form, which JSON can hold; `torch_export.py` makes it of what `torch.export` gives, and is
the only file that needs torch. `reader.py` turns it into a `Graph` with the meanings in `aten/`, and `compiled.py`
compiles that on a runtime of `registry.py`.
"""

from engine.compiler.backends.compiled import CompiledGraph, compile_foreign
from engine.compiler.backends.foreign import ForeignGraph, UnsupportedError
from engine.compiler.backends.reader import ReadGraph, read
from engine.compiler.backends.registry import backend_names, make_runtime, register_backend

__all__ = [
    "CompiledGraph",
    "ForeignGraph",
    "ReadGraph",
    "UnsupportedError",
    "backend_names",
    "compile_foreign",
    "make_runtime",
    "read",
    "register_backend",
]
