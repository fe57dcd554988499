"""A Llama of a few small layers as a graph, with random weights and a batch, and its forward pass in float64."""

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from engine.compiler import nn
from engine.compiler.dtype import DType
from engine.compiler.graph import Graph
from engine.compiler.shape import symbol
from engine.compiler.tensor import Tensor
from engine.ops.base import Array

PAGE, PAGES = 8, 9
EPS = 1e-5
FEED = 64
VOCAB = 20


@dataclass
class TinyLlama:
    """`layers` layers of 32 columns, 4 heads that share 2 of keys and values. `held`: F32, F16 or BF16 weights, or U4
    or I8 codes with scales and minima in groups of 16."""

    layers: int = 2
    held: DType = DType.F32
    head_dim: int = 8
    graph: Graph = field(default_factory=Graph)
    data: dict[Tensor, Array] = field(default_factory=dict)
    weights: dict[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(0)
        self.width = 4 * self.head_dim
        self.logits = self._build()

    # -- the graph ---------------------------------------------------------------------------------------------------

    def _input(self, array: Array, dtype: DType = DType.F32) -> Tensor:
        shape = (array.shape[0], 2 * array.shape[1]) if dtype is DType.U4 else array.shape
        tensor = self.graph.tensor(shape, dtype).persist()
        self.data[tensor] = array.astype(dtype.numpy)
        return tensor

    def _vector(self, name: str, size: int) -> Tensor:
        self.weights[name] = self.rng.uniform(0.5, 1.5, size).astype(np.float32)
        return self._input(self.weights[name])

    def _matrix(self, name: str, n: int, k: int) -> Tensor:
        value = self.rng.standard_normal((n, k), np.float32) / np.sqrt(k)
        if self.held not in (DType.U4, DType.I8):
            self.weights[name] = value.astype(self.held.numpy).astype(np.float64)
            return self._input(value, self.held).cast(DType.F32)
        low, high = (0, 16) if self.held is DType.U4 else (-128, 128)
        codes = self.rng.integers(low, high, (n, k))
        scale = (self.rng.uniform(0.5, 1, (n, k // 16)) / high / np.sqrt(k)).astype(np.float16)
        minimum = (-scale.astype(np.float32) * (low + high) / 2).astype(np.float16)
        wide, floor = (np.repeat(x.astype(np.float64), 16, axis=1) for x in (scale, minimum))
        self.weights[name] = codes * wide + floor
        packed = codes[:, ::2] | codes[:, 1::2] << 4 if self.held is DType.U4 else codes
        parts = [
            self._input(packed, self.held),
            *(self._input(x, DType.F16) for x in (scale, minimum)),
        ]
        return nn.dequantize(parts[0], parts[1], parts[2])

    def _build(self) -> Tensor:
        g, d, i32 = self.graph, self.head_dim, DType.I32
        self.tokens, self.positions, self.slots = (g.tensor(("t",), i32) for _ in range(3))
        self.starts, self.table = g.tensor((symbol("r") + 1,), i32), g.tensor(("r", "p"), i32)
        self.out_rows = g.tensor(("o",), i32)
        frequencies = self._input(nn.inverse_frequencies(d, 100.0))
        cos, sin = nn.rotary_tables(self.positions, frequencies)
        x = nn.gather_rows(self._matrix("embedding", VOCAB, self.width), self.tokens)
        self.pools: list[Tensor] = []
        for layer in range(self.layers):
            x = self._layer(f"{layer}.", x, cos, sin)
        last = nn.gather_rows(x, self.out_rows)
        last = nn.rms_norm(last, self._vector("norm", self.width), EPS)
        return nn.linear(last, self._matrix("head", VOCAB, self.width)).output()

    def _layer(self, name: str, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        d = self.head_dim

        def project(what: str, x: Tensor, n: int) -> Tensor:
            return nn.linear(x, self._matrix(name + what, n, nn.width(x)))

        def stored(rows: Tensor) -> Tensor:
            pool = self.graph.tensor((PAGES * PAGE, 2 * d), DType.F16).persist()
            self.pools.append(pool)
            filled = nn.scatter_rows(pool, self.slots, rows.cast(DType.F16))
            pool.assign(filled)
            return filled.split(1, d)

        h = nn.rms_norm(x, self._vector(name + "norm", self.width), EPS)
        q = nn.rotary(project("q", h, 4 * d).split(1, d), cos, sin)
        k = nn.rotary(project("k", h, 2 * d).split(1, d), cos, sin)
        attention = nn.paged_attention(
            q,
            stored(k.merge(1)),
            stored(project("v", h, 2 * d)),
            self.table,
            self.starts,
            self.positions,
            page_size=PAGE,
            scale=d**-0.5,
        )
        x = x + project("o", attention.merge(1), self.width)
        h = nn.rms_norm(x, self._vector(name + "after", self.width), EPS)
        return x + project(
            "down", nn.swiglu(project("gate", h, FEED), project("up", h, FEED)), self.width
        )

    # -- a batch -----------------------------------------------------------------------------------------------------

    def batch(self) -> tuple[dict[Tensor, Array], dict[str, int]]:
        """Inputs of a step of three fresh requests, of 7, 1 and 12 tokens, and its dims."""
        counts, i32 = (7, 1, 12), np.int32
        starts = np.cumsum([0, *counts]).astype(i32)
        table = np.array([[3, 0], [5, 0], [1, 7]], i32)
        positions = np.concatenate([np.arange(n) for n in counts]).astype(i32)
        request = np.repeat(np.arange(3), counts)
        inputs = {
            self.tokens: (np.arange(20) * 7 % VOCAB).astype(i32),
            self.positions: positions,
            self.slots: (table[request, positions // PAGE] * PAGE + positions % PAGE).astype(i32),
            self.starts: starts,
            self.table: table,
            self.out_rows: np.array([6, 7, 19, 0], i32),
        }
        pools = {p: np.zeros((PAGES * PAGE, 2 * self.head_dim), np.float16) for p in self.pools}
        return {**self.data, **pools, **inputs}, {"t": 20, "r": 3, "p": 2, "o": 4}

    # -- the truth ---------------------------------------------------------------------------------------------------

    def expected(self) -> Array:
        """Logits of the batch, f64 [4, VOCAB]: whole prompts, one after the other, no cache."""
        inputs, _ = self.batch()
        parts = [
            self._forward(inputs[self.tokens][start:stop])
            for start, stop in pairwise(inputs[self.starts])
        ]
        return np.asarray(np.concatenate(parts)[inputs[self.out_rows]])

    def _forward(self, tokens: Array) -> Array:
        w, d, t = self.weights, self.head_dim, len(tokens)

        def norm(x: Array, name: str) -> Array:
            return np.asarray(x / np.sqrt((x**2).mean(-1, keepdims=True) + EPS) * w[name])

        angle = np.arange(t)[:, None] * 100.0 ** (-np.arange(0, d, 2) / d)
        turn = np.exp(1j * angle)[:, None]

        def rotated(x: Array) -> Array:
            z = (x[..., : d // 2] + 1j * x[..., d // 2 :]) * turn
            return np.concatenate([z.real, z.imag], axis=-1)

        x = w["embedding"][tokens]
        for layer in range(self.layers):
            n = f"{layer}."
            h = norm(x, n + "norm")
            q = rotated((h @ w[n + "q"].T).reshape(t, 4, d))
            k = rotated((h @ w[n + "k"].T).reshape(t, 2, d)).astype(np.float16).astype(np.float64)
            v = (h @ w[n + "v"].T).reshape(t, 2, d).astype(np.float16).astype(np.float64)
            k, v = (np.repeat(x, 2, axis=1) for x in (k, v))
            scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(d)
            scores = np.where(np.tri(t, dtype=bool), scores, -np.inf)
            e = np.exp(scores - scores.max(-1, keepdims=True))
            mixed = np.einsum("hqk,khd->qhd", e / e.sum(-1, keepdims=True), v).reshape(t, -1)
            x = x + mixed @ w[n + "o"].T
            h = norm(x, n + "after")
            gate, up = h @ w[n + "gate"].T, h @ w[n + "up"].T
            x = x + (gate / (1 + np.exp(-gate)) * up) @ w[n + "down"].T
        return np.asarray(norm(x, "norm") @ w["head"].T)
