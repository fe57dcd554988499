"""The search with timings that are made up: which programs it times, rejects and returns.

`test_compile` has the same calls on real runtimes.
"""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256

import numpy as np
import pytest

from engine.compiler import nn
from engine.compiler.graph import Graph, Node
from engine.compiler.options import CompileOptions, DimBucket
from engine.compiler.program import BucketError, CompiledPrograms, Program
from engine.compiler.report import BucketReport
from engine.compiler.search import Batch, CandidateError, Profiler, SearchError
from engine.compiler.shape import View
from engine.compiler.space import RegionSpace
from engine.compiler.tensor import Tensor
from engine.ops.base import Array
from engine.ops.registry import native_ops
from engine.runtimes.reference import ReferenceRuntime

Outcome = Callable[[Program], float]
"""Made-up seconds of a program; raises `CandidateError`."""


def made_up(text: str) -> float:
    """A time between 1 and 2 ms that is the same for the same text."""
    return 1e-3 * (1 + int.from_bytes(sha256(text.encode()).digest()[:4]) / 2**32)


def keys(program: Program) -> tuple[str, ...]:
    return tuple(i.key for phase in program.phases for i in phase.instructions)


def total(program: Program) -> float:
    return sum(made_up(key) for key in keys(program))


class FakeProfiler:
    """Times of a first run by `outcome`, the finalists' by the text of instructions; outputs by `outputs`."""

    def __init__(self, outcome: Outcome, outputs: Callable[[Program], dict[str, Array]]) -> None:
        self.outcome, self.outputs = outcome, outputs
        self.timed: list[Program] = []

    def remembered(self, batch: Batch, program: Program) -> dict[str, float]:
        return {}

    def time_instructions(
        self,
        space: RegionSpace,
        batch: Batch,
        program: Program,
        trials: int,
    ) -> dict[str, float]:
        return {instruction.key: made_up(instruction.key) for instruction, _ in batch}

    def time_program(
        self, program: Program, trials: int, timeout_s: float
    ) -> tuple[float, dict[str, Array]]:
        self.timed.append(program)
        return self.outcome(program), self.outputs(program)

    def time_in_turns(self, programs: Sequence[Program], trials: int) -> list[float]:
        return [total(program) for program in programs]

    def time_ops(self, program: Program) -> list[float]:
        return [made_up(i.key) for phase in program.phases for i in phase.steps]


class FakeRuntime(ReferenceRuntime):
    """The native runtime's kernels by their NumPy meanings, and a profiler that makes times up."""

    kernels = native_ops()

    def __init__(
        self,
        outcome: Outcome = total,
        outputs: Callable[[Program], dict[str, Array]] = lambda _: {"0": np.ones(3)},
    ) -> None:
        super().__init__()
        self.fake = FakeProfiler(outcome, outputs)

    def profiler(self, graph: Graph, options: CompileOptions) -> Profiler:
        return self.fake


def gated() -> Graph:
    """A graph with a few hundred programs."""
    g = Graph()
    x = nn.rms_norm(g.tensor(("t", 32)), g.tensor((32,)).persist(), 1e-5)
    gate, up = (nn.linear(x, g.tensor((24, 32)).persist()) for _ in range(2))
    y = nn.linear(nn.swiglu(gate, up), g.tensor((32, 24)).persist())
    (x + y).output()
    return g


AT = {"t": 4}


def searched(runtime: FakeRuntime, **options: object) -> CompiledPrograms:
    gated().compile(runtime, CompileOptions(profile_dims=AT, **options))  # type: ignore[arg-type]
    return runtime.programs


# -- what is timed ---------------------------------------------------------------------------------------------------


def test_the_fastest_of_what_was_timed_wins() -> None:
    runtime = FakeRuntime()
    [winner] = searched(runtime).programs
    times = [total(p) for p in runtime.fake.timed]
    assert len(times) > 3
    assert total(winner) == min(times)
    [report] = runtime.reports
    assert report.best_s == min(times)
    assert report.first_s == times[0]
    assert report.timed_programs == len(times)


def test_no_program_is_timed_twice() -> None:
    runtime = FakeRuntime()
    searched(runtime)
    genomes = [tuple(phase.genome for phase in p.phases) for p in runtime.fake.timed]
    assert len(set(genomes)) == len(genomes)


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_the_limit_of_programs_is_kept(limit: int) -> None:
    runtime = FakeRuntime()
    searched(runtime, search_graph_limit=limit)
    assert len(runtime.fake.timed) == limit


