"""A foreign graph, compiled and ready to be called."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.compiler.backends.foreign import ForeignGraph
from engine.compiler.backends.reader import ReadGraph, read
from engine.compiler.backends.registry import make_runtime
from engine.compiler.options import CompileOptions
from engine.ops.base import Array
from engine.runtimes.base import DataError, Runtime


@dataclass(frozen=True)
class CompiledGraph:
    """Called with the graph's inputs in order, it returns its outputs in order."""

    read: ReadGraph
    runtime: Runtime

    def __call__(self, *inputs: Any) -> tuple[Array, ...]:
        """Arrays (or what NumPy makes arrays of) -> arrays. Raises `DataError` where they do not fit the inputs, and
        `DimError` for a size outside its range."""
        if len(inputs) != len(self.read.inputs):
            raise DataError(f"the graph has {len(self.read.inputs)} inputs, not {len(inputs)}")
        arrays = [np.asarray(x) for x in inputs]
        dims: dict[str, int] = {}
        for tensor, array in zip(self.read.inputs, arrays, strict=True):
            if array.ndim != len(tensor.shape):
                raise DataError(f"input {tensor.node.attrs[0]!r} has shape {tensor.shape}")
            for size, n in zip(tensor.shape, array.shape, strict=True):
                name = str(size)
                if name in self.read.graph.ranges and dims.setdefault(name, n) != n:
                    raise DataError(f"size {name} is {dims[name]} and {n} in one call")
            self.runtime.set_data(tensor, array)
        self.runtime.execute(dims)
        return tuple(self.runtime.get(t) for t in self.read.outputs)


def compile_foreign(
    program: Any,
    weights: dict[str, Array] | None = None,
    *,
    backend: str = "native",
    search_iters: int = 10,
    options: CompileOptions | None = None,
) -> CompiledGraph:
    """Compile a `torch.export.ExportedProgram`, or a `ForeignGraph` with its `weights`, for a registered backend.

    `search_iters` programs are timed at most; `options` has what else a search can be told. Symbols that it says
    nothing of are timed at the exported example's sizes. Raises `UnsupportedError`.
    """
    if isinstance(program, ForeignGraph):
        foreign, held = program, weights or {}
    else:
        from engine.compiler.backends.torch_export import from_torch

        foreign, held = from_torch(program)
    options = (options or CompileOptions()).with_(search_graph_limit=search_iters)
    if not callable(options.profile_dims):
        example = {s: r.example for s, r in foreign.symbols.items()}
        options = options.with_(profile_dims={**example, **options.profile_dims})
    found = read(foreign)
    missing = found.weights.keys() - held.keys()
    if missing:
        raise DataError(f"there is no data for weights {', '.join(sorted(missing))}")
    runtime = make_runtime(backend)
    for key, tensor in found.weights.items():
        runtime.set_data(tensor, held[key])
    found.graph.compile(runtime, options)
    return CompiledGraph(found, runtime)
