"""PagedFlash on ragged batches against attention written out in double precision, and against itself."""

from dataclasses import dataclass
from itertools import pairwise

import kernels
import numpy as np
import pytest
from kernels import Case

from engine.compiler.dtype import DType
from engine.compiler.shape import symbol
from engine.ops.base import Array, Spec
from engine.ops.paged_attention import VARIANTS

PAGE = 16
SLOT_PAGES = 40
R, P, T = symbol("r"), symbol("p"), symbol("t")


@dataclass(frozen=True)
class Heads:
    """A shape of attention: query heads, heads of keys and values, width of a head, window and cap (0 is none); whether
    a token sees only those before it."""

    heads: int
    kv_heads: int
    d: int
    window: int = 0
    cap: float = 0.0
    causal: bool = True

    def __str__(self) -> str:
        bent = f" window {self.window} cap {self.cap}" if self.window or self.cap else ""
        return (
            f"{self.heads}/{self.kv_heads} of {self.d}{bent}{'' if self.causal else ' both ways'}"
        )

    def case(self, variant: int = 0) -> Case:
        shape = (("t", str(self.heads), str(self.d)), "")
        pool = Spec((SLOT_PAGES * PAGE, self.kv_heads, self.d), DType.F16)
        i32 = DType.I32
        inputs = (
            Spec((T, self.heads, self.d), DType.F32),
            pool,
            pool,
            Spec((R, P), i32),
            Spec((R + 1,), i32),
            Spec((T,), i32),
        )
        scale = repr(self.d**-0.5)
        bent = (str(self.window), repr(self.cap), str(int(self.causal)))
        params = (shape, str(self.kv_heads), str(PAGE), scale, *bent)
        return Case("PagedFlash", params, inputs, variant=variant)


SHAPES = [
    Heads(4, 2, 8),
    Heads(9, 3, 64),
    Heads(2, 2, 80),
    Heads(3, 1, 12),
    Heads(14, 2, 16),
    Heads(4, 1, 16, window=1),
    Heads(4, 2, 16, window=21),
    Heads(2, 1, 8, window=32, cap=1.5),
    Heads(4, 2, 8, causal=False),
    Heads(12, 12, 12, cap=1.5, causal=False),
]
CASES = [(shape, v) for shape in SHAPES for v in range(len(VARIANTS))]


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    kernels.prepare((shape.case(v) for shape, v in CASES), "p", "r", "t")