def test_without_time_one_program_a_bucket_is_timed() -> None:
    runtime = FakeRuntime()
    buckets = {"t": (DimBucket(1, 1), DimBucket(2, 8), DimBucket(9, 64))}
    searched(runtime, search_time_limit=0, dim_buckets=buckets)
    assert [p.dims["t"] for p in runtime.fake.timed] == [1, 5, 36]
    assert [report.timed_programs for report in runtime.reports] == [1, 1, 1]


@pytest.mark.parametrize("seed", range(5))
def test_a_seeded_search_repeats(seed: int) -> None:
    first, second = FakeRuntime(), FakeRuntime()
    for runtime in (first, second):
        searched(runtime, seed=seed)
    assert [keys(p) for p in first.fake.timed] == [keys(p) for p in second.fake.timed]
    assert keys(first.programs.programs[0]) == keys(second.programs.programs[0])


def test_a_given_generator_decides() -> None:
    timed = []
    for seed in (3, 3, 4):
        runtime, graph = FakeRuntime(), gated()
        options = CompileOptions(profile_dims=AT)
        graph.build_search_space(runtime, options)
        assert graph.search_with_rng(runtime, options, random.Random(seed)) is runtime
        timed.append([keys(p) for p in runtime.fake.timed])
    assert timed[0] == timed[1]


def test_a_searched_program_computes_the_graph() -> None:
    runtime, graph, reference = FakeRuntime(), gated(), ReferenceRuntime()
    rng = np.random.default_rng(0)
    graph.compile(runtime, CompileOptions(profile_dims=AT))
    other = gated()
    other.compile(reference, CompileOptions(profile_dims=AT))
    for one, two in zip(graph.inputs, other.inputs, strict=True):
        shape = [d if isinstance(d, int) else 4 for d in one.shape]
        data = rng.standard_normal(shape, np.float32)
        runtime.set_data(tensor(graph, one), data)
        reference.set_data(tensor(other, two), data)
    runtime.execute(AT)
    reference.execute(AT)
    a, b = runtime.get(graph.outputs[0]), reference.get(other.outputs[0])
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def tensor(graph: Graph, node: Node) -> Tensor:
    return Tensor(graph, node, View.contiguous(node.shape))


# -- what is rejected ------------------------------------------------------------------------------------------------


def uses(program: Program, op: str) -> bool:
    return any(i.op.name == op for phase in program.phases for i in phase.instructions)


def test_a_failing_candidate_is_counted_and_passed_over() -> None:
    def outcome(program: Program) -> float:
        if len(runtime.fake.timed) % 2 == 0:
            raise CandidateError("too slow")
        return total(program)

    runtime = FakeRuntime(outcome)
    [winner] = searched(runtime).programs
    [report] = runtime.reports
    assert report.rejected["too slow"] == len(runtime.fake.timed) // 2 > 0
    good = runtime.fake.timed[::2]
    assert total(winner) == min(total(p) for p in good)


def test_a_candidate_whose_first_try_fails_leaves_it_to_others() -> None:
    def outcome(program: Program) -> float:
        if len(runtime.fake.timed) == 1:
            raise CandidateError("does not compile")
        return total(program)

    runtime = FakeRuntime(outcome)
    searched(runtime)
    assert runtime.reports[0].rejected["does not compile"] == 1
    assert runtime.reports[0].best_s < float("inf")


@pytest.mark.parametrize("wrong", [1.1, np.nan, np.inf, 0.0])
def test_a_candidate_with_another_output_is_rejected_however_fast(wrong: float) -> None:
    def outputs(program: Program) -> dict[str, Array]:
        first = len(runtime.fake.timed) == 1
        return {"0": np.array([1.0, 2.0, 3.0 if first else 3.0 * wrong])}

    runtime = FakeRuntime(lambda p: 1.0 / len(runtime.fake.timed), outputs)
    [winner] = searched(runtime).programs
    assert keys(winner) == keys(runtime.fake.timed[0])
    rejected = runtime.reports[0].rejected
    assert rejected["different output"] == len(runtime.fake.timed) - 1 > 0


