"""The compile API: options, buckets, what inputs and outputs outlive, discarded candidates, saved programs."""

import json
from pathlib import Path

import numpy as np
import pytest

from engine import CompileOptions, DimBucket, DType, Graph, NativeRuntime, ReferenceRuntime, Tensor
from engine.compiler import artifact, nn
from engine.compiler.graph import DimError
from engine.compiler.program import BucketError
from engine.compiler.search import SearchError
from engine.compiler.shape import ShapeError
from engine.ops.base import Source
from engine.runtimes.base import DataError, Runtime
from engine.runtimes.native.kernels import KernelLibrary
from engine.runtimes.toolchain import ToolchainError


@pytest.fixture(params=["reference", "native"])
def runtime(request: pytest.FixtureRequest, directory: Path) -> Runtime:
    return ReferenceRuntime() if request.param == "reference" else NativeRuntime(2, directory)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


def linear_graph() -> tuple[Graph, Tensor, Tensor, Tensor]:
    graph = Graph()
    x = graph.named_tensor("x", ("t", 3))
    w = graph.named_tensor("w", (3, 3)).persist()
    return graph, x, w, x.matmul(w).output()


def test_quick_start(runtime: Runtime) -> None:
    graph = Graph()
    a, b = graph.tensor((3, 1)), graph.tensor((1, 4))
    c = a.matmul(b).output()
    rt = graph.compile(runtime, CompileOptions())
    rt.set_data(a, [[1.0], [2.0], [3.0]])
    rt.set_data(b, [[1.0, 2.0, 3.0, 4.0]])
    rt.execute()
    assert rt.get(c).tolist() == [[1, 2, 3, 4], [2, 4, 6, 8], [3, 6, 9, 12]]


def test_defaults() -> None:
    o = CompileOptions()
    assert (o.search_graph_limit, o.search_time_limit, o.max_memory_bytes) == (100, None, None)
    assert (o.generation_size, o.mutations, o.trials, o.keep_best) == (10, 10, 3, 1)
    assert (o.profile_timeout, o.profile_dims, o.dim_buckets) == (1.0, {}, {})
    assert o.with_(trials=5).trials == 5


@pytest.mark.parametrize(
    "wrong",
    [
        {"search_graph_limit": 0},
        {"search_time_limit": -1.0},
        {"profile_timeout": 0.0},
        {"max_memory_bytes": -1},
        {"dim_buckets": {"t": (DimBucket(1, 4), DimBucket(4, 8))}},
    ],
)
def test_options_that_make_no_sense(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"must|overlap"):
        CompileOptions(**wrong)  # type: ignore[arg-type]


def test_inputs_are_consumed_and_weights_stay(runtime: Runtime) -> None:
    graph, x, w, y = linear_graph()
    graph.compile(runtime, CompileOptions(profile_dims={"t": 2}))
    runtime.set_data(w, np.eye(3))
    runtime.set_data(x, [[1, 2, 3], [4, 5, 6]])
    runtime.execute({"t": 2})
    assert runtime.get(y).tolist() == [[1, 2, 3], [4, 5, 6]]
    with pytest.raises(DataError, match="'x' has no data"):
        runtime.execute({"t": 2})
    runtime.set_data(x, [[7, 8, 9]])
    runtime.execute({"t": 1})
    assert runtime.get(y).tolist() == [[7, 8, 9]]
    assert runtime.get(w).tolist() == np.eye(3).tolist()


def test_data_that_does_not_fit(runtime: Runtime) -> None:
    graph, x, w, _ = linear_graph()
    graph.compile(runtime, CompileOptions(profile_dims={"t": 2}))
    with pytest.raises(DataError, match="'w' has shape"):
        runtime.set_data(w, np.zeros((2, 3)))
    runtime.set_data(w, np.eye(3))
    runtime.set_data(x, np.zeros((3, 3)))
    with pytest.raises(DataError, match="'x' has shape"):
        runtime.execute({"t": 2})
    with pytest.raises(DataError, match="dims t have no value"):
        runtime.execute()


