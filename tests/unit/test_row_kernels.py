"""Kernels that read, write, normalise and turn rows, against NumPy in double precision and their own meaning."""

from collections.abc import Callable

import kernels
import numpy as np
import pytest
from kernels import Case
from random_views import DIMS, Walk, random_shape, random_walk, raw_shape

from engine.compiler.dtype import DType
from engine.compiler.shape import Shape, View, evaluate, symbol
from engine.ops.base import Array, Spec
from engine.ops.expression import Expression

T = symbol("t")
F32, I32 = DType.F32, DType.I32
HELD = (DType.F32, DType.F16, DType.BF16, DType.F8E4M3, DType.I32, DType.I64, DType.U8, DType.BOOL)


def values(rng: np.random.Generator, size: int, dtype: DType) -> Array:
    return np.asarray(rng.integers(0, 100, size)).astype(dtype.numpy)


def both(case: Case, inputs: list[Array], dims: dict[str, int], threads: int = 2) -> Array:
    """What the kernel makes, after a check that its meaning is the same to the bit."""
    y = case.run(inputs, dims, threads)
    np.testing.assert_array_equal(y, case.meaning(inputs, dims))
    return y


# -- gather and scatter by element -------------------------------------------------------------------------------------


class Indexed:
    """A gather and a scatter with random views of everything they touch."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = np.random.default_rng(seed)
        self.dtype = HELD[seed % len(HELD)]
        self.shape, self.data_shape = random_shape(rng), random_shape(rng)
        self.at, self.data = random_walk(rng, self.shape), random_walk(rng, self.data_shape)
        self.source = random_walk(rng, self.shape)

    def spec(self, walk: Walk, dtype: DType) -> Spec:
        return Spec(walk.shape, dtype)

    @property
    def gather(self) -> Case:
        params = (
            raw_shape(self.shape),
            self.at.raw,
            raw_shape(self.data_shape),
            self.data.raw,
        )
        inputs = (self.spec(self.at, I32), self.spec(self.data, self.dtype))
        return Case("GatherElements", params, inputs)

    @property
    def scatter(self) -> Case:
        shapes = raw_shape(self.data_shape), raw_shape(self.shape)
        params = (shapes[0], self.data.raw, shapes[1], self.at.raw, self.source.raw)
        inputs = (
            self.spec(self.data, self.dtype),
            self.spec(self.at, I32),
            self.spec(self.source, self.dtype),
        )
        return Case("ScatterCopy", params, inputs)

    def inputs(self) -> tuple[Array, Array, Array]:
        data = values(self.rng, self.data.size, self.dtype)
        source = values(self.rng, self.source.size, self.dtype)
        places = self.data.places.size
        at = self.rng.integers(-2, places + 2, self.at.size).astype(np.int32)
        return data, at, source


INDEXED = [Indexed(seed) for seed in range(24)]
T9 = {"t": 9}


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    kernels.prepare(
        [
            *(case for i in INDEXED for case in (i.gather, i.scatter)),
            *(copy_rows(dtype, width) for dtype, width in COPIES),
            *(rotate(pairs, *sizes) for sizes in ROTATIONS for pairs in PAIRS),
            *(norm(k) for k in WIDTHS),
            *(norm_of_sum(k, added) for k in WIDTHS for added in (False, True)),
            *(norm_quantize(k, g) for k, g in NORM_GROUPS),
            *(softmax(shape) for shape in SOFTMAXES),
            masked_softmax(2, 13),
        ],
        "t",
    )


@pytest.mark.parametrize("seed", range(len(INDEXED)))
@pytest.mark.parametrize("threads", [1, 3])
def test_gather_through_views(seed: int, threads: int) -> None:
    g = INDEXED[seed]
    data, at, _ = g.inputs()
    y = both(g.gather, [at, data], DIMS, threads)
    flat = data[g.data.places].reshape(-1)
    want = flat[np.clip(at[g.at.places], 0, flat.size - 1)]
    np.testing.assert_array_equal(y, want)


@pytest.mark.parametrize("seed", range(len(INDEXED)))
@pytest.mark.parametrize("threads", [1, 3])
def test_scatter_through_views(seed: int, threads: int) -> None:
    s = INDEXED[seed]
    data, at, source = s.inputs()
    y = both(s.scatter, [data, at, source], DIMS, threads)
    want = data[s.data.places].reshape(-1).copy()
    for place, value in zip(
        at[s.at.places].reshape(-1), source[s.source.places].reshape(-1), strict=True
    ):
        if 0 <= place < want.size:
            want[place] = value
    np.testing.assert_array_equal(y.reshape(-1), want)


COPIES = [(DType.F32, 7), (DType.BF16, 1), (DType.U8, 33), (DType.I64, 3)]


def copy_rows(dtype: DType, width: int) -> Case:
    return Case("CopyRows", ("t", str(width)), (Spec((T,), I32), Spec((11, width), dtype)))


@pytest.mark.parametrize(("dtype", "width"), COPIES)
@pytest.mark.parametrize("threads", [1, 3])
def test_copy_rows(dtype: DType, width: int, threads: int) -> None:
    data = values(np.random.default_rng(0), 11 * width, dtype).reshape(11, width)
    rows = np.array([3, 0, 10, 10, -4, 11, 2**30, 5, 1], np.int32)
    y = both(copy_rows(dtype, width), [rows, data], T9, threads)
    np.testing.assert_array_equal(y, data[np.clip(rows, 0, 10)])


# -- normalisation ---------------------------------------------------------------------------------------------------

WIDTHS = [1, 7, 8, 64, 577]
NORM_GROUPS = [(48, 16), (96, 32), (64, 64)]


def dense(leaf: int, shape: Shape) -> Expression:
    """A leaf that is read as it lies."""
    return Expression("Load", F32, (), (leaf, View.contiguous(shape)))


def norm(k: int) -> Case:
    inputs = (Spec((k,), F32), Spec((T, k), F32))
    return Case("RowNorm", ("t", str(k), "1e-05"), inputs, dense(0, (T, k)))


def norm_of_sum(k: int, added: bool) -> Case:
    """The norm of a sum, and with `added` a residual after it."""
    rows = Spec((T, k), F32)
    summed = Expression("Add", F32, (dense(0, (T, k)), dense(1, (T, k))))
    inputs = (Spec((k,), F32), *([rows] if added else []), rows, rows)
    return Case("RowNormAdd" if added else "RowNorm", ("t", str(k), "1e-05"), inputs, summed)


def layer_norm(k: int) -> Case:
    inputs = (Spec((T, k), F32), Spec((k,), F32), Spec((k,), F32))
    return Case("RowLayerNorm", ("t", str(k), "1e-05"), inputs)


def norm_quantize(k: int, g: int) -> Case:
    inputs = (Spec((T, k), F32), Spec((k,), F32))
    return Case("NormQuantizeRows", ("t", str(k), "1e-05", str(g)), inputs)


def rows_and_weight(k: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(k)
    sizes = 10.0 ** rng.integers(-4, 4, (9, 1))
    x = (rng.standard_normal((9, k)) * sizes).astype(np.float32)
    return x, rng.standard_normal(k, np.float32)


@pytest.mark.parametrize("k", WIDTHS)
def test_row_norm(k: int) -> None:
    x, weight = rows_and_weight(k)
    y = norm(k).run([weight, x], T9)
    wide = x.astype(np.float64)
    want = wide / np.sqrt((wide**2).mean(1, keepdims=True) + 1e-5) * weight
    np.testing.assert_allclose(y, want, rtol=2e-6)
    np.testing.assert_allclose(y, norm(k).meaning([weight, x], T9), rtol=2e-6)
    for threads in (1, 2, 3):
        for row in range(9):
            alone = norm(k).run([weight, x[row : row + 1]], {"t": 1}, threads)
            np.testing.assert_array_equal(alone[0], y[row])


@pytest.mark.parametrize("k", WIDTHS)
@pytest.mark.parametrize("added", [False, True])
def test_row_norm_of_a_sum_and_with_a_residual(k: int, added: bool) -> None:
    x, weight = rows_and_weight(k)
    rng = np.random.default_rng(1)
    other, residual = (rng.standard_normal((9, k), np.float32) for _ in range(2))
    want = norm(k).run([weight, x + other], T9) + (residual if added else np.float32(0))
    inputs = [weight, *([residual] if added else []), x, other]
    for threads in (1, 3):
        np.testing.assert_array_equal(norm_of_sum(k, added).run(inputs, T9, threads), want)
    meant = norm_of_sum(k, added).meaning(inputs, T9)
    np.testing.assert_allclose(want, meant, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("k", WIDTHS)
def test_row_layer_norm(k: int) -> None:
    x, weight = rows_and_weight(k)
    x += np.float32(3)
    bias = np.arange(k, dtype=np.float32)
    y = layer_norm(k).run([x, weight, bias], T9)
    wide = x.astype(np.float64)
    centred = wide - wide.mean(1, keepdims=True)
    want = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5) * weight + bias
    np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(
        y, layer_norm(k).meaning([x, weight, bias], T9), rtol=1e-4, atol=1e-3
    )
    for threads in (1, 2, 3):
        for row in range(9):
            alone = layer_norm(k).run([x[row : row + 1], weight, bias], {"t": 1}, threads)
            np.testing.assert_array_equal(alone[0], y[row])


@pytest.mark.parametrize("k", WIDTHS)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_row_norm_of_what_is_not_finite(k: int, bad: float) -> None:
    x, weight = rows_and_weight(k)
    clean = norm(k).run([weight, x], T9)
    x[4, k // 2] = bad
    y = norm(k).run([weight, x], T9)
    assert np.isnan(y[4, k // 2])
    assert np.isnan(y[4]).all() if np.isnan(bad) else True
    np.testing.assert_array_equal(np.delete(y, 4, 0), np.delete(clean, 4, 0))


def test_row_norm_of_zeros_is_zero() -> None:
    y = norm(64).run([np.ones(64, np.float32), np.zeros((9, 64), np.float32)], T9)
    assert not y.any()


@pytest.mark.parametrize(("k", "g"), NORM_GROUPS)
def test_norm_and_quantisation_have_the_bits_of_one_after_the_other(k: int, g: int) -> None:
    x, weight = rows_and_weight(k)
    quantize = Case("QuantizeRows", ("t", str(k), str(g)), (Spec((T, k), F32),))
    want = quantize.run([norm(k).run([weight, x], T9)], T9)
    for threads in (1, 2, 3):
        y = norm_quantize(k, g).run([x, weight], T9, threads)
        np.testing.assert_array_equal(y, want)
    meant = norm_quantize(k, g).meaning([x, weight], T9)
    codes = [rows[:, : 2 * k].copy().view(np.int16).astype(int) for rows in (want, meant)]
    assert np.abs(codes[0] - codes[1]).max() <= 2


# -- softmax -----------------------------------------------------------------------------------------------------------

SOFTMAXES: list[Shape] = [(T, 1), (T, 33), (3, T, 7), (T, 2, 64), (3, T)]


def softmax(shape: Shape) -> Case:
    return Case("RowSoftmax", (raw_shape(shape),), (Spec(shape, F32),), dense(0, shape))


def masked_softmax(heads: int, width: int) -> Case:
    """Of scores [heads, t, width] times 0.5, plus a mask [t, width]."""
    shape: Shape = (heads, T, width)
    mask = Expression("Load", F32, (), (1, View.contiguous((T, width)).insert(0, heads)))
    scaled = Expression("Mul", F32, (dense(0, shape), Expression("Const", F32, (), "0.5")))
    inputs = (Spec(shape, F32), Spec((T, width), F32))
    return Case("RowSoftmax", (raw_shape(shape),), inputs, Expression("Add", F32, (scaled, mask)))


def scores(shape: Shape) -> Array:
    rng = np.random.default_rng(len(shape))
    return (rng.standard_normal([evaluate(d, T9) for d in shape]) * 20).astype(np.float32)


@pytest.mark.parametrize("shape", SOFTMAXES, ids=str)
@pytest.mark.parametrize("threads", [1, 3])
def test_softmax(shape: Shape, threads: int) -> None:
    x = scores(shape)
    y = softmax(shape).run([x], T9, threads)
    wide = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True))
    np.testing.assert_allclose(y, wide / wide.sum(-1, keepdims=True), rtol=1e-5, atol=1e-30)
    np.testing.assert_allclose(y, softmax(shape).meaning([x], T9), rtol=1e-5, atol=1e-30)


@pytest.mark.parametrize("threads", [1, 3])
def test_softmax_of_scaled_and_masked_scores(threads: int) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 9, 13), np.float32)
    mask = np.where(rng.random((9, 13)) < 0.5, np.float32(-1e30), np.float32(0))
    mask[:, 3] = 0
    y = masked_softmax(2, 13).run([x, mask], T9, threads)
    wide = np.exp(x.astype(np.float64) * 0.5) * (mask == 0)
    np.testing.assert_allclose(y, wide / wide.sum(-1, keepdims=True), rtol=1e-5, atol=1e-30)
    meant = masked_softmax(2, 13).meaning([x, mask], T9)
    np.testing.assert_allclose(y, meant, rtol=1e-5, atol=1e-30)


def test_softmax_of_infinities_and_nan() -> None:
    x = np.zeros((9, 33), np.float32)
    x[0, 5] = np.nan
    x[1, 5] = np.inf
    x[2, 5] = -np.inf
    x[3] = -np.inf
    x[4] = 1e38
    x[5, 32] = np.nan
    y = softmax((T, 33)).run([x], T9)
    with np.errstate(all="ignore"):
        e = np.exp(x - x.max(-1, keepdims=True))
        want = e / e.sum(-1, keepdims=True)
    np.testing.assert_allclose(y, want, rtol=1e-5)


# -- rotary embedding ------------------------------------------------------------------------------------------------

ROTATIONS = [(1, 1, 2), (3, 4, 24), (2, 32, 200), (5, 5, 50)]
"""(heads, half of a head's width, elements of x a row, of which the heads are the first)."""


PAIRS = {"halves": 2, "neighbours": 3}  # the pair's axis


def rotate(pairs: str, heads: int, half: int, row: int) -> Case:
    table = Spec((T, half), F32)
    params = (pairs, "t", str(heads), str(half), str(row))
    return Case("RotateHeads", params, (Spec((T, row), F32), table, table))


@pytest.mark.parametrize(("heads", "half", "row"), ROTATIONS)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("pairs", PAIRS)
def test_rotation_is_that_of_complex_numbers(
    heads: int, half: int, row: int, threads: int, pairs: str
) -> None:
    rng = np.random.default_rng(half)
    x = rng.standard_normal((9, row), np.float32)
    angle = rng.uniform(-10, 10, (9, half))
    cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    case, axis = rotate(pairs, heads, half, row), PAIRS[pairs]
    y = case.run([x, cos, sin], T9, threads)
    split = (9, heads, 2, half) if axis == 2 else (9, heads, half, 2)
    real, imaginary = np.moveaxis(x[:, : heads * 2 * half].reshape(split), axis, 0)
    turned = (real.astype(np.float64) + 1j * imaginary) * np.exp(1j * angle)[:, None]
    want = np.stack([turned.real, turned.imag], axis)
    np.testing.assert_allclose(y, want, rtol=0, atol=2e-6)
    np.testing.assert_allclose(y, case.meaning([x, cos, sin], T9), rtol=0, atol=2e-6)


def test_walks_cover_what_views_can_do() -> None:
    kinds: dict[str, Callable[[View], bool]] = {
        "repeated": lambda v: any(s == 0 for axis in v.axes for _, s in axis),
        "reversed": lambda v: any(isinstance(s, int) and s < 0 for a in v.axes for _, s in a),
        "merged": lambda v: any(len(axis) > 1 for axis in v.axes),
        "offset": lambda v: v.offset != 0,
        "plain": lambda v: v.is_contiguous,
    }
    views = [w.view for i in INDEXED for w in (i.at, i.data, i.source)]
    for kind, holds in kinds.items():
        assert any(holds(view) for view in views), kind
