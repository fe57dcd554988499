"""Running candidates that the search may choose: programs of random genomes, on any runtime."""

import random
from collections.abc import Iterator, Mapping

import numpy as np
from kernels import DIRECTORY

from engine.compiler.dtype import DType
from engine.compiler.extract import CyclicChoice, Extractor
from engine.compiler.graph import Graph
from engine.compiler.options import CompileOptions
from engine.compiler.program import CompiledPrograms, Phase, Program
from engine.compiler.regions import partition
from engine.compiler.space import SearchSpace, explore
from engine.compiler.tensor import Tensor
from engine.ops.base import Array
from engine.runtimes.base import Runtime
from engine.runtimes.native.runtime import NativeRuntime

TOLERANCE = {
    DType.F32: 2e-4,
    DType.F16: 1e-2,
    DType.BF16: 6e-2,
    DType.I32: 0.0,
    DType.BOOL: 0.0,
}
"""What candidates may differ by, relative to the largest value: sums in another order, rounded activations."""

_LONG = 300  # nodes of an expression


def native(threads: int = 2) -> NativeRuntime:
    """A native runtime that shares compiled kernels with the other tests."""
    return NativeRuntime(threads, DIRECTORY)


def space_of(graph: Graph, runtime: Runtime) -> SearchSpace:
    """A graph's search space for a runtime; the graph stays open for other runtimes."""
    regions = [explore(region, graph, runtime.kernels) for region in partition(graph)]
    return SearchSpace(graph, CompileOptions(), regions)


def random_programs(
    space: SearchSpace, seed: int, count: int, dims: Mapping[str, int]
) -> list[Program]:
    """Different programs of random genomes (fewer than `count` where the space has fewer).

    Regions that fuse to very long expressions are left out: the C compiler takes minutes for them.
    """
    rng = random.Random(seed)
    extractors = [Extractor(region) for region in space.regions]
    found: dict[tuple[str, ...], Program] = {}
    for _ in range(count):
        try:
            genomes = [extractor.random(rng) for extractor in extractors]
        except CyclicChoice:
            continue
        phases = tuple(
            Phase(e.space, genome, tuple(e.instructions(genome)))
            for e, genome in zip(extractors, genomes, strict=True)
        )
        instructions = [i for phase in phases for i in phase.instructions]
        expressions = [i.call.expression for i in instructions if i.call.expression]
        if any(sum(1 for _ in e.walk()) > _LONG for e in expressions):
            continue
        keys = tuple(i.key for i in instructions)
        found.setdefault(keys, Program({}, dict(dims), phases))
    return list(found.values())


def outputs_of(
    graph: Graph,
    runtime: Runtime,
    programs: list[Program],
    data: Mapping[Tensor, Array],
    dims: Mapping[str, int],
) -> Iterator[tuple[Program, list[Array]]]:
    """Each program's outputs and new states, all from the same data."""
    if isinstance(runtime, NativeRuntime):
        runtime._attach(graph)
        runtime.compile(tuple(programs))  # all kernels together
    states = [tensor for tensor in data if tensor.node in graph.updates]
    for program in programs:
        runtime.load(graph, CompiledPrograms((program,)))
        for tensor, array in data.items():
            runtime.set_data(tensor, array.copy())
        runtime.execute(dims)
        yield program, [runtime.get(t) for t in (*graph.outputs, *states)]


def assert_close(found: Array, want: Array, dtype: DType, program: object) -> None:
    """Equal within the tolerance of a type; where the wanted value is not finite, so is the found one."""
    a, b = found.astype(np.float64), want.astype(np.float64)
    assert a.shape == b.shape
    finite = np.isfinite(b)
    np.testing.assert_array_equal(np.isfinite(a), finite, str(program))
    size = max(1.0, float(np.abs(b[finite]).max(initial=0.0)))
    worst = float(np.abs(a[finite] - b[finite]).max(initial=0.0))
    assert worst <= TOLERANCE[dtype] * size, f"off by {worst} of {size} in\n{program}"