def test_buckets(runtime: Runtime) -> None:
    graph, x, w, y = linear_graph()
    buckets = (DimBucket(1, 1), DimBucket(2, 8).representative(4))
    graph.compile(runtime, CompileOptions(dim_buckets={"t": buckets}))
    weights = np.arange(9, dtype=np.float32).reshape(3, 3)
    runtime.set_data(w, weights)
    for t in (1, 8, 2, 1, 5):
        data = np.random.default_rng(t).standard_normal((t, 3), np.float32)
        runtime.set_data(x, data)
        runtime.execute({"t": t})
        np.testing.assert_allclose(runtime.get(y), data @ weights, rtol=1e-5, atol=1e-5)
    runtime.set_data(x, np.zeros((9, 3)))
    with pytest.raises(BucketError, match=r"'t' = 9 is outside its buckets: 1, 2\.\.8"):
        runtime.execute({"t": 9})
    with pytest.raises(RuntimeError, match="buckets cannot change"):
        graph.compile(runtime, CompileOptions(dim_buckets={"t": (DimBucket(1, 9),)}))


def test_a_dim_outside_its_range(runtime: Runtime) -> None:
    graph = Graph()
    t = graph.dim("t", 2, 8)
    x = graph.tensor((t, 3))
    y = (x + 1.0).output()
    graph.compile(runtime, CompileOptions(search_time_limit=0, profile_dims={"t": 4}))
    for size in (2, 8):
        runtime.set_data(x, np.zeros((size, 3)))
        runtime.execute({"t": size})
        assert runtime.get(y).shape == (size, 3)
    for size in (1, 9):
        runtime.set_data(x, np.zeros((size, 3)))
        with pytest.raises(DimError, match=rf"'t' = {size} is outside its range 2\.\.8"):
            runtime.execute({"t": size})
        with pytest.raises(DimError, match="outside its range"):
            graph.set_dim("t", size)
    with pytest.raises(ShapeError, match=r"'u' needs 0 <= least <= most, not 3\.\.2"):
        graph.dim("u", 3, 2)


def test_a_dim_without_a_value_to_time_at(runtime: Runtime) -> None:
    graph = Graph()
    (graph.tensor((graph.dim("t"), "s")) + 1.0).output()
    with pytest.raises(SearchError, match="no value to time s, t at"):
        graph.compile(runtime, CompileOptions())


def test_no_time_still_times_one_program(directory: Path) -> None:
    graph, *_ = linear_graph()
    runtime = NativeRuntime(2, directory)
    graph.compile(runtime, CompileOptions(search_time_limit=0, profile_dims={"t": 2}))
    assert [report.timed_programs for report in runtime.reports] == [1]


def test_a_memory_cap_that_nothing_meets(directory: Path) -> None:
    graph = Graph()
    x, w = graph.tensor(("t", 3)), graph.tensor((3, 3)).persist()
    x.matmul(w).softmax(1).output()
    options = CompileOptions(max_memory_bytes=0, profile_dims={"t": 2})
    with pytest.raises(SearchError, match="too much memory"):
        graph.compile(NativeRuntime(2, directory), options)


@pytest.mark.parametrize("cap", [0, 64, 1 << 20])
def test_outputs_do_not_count_against_a_memory_cap(directory: Path, cap: int) -> None:
    graph, x, w, y = linear_graph()
    runtime = NativeRuntime(2, directory)
    graph.compile(runtime, CompileOptions(max_memory_bytes=cap, profile_dims={"t": 2}))
    runtime.set_data(w, np.eye(3))
    runtime.set_data(x, [[1, 2, 3]])
    runtime.execute({"t": 1})
    assert runtime.get(y).tolist() == [[1, 2, 3]]


