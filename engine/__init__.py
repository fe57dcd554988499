"""The compiler and the serving engine.

`from engine import Graph, CompileOptions, NativeRuntime` is the public face of the compiler. The names below are
loaded on first use, so that importing one part (say `engine.messages`) does not import the others.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.compiler.dtype import DType as DType
    from engine.compiler.graph import Graph as Graph
    from engine.compiler.options import CompileOptions as CompileOptions
    from engine.compiler.options import DimBucket as DimBucket
    from engine.compiler.tensor import Tensor as Tensor
    from engine.runtimes.native.runtime import NativeRuntime as NativeRuntime
    from engine.runtimes.reference import ReferenceRuntime as ReferenceRuntime

_HOME = {
    "CompileOptions": "engine.compiler.options",
    "DType": "engine.compiler.dtype",
    "DimBucket": "engine.compiler.options",
    "Graph": "engine.compiler.graph",
    "NativeRuntime": "engine.runtimes.native.runtime",
    "ReferenceRuntime": "engine.runtimes.reference",
    "Tensor": "engine.compiler.tensor",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'engine' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
