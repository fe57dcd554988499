"""Graphs that `torch.export` gave, replayed without torch: `tests/goldens/make_exported.py` made them."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine import CompileOptions, DimBucket, DType, ReferenceRuntime
from engine.compiler.backends import (
    CompiledGraph,
    ForeignGraph,
    UnsupportedError,
    backend_names,
    compile_foreign,
    make_runtime,
    register_backend,
)
from engine.compiler.backends.foreign import ForeignInput, ForeignNode, Ref, Result, SymbolRange
from engine.compiler.backends.reader import OPERATIONS, read
from engine.compiler.graph import DimError
from engine.compiler.shape import symbol
from engine.ops.base import Array
from engine.runtimes.base import DataError

GOLDENS = Path(__file__).parents[1] / "goldens" / "exported"
NAMES = sorted(p.stem for p in GOLDENS.glob("*.json"))
ONCE = CompileOptions(search_time_limit=0)  # no candidate but the first


def load(name: str) -> tuple[ForeignGraph, Mapping[str, Array]]:
    with np.load(GOLDENS / f"{name}.npz") as file:
        arrays = dict(file)
    return ForeignGraph.from_json((GOLDENS / f"{name}.json").read_text()), arrays


def weights_of(arrays: Mapping[str, Array]) -> dict[str, Array]:
    return {k.removeprefix("weight:"): v for k, v in arrays.items() if k.startswith("weight:")}


def numbered(arrays: Mapping[str, Array], prefix: str) -> list[Array]:
    count = sum(key.startswith(prefix) for key in arrays)
    return [arrays[f"{prefix}{i}"] for i in range(count)]


def compiled(name: str, backend: str) -> tuple[CompiledGraph, Mapping[str, Array]]:
    graph, arrays = load(name)
    return compile_foreign(graph, weights_of(arrays), backend=backend, options=ONCE), arrays


@pytest.mark.parametrize("backend", ["reference", "native"])
@pytest.mark.parametrize("name", NAMES)
def test_what_pytorch_computes(name: str, backend: str) -> None:
    run, arrays = compiled(name, backend)
    calls = len({key.split(":")[1] for key in arrays if key.startswith("call:")})
    for n in range(calls):
        outputs = run(*numbered(arrays, f"call:{n}:input:"))
        for got, want in zip(outputs, numbered(arrays, f"call:{n}:output:"), strict=True):
            assert got.shape == want.shape
            if want.dtype.kind in "bi":
                np.testing.assert_array_equal(got, want)
                continue
            finite = want[np.isfinite(want)]
            scale = float(np.abs(finite).max(initial=0)) or 1.0
            tolerance = 1e-5 if got.dtype == np.float32 else 2**-7  # of bfloat16, one place
            np.testing.assert_allclose(got.astype(np.float64), want, rtol=0, atol=tolerance * scale)


def test_every_operation_is_in_a_golden() -> None:
    used = {node.op for name in NAMES for node in load(name)[0].nodes}
    assert used == OPERATIONS.keys() | {"getitem"}


@pytest.mark.parametrize("name", NAMES)
def test_text_and_back(name: str) -> None:
    graph, _ = load(name)
    assert ForeignGraph.from_json(graph.to_json()) == graph


def test_layers_of_one_form_are_searched_once() -> None:
    run, _ = compiled("llama", "reference")
    (program,) = run.runtime.programs.programs
    assert 3 in [phase.iterations for phase in program.phases]


def test_a_dynamic_size_in_buckets() -> None:
    graph, arrays = load("mlp")
    (name,) = graph.symbols
    buckets = (DimBucket(1, 2), DimBucket(3, 64))
    options = ONCE.with_(dim_buckets={name: buckets})
    run = compile_foreign(graph, weights_of(arrays), backend="reference", options=options)
    assert len(run.runtime.programs.programs) == 2
    for n in range(3):
        (got,) = run(arrays[f"call:{n}:input:0"])
        np.testing.assert_allclose(got, arrays[f"call:{n}:output:0"], atol=1e-5)


class TestRefused:
    def test_unknown_operations_are_all_named(self) -> None:
        graph = small(("aten.fft.default", (Ref("x"),)), ("aten.inverse.default", (Ref("x"),)))
        with pytest.raises(UnsupportedError, match=r"aten\.fft\.default, aten\.inverse\.default$"):
            read(graph)

    @pytest.mark.parametrize(
        ("op", "args", "words"),
        [
            ("aten.bitwise_and.Tensor", (Ref("i"), Ref("i")), "the bits of i64 is not supported"),
            ("aten.index_put.default", (Ref("x"), (Ref("i"),), Ref("x"), True), "accumulate=True"),
            ("aten.index.Tensor", (Ref("x"), (Ref("b"),)), "a mask as an index"),
            ("aten.mm.default", (Ref("x"), Ref("x")), r"node0\): matmul: .* do not fit"),
            ("aten.relu.default", (Ref("x"), 3), "node0\\): too many positional arguments"),
            ("aten.permute.default", (Ref("x"), (1, 0)), r"has shape \(2, 3\) there and \(3, 2\)"),
        ],
    )
    def test_what_is_known_only_in_part(self, op: str, args: tuple[Ref, ...], words: str) -> None:
        dtype = DType.I64 if op.startswith("aten.bitwise") else DType.F32
        with pytest.raises(UnsupportedError, match=words):
            read(small((op, args), dtype=dtype))

    def test_a_second_result_that_is_not_made(self) -> None:
        graph = small(("aten.native_layer_norm.default", (Ref("x"), (3,), None, None, 1e-5)))
        norm = replace(graph.nodes[0], results=graph.nodes[0].results * 3)
        second = ForeignNode("mean", "getitem", (Ref("node0"), 1), {}, norm.results[:1])
        with pytest.raises(UnsupportedError, match=r"node0.*its result 1 is not supported"):
            read(replace(graph, nodes=(norm, second)))


class TestCalls:
    def test_inputs_that_do_not_fit(self) -> None:
        run, arrays = compiled("mlp", "reference")
        x = arrays["call:0:input:0"]
        with pytest.raises(DataError, match="1 inputs, not 2"):
            run(x, x)
        with pytest.raises(DataError, match="has shape"):
            run(x[0])
        with pytest.raises(DataError, match=r"has shape \(3, 5\)"):
            run(x[:, :5])
        with pytest.raises(DimError, match=r"= 65 is outside its range 0\.\.64"):
            run(np.zeros((65, 6), np.float32))

    def test_sizes_that_contradict_each_other(self) -> None:
        t = symbol("t")
        inputs = tuple(ForeignInput(n, Result((t, 2), DType.F32)) for n in "xy")
        node = ForeignNode("z", "aten.add.Tensor", (Ref("x"), Ref("y")), {}, (inputs[0].result,))
        graph = ForeignGraph(inputs, (node,), ("z",), symbols={"t": SymbolRange(1, None, 2)})
        run = compile_foreign(graph, backend="reference")
        (z,) = run(np.ones((3, 2)), np.ones((3, 2)))
        np.testing.assert_array_equal(z, np.full((3, 2), 2))
        with pytest.raises(DataError, match="t is 3 and 4"):
            run(np.ones((3, 2)), np.ones((4, 2)))

    def test_weights_that_are_missing(self) -> None:
        graph, arrays = load("counter")
        with pytest.raises(DataError, match="no data for weights calls, total"):
            compile_foreign(graph, {}, backend="reference")
        with pytest.raises(DataError, match=r"no data for weights calls$"):
            compile_foreign(graph, {"total": arrays["weight:total"]}, backend="reference")


class TestRegistry:
    def test_a_backend_of_one_s_own(self) -> None:
        made = []

        def factory() -> ReferenceRuntime:
            made.append(ReferenceRuntime())
            return made[-1]

        register_backend("counted", factory)
        run, arrays = compiled("mlp", "counted")
        assert run.runtime is made[0]
        assert run(arrays["call:0:input:0"])[0].shape == (3, 4)
        with pytest.raises(ValueError, match="already a backend named 'counted'"):
            register_backend("counted", factory)

    def test_names(self) -> None:
        assert {"native", "reference"} <= set(backend_names())
        with pytest.raises(ValueError, match=r"'abacus'; there are .*native, reference"):
            make_runtime("abacus")


def small(*operations: tuple[str, tuple[object, ...]], dtype: DType = DType.F32) -> ForeignGraph:
    """A graph over x [2, 3] f32, i [2, 3] i64 and b [2, 3] bool, whose nodes give [2, 3]."""
    kinds = {"x": DType.F32, "i": DType.I64, "b": DType.BOOL}
    inputs = tuple(ForeignInput(n, Result((2, 3), kind)) for n, kind in kinds.items())
    nodes = tuple(
        ForeignNode(f"node{at}", op, args, {}, (Result((2, 3), dtype),))  # type: ignore[arg-type]
        for at, (op, args) in enumerate(operations)
    )
    return ForeignGraph(inputs, nodes, (nodes[-1].name,))
