"""Saved programs: they come back as they were, and anything else is refused."""

import json
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.compiler import artifact, nn
from engine.compiler.artifact import ArtifactError
from engine.compiler.dtype import DType
from engine.compiler.graph import Graph
from engine.compiler.options import CompileOptions, DimBucket
from engine.compiler.program import CompiledPrograms
from engine.compiler.shape import View
from engine.compiler.tensor import Tensor
from engine.ops.base import Array
from engine.runtimes.native.kernels import source_of
from engine.runtimes.native.runtime import NativeRuntime

OPTIONS = CompileOptions(search_time_limit=0, dim_buckets={"t": (DimBucket(1, 1), DimBucket(2, 8))})


def model(width: int = 16, eps: float = 1e-5, dtype: DType = DType.F32) -> tuple[Graph, Tensor]:
    g = Graph()
    x = g.named_tensor("x", ("t", 16))
    for _ in range(3):
        h = nn.rms_norm(x, g.tensor((16,)).persist(), eps)
        h = nn.linear(h, g.tensor((width, 16), dtype).persist())
        x = x + nn.linear(h.silu(), g.tensor((16, width), dtype).persist())
    return g, x.output()


def filled(graph: Graph, y: Tensor, runtime: NativeRuntime) -> Array:
    """The model's output for data that is the same every time."""
    rng = np.random.default_rng(0)
    for node in graph.inputs:
        shape = [d if isinstance(d, int) else 5 for d in node.shape]
        tensor = Tensor(graph, node, View.contiguous(node.shape))
        runtime.set_data(tensor, rng.standard_normal(shape, np.float32) / 4)
    runtime.execute({"t": 5})
    return runtime.get(y)


@dataclass
class Saved:
    graph: Graph
    path: Path
    key: str
    libraries: list[Path]
    programs: CompiledPrograms
    output: Array

    def load(self) -> tuple[CompiledPrograms, list[Path], object]:
        assert self.graph.search_space is not None
        return artifact.load(self.path, self.key, self.graph.search_space, OPTIONS)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    directory = tmp_path_factory.mktemp("native")
    graph, y = model()
    runtime = NativeRuntime(2, directory)
    graph.compile(runtime, OPTIONS)
    sources = [
        source_of(i, runtime.c_symbols, p.fixed)
        for p in runtime.programs.programs
        for phase in p.phases
        for i in phase.steps
    ]
    libraries = runtime.library.files(sources)
    key, path = artifact.key_of(graph, OPTIONS, runtime.device), directory / "saved.json"
    artifact.save(path, key, runtime.programs, libraries, ["details"])
    return Saved(graph, path, key, libraries, runtime.programs, filled(graph, y, runtime))


def test_round_trip(saved: Saved) -> None:
    programs, libraries, details = saved.load()
    assert libraries == saved.libraries
    assert details == ["details"]
    for found, want in zip(programs.programs, saved.programs.programs, strict=True):
        assert (found.bucket, found.dims, str(found)) == (want.bucket, want.dims, str(want))


def test_a_second_process_s_graph_loads_it_and_computes_the_same_bits(saved: Saved) -> None:
    graph, y = model()
    runtime = NativeRuntime(2, saved.path.parent)
    assert artifact.key_of(graph, OPTIONS, runtime.device) == saved.key
    space = graph.build_search_space(runtime, OPTIONS)
    programs, libraries, _ = artifact.load(saved.path, saved.key, space, OPTIONS)
    for library in libraries:
        runtime.library.open(library)
    runtime.load(graph, programs)
    np.testing.assert_array_equal(filled(graph, y, runtime), saved.output)


def test_nothing_is_left_beside_it(saved: Saved) -> None:
    assert not list(saved.path.parent.glob("*.tmp"))