def test_rounding_is_no_other_output_and_nan_equals_nan() -> None:
    def outputs(program: Program) -> dict[str, Array]:
        return {"0": np.array([np.nan, np.inf, 100.0 + 1e-3 * len(runtime.fake.timed)])}

    runtime = FakeRuntime(outputs=outputs)
    searched(runtime)
    assert not runtime.reports[0].rejected


@pytest.mark.parametrize("limit", [None, 0.0])
def test_no_viable_candidate_is_an_error_that_says_why(limit: float | None) -> None:
    def outcome(program: Program) -> float:
        raise CandidateError("too slow")

    runtime = FakeRuntime(outcome)
    with pytest.raises(SearchError, match=r"no viable candidate for bucket t=2\.\.8.*too slow"):
        searched(
            runtime,
            search_time_limit=limit,
            search_graph_limit=7,
            dim_buckets={"t": (DimBucket(2, 8),)},
        )
    assert 1 <= len(runtime.fake.timed) <= 7


# -- buckets ---------------------------------------------------------------------------------------------------------


def test_buckets_of_two_dims_are_all_combinations() -> None:
    g = Graph()
    (g.tensor(("t", "s")) * 2.0).output()
    runtime = FakeRuntime()
    buckets = {
        "t": (DimBucket(1, 1), DimBucket(2, 9)),
        "s": (DimBucket(1, 4).representative(3), DimBucket(5, 5)),
    }
    g.compile(runtime, CompileOptions(search_time_limit=0, dim_buckets=buckets))
    assert [dict(p.dims) for p in runtime.programs.programs] == [
        {"t": 1, "s": 3},
        {"t": 1, "s": 5},
        {"t": 5, "s": 3},
        {"t": 5, "s": 5},
    ]
    places: Mapping[tuple[int, int], int] = {(1, 1): 0, (1, 5): 1, (2, 4): 2, (9, 4): 2, (9, 5): 3}
    for (t, s), program in places.items():
        assert runtime.programs.find({"t": t, "s": s}) == program
    for dims, words in (
        ({"t": 10, "s": 1}, r"'t' = 10 is outside its buckets: 1, 2\.\.9"),
        ({"t": 1, "s": 6}, r"'s' = 6 is outside its buckets: 1\.\.4, 5"),
        ({"t": 0, "s": 1}, r"'t' = 0 is outside"),
        ({"t": 1}, r"'s' = None is outside"),
    ):
        with pytest.raises(BucketError, match=words):
            runtime.programs.find(dims)


def test_buckets_with_a_hole() -> None:
    runtime = FakeRuntime()
    searched(runtime, search_time_limit=0, dim_buckets={"t": (DimBucket(1, 2), DimBucket(5, 8))})
    assert runtime.programs.find({"t": 5}) == 1
    with pytest.raises(BucketError, match=r"'t' = 3 is outside its buckets: 1\.\.2, 5\.\.8"):
        runtime.programs.find({"t": 3})


@pytest.mark.parametrize(("low", "high", "at"), [(3, 2, None), (-1, 2, None), (1, 4, 5), (2, 4, 1)])
def test_buckets_that_make_no_sense(low: int, high: int, at: int | None) -> None:
    with pytest.raises(ValueError, match=r"bucket"):
        DimBucket(low, high, at)


def test_the_space_comes_before_the_search() -> None:
    with pytest.raises(RuntimeError, match="build_search_space comes before"):
        gated().search(FakeRuntime(), CompileOptions(profile_dims=AT))


def test_a_built_graph_takes_no_more_nodes_and_no_other_buckets() -> None:
    graph, runtime = gated(), FakeRuntime()
    graph.build_search_space(runtime, CompileOptions(dim_buckets={"t": (DimBucket(1, 4),)}))
    with pytest.raises(RuntimeError, match="can no longer change"):
        graph.tensor((3,))
    with pytest.raises(RuntimeError, match="buckets cannot change"):
        graph.build_search_space(runtime, CompileOptions())


def test_a_report_with_rejected_candidates_is_saved_and_read_back() -> None:
    report = BucketReport("t=1", {"t": 1})
    report.rejected.update(["too slow", "too slow", "different output"])
    again = BucketReport.from_json(json.loads(json.dumps(report.as_json())))
    assert again == report
    assert again.rejected["too slow"] == 2
