"""Every composed operation against its NumPy meaning, on both runtimes; all of them are outputs of one graph."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pytest

from engine import CompileOptions, DType, Graph, NativeRuntime, ReferenceRuntime, Tensor
from engine.compiler.tensor import concat, stack
from engine.ops.base import Array
from engine.runtimes.base import Runtime

NAN, INF = math.nan, math.inf
_RNG = np.random.default_rng(0)
_SPECIAL = np.array(
    [[1.5, -0.0, NAN, INF, -2.0], [-INF, 3.25, 1.5, -7.0, NAN], [0.0, 0.5, -0.5, 2.0, 1.5]],
    np.float32,
)
DATA: dict[str, Array] = {
    "x": _RNG.standard_normal((3, 5)).astype(np.float32),
    "y": _RNG.standard_normal((3, 5)).astype(np.float32),
    "special": _SPECIAL,
    "other": _SPECIAL[::-1, ::-1].copy(),
    "ties": _RNG.integers(-3, 4, (4, 6, 5)).astype(np.float32),
    "ints": _RNG.integers(-9, 10, (4, 6)).astype(np.int32),
    "long": _RNG.integers(-5, 5, (2, 900)).astype(np.float32),
    "cube": _RNG.standard_normal((2, 3, 4)).astype(np.float32),
    "row": _RNG.standard_normal((7,)).astype(np.float32),
    "wide": _RNG.standard_normal((6, 1100)).astype(np.float32),
    "tall": _RNG.standard_normal((1100, 70)).astype(np.float32),
    "places": np.array([2, 0, 0, 1], np.int32),
    "along": _RNG.integers(0, 5, (3, 2)).astype(np.int32),
    "yes": _RNG.integers(0, 2, (3, 5)).astype(np.bool_),
    "no": np.zeros((3, 5), np.bool_),
}
Inputs = Mapping[str, Tensor]
Arrays = Mapping[str, Array]


@dataclass(frozen=True)
class Case:
    build: Callable[[Inputs], Tensor]
    want: Callable[[Arrays], Array]
    tolerance: float = 0.0


def erf(x: Array) -> Array:
    return np.vectorize(math.erf)(x.astype(np.float64))


def windows(x: Array, size: int, step: int, dilation: int) -> Array:
    starts = range(0, x.shape[-1] - dilation * (size - 1), step)
    return np.stack([x[..., s : s + dilation * size : dilation][..., :size] for s in starts], -2)


CLOSE = 1e-5
CASES: dict[str, Case] = {
    "sub": Case(lambda t: t["x"] - t["y"], lambda a: a["x"] - a["y"]),
    "number - x": Case(lambda t: 2.0 - t["x"], lambda a: 2 - a["x"]),
    "div": Case(lambda t: t["x"] / t["y"], lambda a: a["x"] / a["y"], CLOSE),
    "number / x": Case(lambda t: 2.0 / t["x"], lambda a: 2 / a["x"], CLOSE),
    "exp": Case(lambda t: t["x"].exp(), lambda a: np.exp(a["x"]), CLOSE),
    "log": Case(lambda t: t["special"].log(), lambda a: np.log(a["special"]), CLOSE),
    "cos": Case(lambda t: t["x"].cos(), lambda a: np.cos(a["x"]), CLOSE),
    "pow 5": Case(lambda t: t["x"].pow(5), lambda a: a["x"] ** 5, CLOSE),
    "pow 0": Case(lambda t: t["x"].pow(0), lambda a: a["x"] ** 0),
    "pow -2": Case(lambda t: t["x"].pow(-2), lambda a: a["x"] ** -2, CLOSE),
    "pow 0.3": Case(
        lambda t: t["special"].abs().pow(0.3), lambda a: np.abs(a["special"]) ** 0.3, CLOSE
    ),
    "pow of ints": Case(lambda t: t["ints"].pow(3), lambda a: a["ints"] ** 3),
    "gt": Case(lambda t: t["special"] > t["other"], lambda a: a["special"] > a["other"]),
    "le": Case(lambda t: t["special"] <= t["other"], lambda a: a["special"] <= a["other"]),
    "ge 1.5": Case(lambda t: t["special"] >= 1.5, lambda a: a["special"] >= 1.5),
    "gt 1.5": Case(lambda t: t["special"] > 1.5, lambda a: a["special"] > 1.5),
    "eq": Case(lambda t: t["special"].eq(t["special"]), lambda a: a["special"] == a["special"]),
    "ne": Case(lambda t: t["special"].ne(1.5), lambda a: a["special"] != 1.5),
    "not": Case(lambda t: ~t["yes"], lambda a: ~a["yes"]),
    "and": Case(lambda t: t["yes"] & (t["x"] < 0), lambda a: a["yes"] & (a["x"] < 0)),
    "or": Case(lambda t: t["yes"] | (t["x"] < 0), lambda a: a["yes"] | (a["x"] < 0)),
    "select": Case(
        lambda t: t["yes"].select(t["special"], -1), lambda a: np.where(a["yes"], a["special"], -1)
    ),
    "select of a scalar": Case(
        lambda t: (t["row"].max() < 9).select(t["x"], t["y"]), lambda a: a["x"]
    ),
    "minimum": Case(
        lambda t: t["special"].minimum(t["other"]), lambda a: np.minimum(a["special"], a["other"])
    ),
    "maximum": Case(
        lambda t: t["special"].maximum(t["other"]), lambda a: np.maximum(a["special"], a["other"])
    ),
    "clamp": Case(lambda t: t["special"].clamp(-1, 2), lambda a: np.clip(a["special"], -1, 2)),
    "clamp of ints": Case(lambda t: t["ints"].clamp(-1, 2), lambda a: np.clip(a["ints"], -1, 2)),
    "abs": Case(lambda t: t["special"].abs(), lambda a: np.abs(a["special"])),
    "sign": Case(lambda t: t["special"].sign(), lambda a: np.sign(a["special"])),
    "relu": Case(lambda t: t["special"].relu(), lambda a: np.maximum(a["special"], 0)),
    "sigmoid": Case(lambda t: t["x"].sigmoid(), lambda a: 1 / (1 + np.exp(-a["x"])), CLOSE),
    "silu": Case(lambda t: t["x"].silu(), lambda a: a["x"] / (1 + np.exp(-a["x"])), CLOSE),
    "tanh": Case(lambda t: t["x"].tanh(), lambda a: np.tanh(a["x"]), CLOSE),
    "erf": Case(lambda t: t["x"].erf(), lambda a: erf(a["x"]), 1e-6),
    "gelu": Case(
        lambda t: t["x"].gelu(), lambda a: a["x"] * 0.5 * (1 + erf(a["x"] * 0.5**0.5)), 1e-6
    ),
    "gelu_tanh": Case(
        lambda t: t["x"].gelu_tanh(),
        lambda a: (
            0.5 * a["x"] * (1 + np.tanh((2 / np.pi) ** 0.5 * (a["x"] + 0.044715 * a["x"] ** 3)))
        ),
        CLOSE,
    ),
    "sum of two axes": Case(lambda t: t["cube"].sum(0, -1), lambda a: a["cube"].sum((0, 2)), CLOSE),
    "sum of all": Case(lambda t: t["cube"].sum(), lambda a: a["cube"].sum(), CLOSE),
    "max": Case(lambda t: t["special"].max(1), lambda a: a["special"].max(1)),
    "min": Case(lambda t: t["cube"].min(1), lambda a: a["cube"].min(1)),
    "min of ints": Case(lambda t: t["ints"].min(0), lambda a: a["ints"].min(0)),
    "mean": Case(lambda t: t["cube"].mean(0, 1), lambda a: a["cube"].mean((0, 1)), CLOSE),
    "var": Case(
        lambda t: t["cube"].var(0, 2, correction=1), lambda a: a["cube"].var((0, 2), ddof=1), CLOSE
    ),
    "any": Case(lambda t: t["yes"].any(0), lambda a: a["yes"].any(0)),
    "all": Case(lambda t: t["yes"].all(1), lambda a: a["yes"].all(1)),
    "any of none": Case(lambda t: t["no"].any(), lambda a: a["no"].any()),
    "softmax": Case(
        lambda t: t["cube"].softmax(1),
        lambda a: np.exp(a["cube"]) / np.exp(a["cube"]).sum(1, keepdims=True),
        CLOSE,
    ),
    "log_softmax": Case(
        lambda t: t["cube"].log_softmax(0),
        lambda a: np.log(np.exp(a["cube"]) / np.exp(a["cube"]).sum(0)),
        CLOSE,
    ),
    "argmax": Case(lambda t: t["ties"].argmax(1), lambda a: a["ties"].argmax(1)),
    "argmax with NaNs": Case(lambda t: t["special"].argmax(1), lambda a: a["special"].argmax(1)),
    "argsort": Case(lambda t: t["ties"].argsort(1), lambda a: a["ties"].argsort(1, kind="stable")),
    "argsort of ints": Case(
        lambda t: t["ints"].argsort(0, descending=True),
        lambda a: (-a["ints"]).argsort(0, kind="stable"),
    ),
    "argsort with NaNs": Case(
        lambda t: t["special"].argsort(), lambda a: a["special"].argsort(kind="stable")
    ),
    "argsort down with NaNs": Case(
        lambda t: t["special"].argsort(descending=True),
        lambda a: (-a["special"]).argsort(kind="stable"),
    ),
    "argsort of long rows": Case(
        lambda t: t["long"].argsort(), lambda a: a["long"].argsort(kind="stable")
    ),
    "topk": Case(lambda t: t["ties"].topk(3, 1)[0], lambda a: -np.sort(-a["ties"], axis=1)[:, :3]),
    "topk's places": Case(
        lambda t: t["ties"].topk(3, 1)[1],
        lambda a: (-a["ties"]).argsort(1, kind="stable")[:, :3],
    ),
    "cumsum": Case(lambda t: t["cube"].cumsum(1), lambda a: a["cube"].cumsum(1), CLOSE),
    "cumsum of ints": Case(lambda t: t["ints"].cumsum(1), lambda a: a["ints"].cumsum(1)),
    "take": Case(lambda t: t["x"].take(0, t["places"]), lambda a: a["x"][a["places"]]),
    "take of a view": Case(
        lambda t: t["cube"].transpose(0, 2).take(1, t["places"]),
        lambda a: a["cube"].transpose(2, 1, 0)[:, a["places"]],
    ),
    "take_along": Case(
        lambda t: t["x"].take_along(1, t["along"]),
        lambda a: np.take_along_axis(a["x"], a["along"], 1),
    ),
    "pad": Case(
        lambda t: t["special"].pad(1, 2, 1, -4),
        lambda a: np.pad(a["special"], ((0, 0), (2, 1)), constant_values=-4),
    ),
    "concat": Case(
        lambda t: concat([t["x"], t["special"], t["y"]], 0),
        lambda a: np.concatenate([a["x"], a["special"], a["y"]], 0),
    ),
    "concat of the last axis": Case(
        lambda t: concat([t["x"], t["y"].slice(1, 0, 2)], -1),
        lambda a: np.concatenate([a["x"], a["y"][:, :2]], 1),
    ),
    "stack": Case(
        lambda t: stack([t["x"], t["y"], t["x"]], 1),
        lambda a: np.stack([a["x"], a["y"], a["x"]], 1),
    ),
    "repeat": Case(lambda t: t["x"].repeat(1, 3), lambda a: np.tile(a["x"], (1, 3))),
    "unfold": Case(lambda t: t["row"].unfold(0, 3, 2), lambda a: windows(a["row"], 3, 2, 1)),
    "unfold with dilation": Case(
        lambda t: t["row"].unfold(0, 3, 1, 2), lambda a: windows(a["row"], 3, 1, 2)
    ),
    "reshape": Case(
        lambda t: t["cube"].transpose(0, 1).reshape(4, 6),
        lambda a: a["cube"].transpose(1, 0, 2).reshape(4, 6),
    ),
    "flip": Case(lambda t: t["cube"].flip(1), lambda a: a["cube"][:, ::-1]),
    "matmul in pieces": Case(
        lambda t: t["wide"].matmul(t["tall"]), lambda a: a["wide"] @ a["tall"], 1e-4
    ),
    "matmul of transposed": Case(
        lambda t: t["tall"].transpose(0, 1).matmul(t["wide"].transpose(0, 1)),
        lambda a: a["tall"].T @ a["wide"].T,
        1e-4,
    ),
    "matmul of one row": Case(
        lambda t: t["wide"].slice(0, 2, 3).matmul(t["tall"]),
        lambda a: a["wide"][2:3] @ a["tall"],
        1e-4,
    ),
    "matmul of flipped columns": Case(
        lambda t: t["wide"].matmul(t["tall"].flip(1)),
        lambda a: a["wide"] @ a["tall"][:, ::-1],
        1e-4,
    ),
    "batched matmul": Case(
        lambda t: t["cube"].matmul(t["cube"].transpose(1, 2)),
        lambda a: a["cube"] @ a["cube"].transpose(0, 2, 1),
        CLOSE,
    ),
}


@pytest.fixture(scope="module", params=["reference", "native"])
def results(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, Array]:
    runtime: Runtime = ReferenceRuntime()
    if request.param == "native":
        runtime = NativeRuntime(2, tmp_path_factory.mktemp("composed"))
    graph = Graph()
    inputs = {n: graph.named_tensor(n, a.shape, DType.of(a.dtype)) for n, a in DATA.items()}
    outputs = {name: case.build(inputs).output() for name, case in CASES.items()}
    graph.compile(runtime, CompileOptions(search_time_limit=0))
    for name, tensor in inputs.items():
        runtime.set_data(tensor, DATA[name])
    runtime.execute()
    return {name: runtime.get(tensor) for name, tensor in outputs.items()}


@pytest.mark.parametrize("name", CASES)
def test_meaning(name: str, results: Mapping[str, Array]) -> None:
    case = CASES[name]
    with np.errstate(all="ignore"):
        want = np.asarray(case.want(DATA))
    got = results[name]
    assert got.shape == want.shape
    assert (got.dtype == np.bool_) == (want.dtype == np.bool_)
    if want.dtype == np.bool_ or not case.tolerance:
        np.testing.assert_array_equal(got, want)
    else:
        np.testing.assert_allclose(got, want, rtol=case.tolerance, atol=case.tolerance)