@given(st.data())
@settings(max_examples=60)
def test_no_flipped_bit_or_lost_end_is_taken(saved: Saved, data: st.DataObject) -> None:
    whole = saved.path.read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    damaged = bytearray(whole)
    damaged[at] ^= 1 << data.draw(st.integers(0, 7))
    try:
        for text in (bytes(damaged), whole[:at]):
            saved.path.write_bytes(text)
            try:
                programs, libraries, details = saved.load()
            except ArtifactError:
                continue
            # What is left is a flip that JSON does not see, such as of a space.
            assert json.loads(text) == json.loads(whole)
            assert (libraries, details) == (saved.libraries, ["details"])
            assert str(programs) == str(saved.programs)
    finally:
        saved.path.write_bytes(whole)


@pytest.mark.parametrize("damage", ["missing", "flipped", "short", "other"])
def test_a_library_that_is_not_the_saved_one_is_refused(saved: Saved, damage: str) -> None:
    library = saved.libraries[0]
    whole = library.read_bytes()
    try:
        match damage:
            case "missing":
                library.unlink()
            case "flipped":
                library.write_bytes(whole[:1000] + bytes([whole[1000] ^ 1]) + whole[1001:])
            case "short":
                library.write_bytes(whole[:-1])
            case _:
                library.write_bytes(b"")
        with pytest.raises(ArtifactError, match=library.name):
            saved.load()
    finally:
        library.write_bytes(whole)
    saved.load()


def test_no_artifact_is_no_error_of_its_own(saved: Saved) -> None:
    assert saved.graph.search_space is not None
    with pytest.raises(FileNotFoundError):
        artifact.load(saved.path.with_name("none"), "", saved.graph.search_space, OPTIONS)


def test_another_key_is_refused(saved: Saved) -> None:
    assert saved.graph.search_space is not None
    with pytest.raises(ArtifactError, match="something else"):
        artifact.load(saved.path, "0" * 32, saved.graph.search_space, OPTIONS)


@pytest.mark.parametrize("body", ["[]", "{}", "null", '{"key": 1}', "1", '"text"'])
def test_a_wrong_body_with_a_right_checksum_is_refused(saved: Saved, body: str) -> None:
    whole = saved.path.read_text()
    try:
        document = {"sha256": sha256(body.encode()).hexdigest(), "body": body}
        saved.path.write_text(json.dumps(document))
        with pytest.raises(ArtifactError):
            saved.load()
    finally:
        saved.path.write_text(whole)


@pytest.mark.parametrize("shift", [1, 1000, -1000])
def test_choices_that_do_not_fit_the_space_are_refused(saved: Saved, shift: int) -> None:
    """As after a change of the rules that the key did not see."""
    whole = saved.path.read_text()
    body = json.loads(json.loads(whole)["body"])
    for phase in body["programs"][0]:
        phase["genome"] = [choice + shift for choice in phase["genome"]]
    text = json.dumps(body)
    try:
        document = {"sha256": sha256(text.encode()).hexdigest(), "body": text}
        saved.path.write_text(json.dumps(document))
        with pytest.raises(ArtifactError):
            saved.load()
    finally:
        saved.path.write_text(whole)


def test_the_key_is_of_all_that_decides_the_program() -> None:
    graphs = [
        model()[0],
        model(width=8)[0],
        model(eps=1e-6)[0],
        model(dtype=DType.F16)[0],
    ]
    graphs.append(model()[0])
    graphs[-1].persisted.pop()
    keys = [artifact.key_of(g, OPTIONS, "cpu") for g in graphs]
    keys += [
        artifact.key_of(graphs[0], OPTIONS.with_(dim_buckets={"t": (DimBucket(1, 8),)}), "cpu"),
        artifact.key_of(graphs[0], OPTIONS.with_(seed=1), "cpu"),
        artifact.key_of(graphs[0], OPTIONS, "another cpu"),
    ]
    assert len(set(keys)) == len(keys)
    assert artifact.key_of(model()[0], OPTIONS, "cpu") == keys[0]