@dataclass(frozen=True)
class Batch:
    """Requests of (tokens in this step, tokens before it), each in pages of its own, in a pool of rubbish."""

    shape: Heads
    q: Array
    k_pool: Array
    v_pool: Array
    table: Array
    starts: Array
    positions: Array

    @property
    def inputs(self) -> list[Array]:
        return [self.q, self.k_pool, self.v_pool, self.table, self.starts, self.positions]

    def run(self, variant: int = 0, threads: int = 2) -> Array:
        r, p = self.table.shape
        return self.shape.case(variant).run(
            self.inputs, {"t": len(self.q), "r": r, "p": p}, threads
        )

    def only(self, request: int, first: int = 0, last: int | None = None) -> "Batch":
        """One request alone, and of it the tokens first..last of this step."""
        start, stop = (int(i) for i in self.starts[request : request + 2])
        chosen = slice(start + first, stop if last is None else start + last)
        q, positions = self.q[chosen], self.positions[chosen]
        starts = np.array([0, len(q)], np.int32)
        table = self.table[request : request + 1]
        return Batch(self.shape, q, self.k_pool, self.v_pool, table, starts, positions)

    def expected(self) -> Array:
        """Softmax of q . k over a token's own request up to its position, or that of its last token, a token and a head
        at a time, in float64."""
        s, out = self.shape, np.zeros(self.q.shape)
        pools = [
            x.reshape(-1, s.kv_heads, s.d).astype(np.float64) for x in (self.k_pool, self.v_pool)
        ]
        for request, (start, stop) in enumerate(pairwise(self.starts)):
            for token in range(start, stop):
                last = self.positions[token if s.causal else stop - 1] + 1
                seen = np.arange(max(0, last - s.window) if s.window else 0, last)
                slots = self.table[request, seen // PAGE] * PAGE + seen % PAGE
                for head in range(s.heads):
                    keys, values = (x[slots, head // (s.heads // s.kv_heads)] for x in pools)
                    scores = keys @ self.q[token, head].astype(np.float64) / np.sqrt(s.d)
                    scores = np.tanh(scores / s.cap) * s.cap if s.cap else scores
                    weights = np.exp(scores - scores.max())
                    out[token, head] = weights @ values / weights.sum()
        return out


def batch(shape: Heads, requests: list[tuple[int, int]], seed: int = 0) -> Batch:
    rng = np.random.default_rng(seed)
    t = sum(now for now, _ in requests)
    pool = (SLOT_PAGES * PAGE, shape.kv_heads, shape.d)
    k, v = (rng.standard_normal(pool, np.float32).astype(np.float16) for _ in range(2))
    free = list(rng.permutation(SLOT_PAGES))
    width = max(-(-(now + before) // PAGE) for now, before in requests) + 1
    table = np.zeros((len(requests), width), np.int32)
    for row, (now, before) in zip(table, requests, strict=True):
        for page in range(-(-(now + before) // PAGE)):
            row[page] = free.pop()
    starts = np.cumsum([0, *(now for now, _ in requests)]).astype(np.int32)
    positions = [before + i for now, before in requests for i in range(now)]
    q = rng.standard_normal((t, shape.heads, shape.d), np.float32) * 2
    return Batch(shape, q, k, v, table, starts, np.array(positions, np.int32))


RAGGED = [(1, 70), (5, 0), (1, 0), (37, 30), (1, 15), (1, 16), (9, 95)]
"""One token and several, within a page, to its last position and one past it, over up to seven pages."""


@pytest.mark.parametrize(("shape", "variant"), CASES, ids=str)
def test_ragged_batch(shape: Heads, variant: int) -> None:
    b = batch(shape, RAGGED)
    y = b.run(variant)
    np.testing.assert_allclose(y, b.expected(), rtol=1e-4, atol=1e-5)
    dims = {"t": len(b.q), "r": len(RAGGED), "p": b.table.shape[1]}
    np.testing.assert_allclose(y, shape.case().meaning(b.inputs, dims), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("shape", "variant"), CASES, ids=str)
def test_a_row_has_the_same_bits_alone_and_in_any_batch(shape: Heads, variant: int) -> None:
    b = batch(shape, RAGGED)
    whole = b.run()
    for threads in (1, 2, 3):
        np.testing.assert_array_equal(b.run(variant, threads), whole)
    for request in range(len(RAGGED)):
        start, stop = b.starts[request : request + 2]
        np.testing.assert_array_equal(b.only(request).run(variant), whole[start:stop])


@pytest.mark.parametrize(("shape", "variant"), CASES, ids=str)
def test_a_prompt_cut_into_chunks_has_the_bits_of_the_whole(shape: Heads, variant: int) -> None:
    if not shape.causal:
        pytest.skip("a prompt is not cut where tokens see those after them")
    b = batch(shape, [(75, 3)])
    whole = b.run()
    for cut in (1, 8, 13, 29, 32, 61, 74):
        parts = [b.only(0, 0, cut).run(variant), b.only(0, cut).run(variant)]
        np.testing.assert_array_equal(np.concatenate(parts), whole)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_requests_without_tokens_and_unused_pages_are_passed_over(shape: Heads) -> None:
    b = batch(shape, [(2, 5), (0, 0), (1, 40), (0, 0)])
    np.testing.assert_allclose(b.run(), b.expected(), rtol=1e-4, atol=1e-5)
    b.table[1] = 10**6  # nothing may read the table of a request that has no tokens
    b.table[0, 1:] = 10**6
    np.testing.assert_allclose(b.run(), b.expected(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES[:2], ids=str)
def test_scores_of_any_size(shape: Heads) -> None:
    b = batch(shape, [(3, 60)])
    b.q[0] *= 1e4
    b.q[1] = 0
    np.testing.assert_allclose(b.run(), b.expected(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("shape", SHAPES[:2], ids=str)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_in_a_query_stays_in_its_row(shape: Heads, bad: float) -> None:
    b = batch(shape, [(3, 60), (2, 0)])
    clean = b.run()
    b.q[1, 0, 0] = bad
    y = b.run()
    assert np.isnan(y[1, 0]).all()
    y[1, 0] = clean[1, 0]
    np.testing.assert_array_equal(y, clean)


@pytest.mark.parametrize("shape", SHAPES[:2], ids=str)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("pools", ["k", "v"])
def test_rubbish_that_another_request_left_in_a_page_is_not_read(
    shape: Heads, bad: float, pools: str
) -> None:
    b = batch(shape, [(1, 40), (3, 0)])
    clean = b.run()
    hidden = np.ones(SLOT_PAGES * PAGE, bool)
    for request, context in enumerate((41, 3)):
        seen = np.arange(context)
        hidden[b.table[request, seen // PAGE] * PAGE + seen % PAGE] = False
    (b.k_pool if pools == "k" else b.v_pool)[hidden] = bad
    np.testing.assert_array_equal(b.run(), clean)