@pytest.mark.parametrize(("cap", "fits"), [(8 * 4 * 64, True), (8 * 4 * 64 - 1, False)])
def test_a_memory_cap_is_of_the_largest_step_of_a_bucket(
    directory: Path, cap: int, fits: bool
) -> None:
    graph = Graph()
    x, w = graph.tensor(("t", 64)), graph.tensor((64, 64)).persist()
    x.matmul(w).softmax(1).output()  # the product is held: 64 f32 a row, 8 rows at most
    options = CompileOptions(max_memory_bytes=cap, dim_buckets={"t": (DimBucket(1, 8, 1),)})
    if fits:
        graph.compile(NativeRuntime(2, directory), options)
    else:
        with pytest.raises(SearchError, match="too much memory"):
            graph.compile(NativeRuntime(2, directory), options)


def test_a_kernel_that_does_not_compile_is_left_out(
    directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    compile_all = KernelLibrary._compile

    first: set[str] = set()

    def refusing(self: KernelLibrary, sources: list[Source]) -> Path:
        """Take the first size of blocks alone."""
        blocks = {dict(source.macros).get("BLOCKS") for source in sources} - {None}
        if blocks - (first or blocks):
            raise ToolchainError("cc failed")
        first.update(filter(None, blocks))
        return compile_all(self, sources)

    monkeypatch.setattr(KernelLibrary, "_compile", refusing)
    graph = Graph()
    x, w = graph.tensor(("t", 64)), graph.tensor((40, 64)).persist()
    y = nn.linear(x, w).output()
    runtime = NativeRuntime(2, directory)
    graph.compile(runtime, CompileOptions(profile_dims={"t": 3}))
    assert "a kernel is left out: cc failed" in caplog.text
    rng = np.random.default_rng(0)
    rows, weights = (rng.standard_normal((n, 64), np.float32) for n in (3, 40))
    runtime.set_data(x, rows)
    runtime.set_data(w, weights)
    runtime.execute({"t": 3})
    np.testing.assert_allclose(runtime.get(y), rows @ weights.T, rtol=1e-4, atol=1e-4)


def test_state_is_assigned_in_place_or_copied(runtime: Runtime) -> None:
    graph = Graph()
    pool = graph.named_tensor("pool", (6, 2)).persist()
    rows, new = graph.named_tensor("rows", ("t",), DType.I32), graph.named_tensor("new", ("t", 2))
    index = (rows * 2).expand(1, 2) + graph.iota(2).expand(0, rows.shape[0])
    filled = pool.scatter(index, new)
    pool.assign(filled)
    total = filled.sum(0).output()
    graph.compile(runtime, CompileOptions(profile_dims={"t": 2}))
    runtime.set_zeros(pool)
    expected = np.zeros((6, 2))
    for at in ([0, 3], [3, 5]):
        values = np.arange(4).reshape(2, 2) + at[0] + 1.0
        expected[at] = values
        runtime.set_data(rows, at)
        runtime.set_data(new, values)
        runtime.execute({"t": 2})
        assert runtime.get(total).tolist() == expected.sum(0).tolist()
        assert runtime.get(pool).tolist() == expected.tolist()


def test_saved_programs(directory: Path, tmp_path: Path) -> None:
    graph, *_ = linear_graph()
    runtime, options = NativeRuntime(2, directory), CompileOptions(profile_dims={"t": 2})
    graph.compile(runtime, options)
    assert graph.search_space is not None
    key, path = artifact.key_of(graph, options, runtime.device), tmp_path / "saved.json"
    artifact.save(path, key, runtime.programs, [], {"note": 1})
    programs, libraries, details = artifact.load(path, key, graph.search_space, options)
    assert [str(p) for p in programs.programs] == [str(p) for p in runtime.programs.programs]
    assert (libraries, details) == ([], {"note": 1})

    with pytest.raises(artifact.ArtifactError, match="something else"):
        artifact.load(path, "other", graph.search_space, options)
    text = path.read_text()
    for damaged in (text[: len(text) // 2], text.replace("genome", "genomf"), "[]", ""):
        path.write_text(damaged)
        with pytest.raises(artifact.ArtifactError):
            artifact.load(path, key, graph.search_space, options)
    document = json.loads(text)
    assert set(document) == {"sha256", "body"}
