"""DenseAttention and MaskedAttention against attention written out in double precision, and against themselves."""

from dataclasses import dataclass

import kernels
import numpy as np
import pytest
from kernels import Case
from random_views import raw_shape, raw_view

from engine.compiler.dtype import DType
from engine.compiler.shape import View, symbol
from engine.ops.base import Array, Spec
from engine.ops.dense_attention import OPS

T, S = symbol("t"), symbol("s")
VARIANTS = range(len(OPS[0].variants))


@dataclass(frozen=True)
class Heads:
    """`kv` heads of keys [kv, s, d] and values [kv, s, dv], each shared by `shared` query heads, which lie inside a row
    of queries: [t, kv * shared, d]."""

    kv: int
    shared: int
    d: int
    dv: int
    masked: bool = False

    def case(self, variant: int = 0) -> Case:
        heads = self.kv * self.shared
        q = View.contiguous((T, heads, self.d)).permute((1, 0, 2)).insert(2, S)
        k, v = (
            View.contiguous((self.kv, S, width)).insert(1, self.shared).merge(0).insert(1, T)
            for width in (self.d, self.dv)
        )
        views = [raw_view(x) for x in (q, k, v.permute((0, 1, 3, 2)))]
        specs = [
            Spec(shape, DType.F32)
            for shape in ((T, heads, self.d), (self.kv, S, self.d), (self.kv, S, self.dv))
        ]
        if self.masked:
            views.append(raw_view(View.contiguous((T, S)).insert(0, heads)))
            specs.append(Spec((T, S), DType.F32))
        params = (raw_shape((heads, T, self.dv)), "s", str(self.d), repr(self.d**-0.5), *views)
        name = "MaskedAttention" if self.masked else "DenseAttention"
        return Case(name, params, tuple(specs), variant=variant)

    def data(self, t: int, s: int) -> list[Array]:
        rng = np.random.default_rng(t * 1000 + s)
        shapes = ((t, self.kv * self.shared, self.d), (self.kv, s, self.d), (self.kv, s, self.dv))
        made = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
        if (
            self.masked
        ):  # the first tokens see the last keys only, so that whole blocks are hidden from them
            hidden = np.arange(s)[None] < s - 1 - np.arange(t)[:, None]
            made.append(np.where(hidden, -np.inf, rng.standard_normal((t, s))).astype(np.float32))
        return made


SHAPES = [
    Heads(1, 1, 8, 8),
    Heads(2, 3, 64, 64),
    Heads(2, 1, 12, 40, masked=True),
    Heads(1, 4, 80, 17, masked=True),
    Heads(1, 1, 512, 512),
]
SIZES = [(1, 1), (1, 130), (7, 63), (15, 64), (65, 65), (70, 200)]


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    kernels.prepare((shape.case(v) for shape in SHAPES for v in VARIANTS), "s", "t")


def exact(shape: Heads, q: Array, k: Array, v: Array, *mask: Array) -> Array:
    k, v = (x.astype(np.float64).repeat(shape.shared, 0) for x in (k, v))
    scores = np.einsum("thd,hsd->hts", q.astype(np.float64), k) * shape.d**-0.5
    scores = scores + mask[0] if mask else scores
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(np.einsum("hts,hsd->htd", weights / weights.sum(-1, keepdims=True), v))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_attention(shape: Heads, variant: int) -> None:
    for t, s in SIZES:
        inputs = shape.data(t, s)
        want = exact(shape, *inputs)
        case, dims = shape.case(variant), {"t": t, "s": s}
        np.testing.assert_allclose(case.run(inputs, dims), want, rtol=1e-5, atol=2e-6)
        np.testing.assert_allclose(case.meaning(inputs, dims), want, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_row_has_the_same_bits_alone_and_on_any_number_of_threads(shape: Heads) -> None:
    q, k, v, *mask = shape.data(70, 200)
    want = shape.case().run([q, k, v, *mask], {"t": 70, "s": 200}, 1)
    for variant in VARIANTS:
        case = shape.case(variant)
        for threads in (2, 3):
            found = case.run([q, k, v, *mask], {"t": 70, "s": 200}, threads)
            np.testing.assert_array_equal(found, want)
        for at in (0, 33, 69):
            row = [q[at : at + 1], k, v, *(m[at : at + 1] for m in mask)]
            found = case.run(row, {"t": 1, "s": 200})
            np.testing.assert_array_equal(found, want[:, at : at + 1])


@pytest.mark.parametrize("at", range(4))
def test_a_nan_comes_out_and_stays_in_its_row(at: int) -> None:
    shape = SHAPES[2]
    inputs = shape.data(7, 63)
    inputs[at][-1, ..., -1] = np.nan
    with np.errstate(invalid="ignore"):
        want = exact(shape, *inputs)
    found = shape.case().run(inputs, {"t": 7, "s": 63})
    assert np.isnan(want).any()
    np.testing.assert_array_equal(np.isnan(found), np.isnan(want))


def test_a_row_that_sees_nothing_is_no_number() -> None:
    q, k, v, mask = SHAPES[2].data(7, 63)
    mask[3] = -np.inf
    found = SHAPES[2].case().run([q, k, v, mask], {"t": 7, "s": 63})
    assert np.isnan(found[:, 3]).all()
    assert np.isfinite(np.delete(found, 3, 1)).all()
