"""Whatever extraction picks computes what the reference runtime does: random graphs, random genomes."""

import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine import CompileOptions, DType, Graph, NativeRuntime, ReferenceRuntime, Tensor
from engine.compiler.extract import Extractor
from engine.compiler.program import CompiledPrograms, Phase, Program
from engine.compiler.space import SearchSpace
from engine.ops.base import Array
from engine.ops.registry import native_ops
from engine.runtimes.base import Runtime

T = 5  # value of the symbol t
GENOMES = 3


@dataclass
class Built:
    graph: Graph
    inputs: list[Tensor]
    output: Tensor


def build(steps: list[int], choices: random.Random) -> Built:
    """A graph of a few inputs and the given number of random operations; equal arguments build equal graphs."""
    graph = Graph()
    inputs = [
        graph.named_tensor("a", ("t", 4)),
        graph.named_tensor("b", ("t", 4)),
        graph.named_tensor("w", (6, 4)).persist(),
        graph.named_tensor("rows", ("t",), DType.I32),
    ]
    a, b, w, rows = inputs
    pool = [a, b]
    for step in steps:
        x = choices.choice(pool)
        same = [y for y in pool if y.shape == x.shape]
        pool.append(_operation(step, x, choices.choice(same), w, rows))
    return Built(graph, inputs, pool[-1].output())


def _operation(kind: int, x: Tensor, y: Tensor, w: Tensor, rows: Tensor) -> Tensor:
    match kind:
        case 0:
            return x + y
        case 1:
            return x * y
        case 2:
            return x.sin()
        case 3:
            return (x * x + 1.0).sqrt().recip()
        case 4:
            return x.sigmoid() * y
        case 5:
            return x.cast(DType.F16).cast(DType.F32)
        case 6:
            return (x < y).cast(DType.F32)
        case 7:
            return x.transpose(0, 1) if len(x.shape) > 1 else x * 2.0
        case 8:
            return x.sum(-1).expand(len(x.shape) - 1, x.shape[-1]) if x.shape else x
        case 9:
            return x.max(0).expand(0, x.shape[0]) if x.shape else x
        case 10:
            return x.matmul(w.transpose(0, 1)).matmul(w) if x.shape[-1] == 4 else x.flip(0)
        case 11:
            return x.softmax(-1)
        case 12:
            fixed = [n for n, size in enumerate(x.shape) if size == 4]
            return x.split(fixed[0], 2).flip(fixed[0]).merge(fixed[0]) if fixed else x + 1.0
        case 13:
            indexes = (rows * 4).expand(1, 4) + x.graph.iota(4).expand(0, rows.shape[0])
            return w.gather(indexes) + (x if x.shape == indexes.shape else x.sum(0).sum(0) * 0.1)
        case _:
            return x % (y * y + 0.5)


def data_of(built: Built, seed: int) -> list[Array]:
    rng = np.random.default_rng(seed)
    return [
        rng.standard_normal((T, 4), np.float32),
        rng.standard_normal((T, 4), np.float32),
        rng.standard_normal((6, 4), np.float32),
        rng.integers(0, 6, T, dtype=np.int32),
    ]


def run(runtime: Runtime, built: Built, data: list[Array]) -> Array:
    for tensor, array in zip(built.inputs, data, strict=True):
        runtime.set_data(tensor, array)
    runtime.execute({"t": T})
    return runtime.get(built.output)


def program(extractors: list[Extractor], rng: random.Random) -> CompiledPrograms:
    """A program of one random genome a region."""
    phases = []
    for extractor in extractors:
        genome = extractor.random(rng)
        phases.append(Phase(extractor.space, genome, tuple(extractor.instructions(genome))))
    return CompiledPrograms((Program({}, {"t": T}, tuple(phases)),))


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=st.lists(st.integers(0, 14), min_size=1, max_size=8), seed=st.integers(0, 999))
def test_every_candidate_computes_the_same(directory: Path, steps: list[int], seed: int) -> None:
    expected_graph = build(steps, random.Random(seed))
    reference = ReferenceRuntime()
    expected_graph.graph.compile(reference, CompileOptions(profile_dims={"t": T}))
    data = data_of(expected_graph, seed)
    expected = run(reference, expected_graph, data)

    built = build(steps, random.Random(seed))
    space = SearchSpace.build(built.graph, native_ops(), CompileOptions())
    extractors = [Extractor(region) for region in space.regions]
    runtime, rng = NativeRuntime(threads=2, directory=directory), random.Random(seed)
    for _ in range(GENOMES):
        runtime.load(built.graph, program(extractors, rng))
        got = run(runtime, built, data)
        assert got.shape == expected.shape
        assert got.dtype == expected.dtype
        scale = max(1.0, float(np.abs(expected[np.isfinite(expected)]).max(initial=0)))
        np.testing.assert_allclose(got, expected, rtol=2e-3, atol=2e-4 * scale)
