"""The building blocks of models against NumPy, on both runtimes; all of them are outputs of one graph."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest

from engine import CompileOptions, DType, Graph, NativeRuntime, ReferenceRuntime, Tensor
from engine.compiler import nn
from engine.compiler.shape import ShapeError
from engine.ops.base import Array
from engine.runtimes.base import Runtime

_RNG = np.random.default_rng(1)


def floats(*shape: int) -> Array:
    return _RNG.standard_normal(shape).astype(np.float32)


DATA: dict[str, Array] = {
    "x": floats(5, 8),
    "tokens": floats(2, 5, 8),
    "weight": floats(8),
    "bias": floats(8),
    "ids": np.array([[3, 0], [6, 3]], np.int32),
    "table": floats(7, 8),
    "image": floats(4, 9, 7),
    "signal": floats(4, 11),
    "filters": floats(6, 4, 3, 2),
    "grouped": floats(6, 2, 3),
    "six": floats(6),
    "four": floats(4),
    "q": floats(6, 3, 8),
    "k": floats(2, 5, 8),
    "v": floats(2, 5, 8),
    "heads": floats(5, 3, 8),
    "angles": floats(5, 4),
    "logits": floats(5, 6),
    "gate": floats(6, 4, 8),
    "up": floats(6, 4, 8),
    "down": floats(6, 8, 4),
}
Inputs = Mapping[str, Tensor]
Arrays = Mapping[str, Array]


@dataclass(frozen=True)
class Case:
    build: Callable[[Inputs], Tensor]
    want: Callable[[Arrays], Array]


def normal(x: Array, eps: float = 1e-5) -> Array:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps)


def convolve(
    x: Array,
    filters: Array,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    groups: int = 1,
) -> Array:
    """Cross-correlation, one output at a time."""
    x = np.pad(x, [(0, 0), *[(padding, padding)] * (x.ndim - 1)])
    kernel = filters.shape[2:]
    sizes = [
        (n - dilation * (k - 1) - 1) // stride + 1 for n, k in zip(x.shape[1:], kernel, strict=True)
    ]
    out = np.zeros((len(filters), *sizes))
    width = filters.shape[1]
    for o, place in product(range(len(filters)), product(*map(range, sizes))):
        first = o // (len(filters) // groups) * width
        window = tuple(
            slice(p * stride, p * stride + dilation * (k - 1) + 1, dilation)
            for p, k in zip(place, kernel, strict=True)
        )
        out[(o, *place)] = (x[(slice(first, first + width), *window)] * filters[o]).sum()
    return out


def pooled(x: Array, size: int, stride: int, function: Callable[[Array], Array]) -> Array:
    sizes = [(n - size) // stride + 1 for n in x.shape[1:]]
    out = np.zeros((len(x), *sizes), np.float32)
    for c, place in product(range(len(x)), product(*map(range, sizes))):
        out[(c, *place)] = function(x[(c, *(slice(p * stride, p * stride + size) for p in place))])
    return out


def attend(a: Arrays, visible: Array) -> Array:
    scores = np.einsum("hqd,hkd->hqk", a["q"], np.repeat(a["k"], 3, 0)) * 0.3
    scores = np.where(visible, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum(
        "hqk,hkd->hqd", weights / weights.sum(-1, keepdims=True), np.repeat(a["v"], 3, 0)
    )


def seen(window: int | None) -> Array:
    query, key = np.arange(3)[:, None] + 2, np.arange(5)[None, :]
    return (key <= query) & (key > query - (window or 99))


def top(a: Arrays, normalise: bool) -> tuple[Array, Array]:
    p = np.exp(a["logits"]) / np.exp(a["logits"]).sum(1, keepdims=True)
    experts = (-p).argsort(1, kind="stable")[:, :2]
    weights = np.take_along_axis(p, experts, 1)
    return weights / weights.sum(1, keepdims=True) if normalise else weights, experts


def mixture(a: Arrays) -> Array:
    weights, experts = top(a, normalise=True)
    out = np.zeros((5, 8))
    for t, at in product(range(5), range(2)):
        e = experts[t, at]
        gate, up = a["gate"][e] @ a["x"][t], a["up"][e] @ a["x"][t]
        out[t] += weights[t, at] * (a["down"][e] @ (gate / (1 + np.exp(-gate)) * up))
    return out


def interleaved(a: Arrays) -> Array:
    cos, sin = (f(a["angles"])[:, None, :] for f in (np.cos, np.sin))
    even, odd = a["heads"][..., 0::2], a["heads"][..., 1::2]
    return np.stack([even * cos - odd * sin, odd * cos + even * sin], -1).reshape(5, 3, 8)


def routed(t: Inputs, normalise: bool = True) -> tuple[Tensor, Tensor]:
    return nn.route(t["logits"], 2, normalise=normalise)


CASES: dict[str, Case] = {
    "embedding": Case(lambda t: nn.embedding(t["table"], t["ids"]), lambda a: a["table"][a["ids"]]),
    "rms_norm of three axes": Case(
        lambda t: nn.rms_norm(t["tokens"], t["weight"], 1e-6),
        lambda a: (
            a["tokens"] / np.sqrt((a["tokens"] ** 2).mean(-1, keepdims=True) + 1e-6) * a["weight"]
        ),
    ),
    "layer_norm": Case(
        lambda t: nn.layer_norm(t["tokens"], t["weight"], t["bias"]),
        lambda a: normal(a["tokens"]) * a["weight"] + a["bias"],
    ),
    "layer_norm without weights": Case(lambda t: nn.layer_norm(t["x"]), lambda a: normal(a["x"])),
    "group_norm": Case(
        lambda t: nn.group_norm(t["image"], 2, t["four"], t["four"]),
        lambda a: (
            normal(a["image"].reshape(2, -1)).reshape(4, 9, 7) * a["four"][:, None, None]
            + a["four"][:, None, None]
        ),
    ),
    "geglu": Case(
        lambda t: nn.geglu(t["x"], t["x"]),
        lambda a: (
            a["x"] ** 2
            * 0.5
            * (1 + np.tanh((2 / np.pi) ** 0.5 * (a["x"] + 0.044715 * a["x"] ** 3)))
        ),
    ),
    "rotary_interleaved": Case(
        lambda t: nn.rotary(t["heads"], t["angles"].cos(), t["angles"].sin(), interleaved=True),
        interleaved,
    ),
    "conv of 1 dimension in groups": Case(
        lambda t: nn.conv(t["signal"], t["grouped"], t["six"], groups=2, padding=1),
        lambda a: convolve(a["signal"], a["grouped"], padding=1, groups=2) + a["six"][:, None],
    ),
    "conv of 2 dimensions": Case(
        lambda t: nn.conv(t["image"], t["filters"], stride=2, padding=1),
        lambda a: convolve(a["image"], a["filters"], stride=2, padding=1),
    ),
    "conv with dilation": Case(
        lambda t: nn.conv(t["image"], t["filters"], t["six"], dilation=2),
        lambda a: convolve(a["image"], a["filters"], dilation=2) + a["six"][:, None, None],
    ),
    "max_pool": Case(
        lambda t: nn.max_pool(t["image"], 3, 2), lambda a: pooled(a["image"], 3, 2, np.max)
    ),
    "max_pool with padding": Case(
        lambda t: nn.max_pool(t["signal"], 3, padding=1),
        lambda a: pooled(np.pad(a["signal"], ((0, 0), (1, 1)), constant_values=-9), 3, 3, np.max),
    ),
    "mean_pool": Case(
        lambda t: nn.mean_pool(t["image"], 2), lambda a: pooled(a["image"], 2, 2, np.mean)
    ),
    "upsample": Case(
        lambda t: nn.upsample(t["image"], 2), lambda a: a["image"].repeat(2, 1).repeat(2, 2)
    ),
    "attention": Case(
        lambda t: nn.attention(t["q"], t["k"], t["v"], None, 0.3),
        lambda a: attend(a, np.ones((3, 5), bool)),
    ),
    "causal attention": Case(
        lambda t: nn.attention(t["q"], t["k"], t["v"], nn.causal_mask(t["q"].graph, 3, 5), 0.3),
        lambda a: attend(a, seen(None)),
    ),
    "attention in a window": Case(
        lambda t: nn.attention(t["q"], t["k"], t["v"], nn.causal_mask(t["q"].graph, 3, 5, 2), 0.3),
        lambda a: attend(a, seen(2)),
    ),
    "route": Case(lambda t: routed(t)[0], lambda a: top(a, True)[0]),
    "route's experts": Case(lambda t: routed(t)[1], lambda a: top(a, True)[1]),
    "route by probability": Case(lambda t: routed(t, False)[0], lambda a: top(a, False)[0]),
    "experts_glu": Case(
        lambda t: nn.experts_glu(t["x"], *routed(t), t["gate"], t["up"], t["down"]), mixture
    ),
}


def run(runtime: Runtime, cases: Mapping[str, Case]) -> dict[str, Array]:
    graph = Graph()
    inputs = {n: graph.named_tensor(n, a.shape, DType.of(a.dtype)) for n, a in DATA.items()}
    outputs = {name: case.build(inputs).output() for name, case in cases.items()}
    graph.compile(runtime, CompileOptions(search_time_limit=0))
    for name, tensor in inputs.items():
        runtime.set_data(tensor, DATA[name])
    runtime.execute()
    return {name: runtime.get(tensor) for name, tensor in outputs.items()}


@pytest.fixture(scope="module", params=["reference", "native"])
def results(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, Array]:
    runtime: Runtime = ReferenceRuntime()
    if request.param == "native":
        runtime = NativeRuntime(2, tmp_path_factory.mktemp("blocks"))
    return run(runtime, CASES)


@pytest.mark.parametrize("name", CASES)
def test_meaning(name: str, results: Mapping[str, Array]) -> None:
    want = CASES[name].want(DATA)
    assert results[name].shape == want.shape
    np.testing.assert_allclose(results[name], want, rtol=1e-4, atol=1e-5)


REFUSED: Sequence[tuple[Callable[[Graph], object], str]] = [
    (lambda g: nn.conv(g.tensor((3, 8)), g.tensor((4, 2, 3))), "conv: .* does not fit weights"),
    (lambda g: nn.conv(g.tensor((2, 2)), g.tensor((4, 2, 3))), "unfold: windows of 3 do not fit"),
    (lambda g: nn.route(g.tensor((4, 3)), 5), "topk: 5 of axis 1"),
]


@pytest.mark.parametrize(("build", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_refused(build: Callable[[Graph], object], words: str) -> None:
    with pytest.raises(ShapeError, match=words):
        build(Graph())
