"""Product kernels in every weight format against their NumPy meaning and double precision.

`test_native_kernels` holds that tiles, threads and other rows change no bit; here the formats are many and odd, and the
bound on a quantised product is what rounding activations to 16 bits a group can make of it.
"""

from dataclasses import dataclass
from itertools import product

import kernels
import numpy as np
import pytest
from kernels import Case

from engine.compiler.dtype import DType
from engine.compiler.shape import symbol
from engine.ops.base import Array, Fold, Spec
from engine.ops.registry import all_ops

T = symbol("t")
UNIT = 2.0**-24
"""Relative rounding of one f32 operation."""
F16, F32 = DType.F16, DType.F32


def activations(t: int, k: int, seed: int = 0) -> Array:
    """Rows of very different sizes, so that one scale for all would be seen."""
    rng = np.random.default_rng(seed)
    sizes = 10.0 ** rng.integers(-3, 3, (t, 1))
    return (rng.standard_normal((t, k), np.float32) * sizes).astype(np.float32)


def silu(x: Array) -> Array:
    with np.errstate(over="ignore"):
        return np.asarray(x / (1 + np.exp(-x)))


def gelu(x: Array) -> Array:
    return np.asarray(0.5 * x * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3))))


UNITS = {"swiglu": silu, "geglu": gelu}


def folded(
    name: str, params: tuple[str, ...], specs: tuple[Spec, ...], *inputs: Array
) -> tuple[Spec, Array]:
    """What a fold makes at load."""
    op = all_ops()[name]
    assert isinstance(op, Fold)
    call = Case(name, params, specs).call
    return op.spec(call), op.meaning(call, {}, *inputs)


# -- group-quantised weights -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Quantised:
    """Weights [n, k] as a model holds them, k being three groups."""

    bits: int
    group: int
    scale_type: DType
    has_minimum: bool
    n: int

    def __str__(self) -> str:
        return f"{self.n}x3x{self.group} {self.bits}-bit {self.scale_type.value} {self.has_minimum}"

    @property
    def k(self) -> int:
        return 3 * self.group

    def parts(self, seed: int = 0) -> list[Array]:
        """(codes one a number, scale, perhaps minimum)."""
        rng = np.random.default_rng((seed, self.bits, self.group, self.n))
        low, high = (0, 16) if self.bits == 4 else (-128, 128)
        codes = rng.integers(low, high, (self.n, self.k)).astype(np.int16)
        numbers = rng.uniform(-0.1, 0.1, (2, self.n, 3)).astype(self.scale_type.numpy)
        return [codes, *numbers[: 1 + self.has_minimum]]

    def values(self, seed: int = 0) -> Array:
        """f64 [n, k] by the definition: code * scale + minimum."""
        codes, *numbers = (part.astype(np.float64) for part in self.parts(seed))
        wide = [np.repeat(x, self.group, axis=1) for x in numbers]
        return codes * wide[0] + (wide[1] if self.has_minimum else 0)

    def packed(self, seed: int = 0) -> tuple[Spec, Array]:
        codes, *numbers = self.parts(seed)
        if self.bits == 4:
            held = (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8)
        else:
            held = codes.astype(np.int8)
        specs = (
            Spec((self.n, self.k), DType.U4 if self.bits == 4 else DType.I8),
            *(Spec((self.n, 3), self.scale_type) for _ in numbers),
        )
        name = "PackAffine" if self.has_minimum else "PackScaled"
        return folded(name, (str(self.n), str(self.k), str(self.group)), specs, held, *numbers)

    @property
    def params(self) -> tuple[str, ...]:
        return ("t", str(self.n), str(self.k), str(self.group))

    def quantize(self) -> Case:
        params = ("t", str(self.k), str(self.group))
        return Case("QuantizeRows", params, (Spec((T, self.k), F32),))

    def rows(self, x: Array) -> Array:
        return self.quantize().run([x], {"t": len(x)})

    def matmul(self) -> Case:
        return Case("QuantMatmul", self.params, (self.quantize().spec, self.packed()[0]))

    def gate_up(self, kind: str = "swiglu") -> Case:
        weights = self.packed()[0]
        specs = (self.quantize().spec, weights, weights)
        return Case("QuantGateUp", (*self.params, kind), specs)

    def gather(self) -> Case:
        return Case("QuantGatherRows", self.params, (Spec((T,), DType.I32), self.packed()[0]))

    def room(self, x: Array) -> Array:
        """f64 [t, n]: how far off a product may be: half a step of 16 bits in every activation, and f32 sums."""
        groups = np.abs(x.astype(np.float64)).reshape(len(x), 3, self.group).max(-1)
        half_step = np.repeat(groups / 32767 / 2, self.group, axis=1)
        codes, *numbers = (np.abs(part.astype(np.float64)) for part in self.parts())
        wide = [np.repeat(number, self.group, axis=1) for number in numbers]
        size = codes * wide[0] + sum(wide[1:])
        in_f32 = 32 * UNIT * (np.abs(x) @ size.T)
        return np.asarray(1.01 * half_step @ np.abs(self.values()).T + in_f32 + 1e-30)


FORMATS = [
    Quantised(bits, group, F32 if group == 32 else F16, minimum, n)
    for (bits, minimum), (group, n) in product(
        product((4, 8), (False, True)), ((16, 21), (32, 8), (64, 3))
    )
]

GATED = FORMATS[::5]


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    """All cases of this file, compiled together."""
    kernels.prepare(
        [
            *(case for f in FORMATS for case in (f.quantize(), f.matmul(), f.gather())),
            *(f.gate_up(kind) for f in GATED for kind in UNITS),
            *(case for f in PACKED for case in (f.matmul(), f.gather(), f.biased())),
            *(f.gate_up(kind) for f in PACKED_GATED for kind in UNITS),
        ],
        "t",
    )


@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_quantised_rows_are_their_meaning(form: Quantised) -> None:
    x = activations(9, form.k)
    x[2] = 0
    found, meant = form.rows(x), form.quantize().meaning([x], {"t": 9})
    codes = (rows[:, : 2 * form.k].copy().view(np.int16).astype(int) for rows in (found, meant))
    numbers = (rows[:, 2 * form.k :].copy().view(np.float32) for rows in (found, meant))
    # x * (1 / scale) may fall on the other side of a tie than NumPy's.
    assert np.abs(next(codes) - next(codes)).max() <= 1
    np.testing.assert_allclose(next(numbers), next(numbers), rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_quantised_product(form: Quantised) -> None:
    x, (_, packed) = activations(5, form.k), form.packed()
    rows, dims = form.rows(x), {"t": 5}
    y = form.matmul().run([rows, packed], dims)
    assert np.all(np.abs(y - x.astype(np.float64) @ form.values().T) <= form.room(x))
    meant = form.matmul().meaning([rows, packed], dims)
    assert np.all(np.abs(y - meant) <= form.room(x))


@pytest.mark.parametrize("kind", UNITS)
@pytest.mark.parametrize("form", GATED, ids=str)
def test_quantised_gate_and_up(form: Quantised, kind: str) -> None:
    x = activations(5, form.k)
    x /= np.abs(x).max(1, keepdims=True)
    inputs = [form.rows(x), form.packed()[1], form.packed(seed=1)[1]]
    y = form.gate_up(kind).run(inputs, {"t": 5})
    left, right = (x.astype(np.float64) @ form.values(seed).T for seed in (0, 1))
    want = UNITS[kind](left) * right
    size = np.abs(want).max()
    np.testing.assert_allclose(y, want, rtol=1e-3, atol=1e-3 * size)
    meant = form.gate_up(kind).meaning(inputs, {"t": 5})
    np.testing.assert_allclose(y, meant, rtol=1e-4, atol=1e-4 * size)


@pytest.mark.parametrize("form", GATED, ids=str)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_passes_the_gate_and_stays_in_its_row(
    form: Quantised, bad: float
) -> None:
    x, (_, packed) = activations(3, form.k), form.packed()
    x[1, form.k // 2] = bad
    y = form.gate_up().run([form.rows(x), packed, packed], {"t": 3})
    assert not np.isfinite(y[1]).any()
    assert np.isfinite(y[[0, 2]]).all()


@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_rows_of_a_quantised_table(form: Quantised) -> None:
    indexes = np.array([form.n - 1, 0, form.n // 2, -7, 10**6], np.int32)
    inputs, dims = [indexes, form.packed()[1]], {"t": 5}
    y = form.gather().run(inputs, dims)
    want = form.values()[np.clip(indexes, 0, form.n - 1)]
    np.testing.assert_allclose(y, want, rtol=4 * UNIT, atol=32 * UNIT)
    np.testing.assert_array_equal(y, form.gather().meaning(inputs, dims))


@pytest.mark.parametrize("form", FORMATS[::3], ids=str)
def test_subnormal_and_huge_activations(form: Quantised) -> None:
    x, (_, packed) = np.zeros((4, form.k), np.float32), form.packed()
    x[0], x[1], x[2, 3], x[3] = 1e-42, 1e-36, 1e-38, 1e36
    y = form.matmul().run([form.rows(x), packed], {"t": 4})
    want = x.astype(np.float64) @ form.values().T
    assert np.all(np.abs(y[:3] - want[:3]) <= 1e-30)
    np.testing.assert_allclose(y[3], want[3], rtol=1e-3, atol=1e33)


# -- float weights ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Packed:
    """Float weights [n, k] in one type."""

    dtype: DType
    n: int
    k: int

    def __str__(self) -> str:
        return f"{self.n}x{self.k} {self.dtype.value}"

    def weights(self, seed: int = 0) -> Array:
        rng = np.random.default_rng((seed, self.n, self.k))
        return rng.standard_normal((self.n, self.k), np.float32).astype(self.dtype.numpy)

    def packed(self, seed: int = 0) -> tuple[Spec, Array]:
        spec = Spec((self.n, self.k), self.dtype)
        return folded("PackRows", (str(self.k),), (spec,), self.weights(seed))

    def _case(self, name: str, *inputs: Spec, params: tuple[str, ...] = ()) -> Case:
        specs = (Spec((T, self.k), F32), self.packed()[0], *inputs)
        return Case(name, ("t", str(self.n), str(self.k), *params), specs)

    def matmul(self) -> Case:
        return self._case("PackedMatmul")

    def biased(self) -> Case:
        return self._case("PackedMatmulBias", Spec((self.n,), F32))

    def gate_up(self, kind: str = "swiglu") -> Case:
        return self._case("PackedGateUp", self.packed()[0], params=(kind,))

    def gather(self) -> Case:
        inputs = (Spec((T,), DType.I32), self.packed()[0])
        return Case("PackedGatherRows", ("t", str(self.k)), inputs)


PACKED = [
    Packed(dtype, n, k) for dtype in (F32, F16, DType.BF16) for n, k in ((21, 13), (43, 28), (3, 1))
]
PACKED_GATED = PACKED[::4]


@pytest.mark.parametrize("form", PACKED, ids=str)
def test_float_product_is_its_meaning(form: Packed) -> None:
    x, (_, packed) = activations(7, form.k), form.packed()
    y, dims = form.matmul().run([x, packed], {"t": 7}), {"t": 7}
    wide, w = x.astype(np.float64), form.weights().astype(np.float64)
    room = form.k * UNIT * (np.abs(wide) @ np.abs(w).T)
    assert np.all(np.abs(y - wide @ w.T) <= room)
    assert np.all(np.abs(y - form.matmul().meaning([x, packed], dims)) <= 2 * room)


@pytest.mark.parametrize("form", PACKED[::4], ids=str)
def test_a_bias_is_added_to_each_row(form: Packed) -> None:
    x, bias = activations(7, form.k), np.arange(form.n, dtype=np.float32)
    plain = form.matmul().run([x, form.packed()[1]], {"t": 7})
    y = form.biased().run([x, form.packed()[1], bias], {"t": 7})
    np.testing.assert_array_equal(y, plain + bias)
    meaning = form.biased().meaning([x, form.packed()[1], bias], {"t": 7})
    np.testing.assert_allclose(y, meaning, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", UNITS)
@pytest.mark.parametrize("form", PACKED_GATED, ids=str)
def test_float_gate_and_up_is_its_meaning(form: Packed, kind: str) -> None:
    x = activations(7, form.k)
    x /= np.abs(x).max(1, keepdims=True)
    inputs = [x, form.packed()[1], form.packed(seed=1)[1]]
    y = form.gate_up(kind).run(inputs, {"t": 7})
    left, right = (x.astype(np.float64) @ form.weights(s).astype(np.float64).T for s in (0, 1))
    np.testing.assert_allclose(y, UNITS[kind](left) * right, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        y, form.gate_up(kind).meaning(inputs, {"t": 7}), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("form", PACKED, ids=str)
def test_rows_of_a_float_table(form: Packed) -> None:
    indexes = np.array([form.n - 1, 0, form.n // 2, -7], np.int32)
    inputs, dims = [indexes, form.packed()[1]], {"t": 4}
    y = form.gather().run(inputs, dims)
    want = form.weights()[np.clip(indexes, 0, None)].astype(np.float32)
    np.testing.assert_array_equal(y, want)
    np.testing.assert_array_equal(y, form.gather().meaning(inputs, dims))


@pytest.mark.parametrize("form", PACKED, ids=str)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_stays_in_its_row(form: Packed, bad: float) -> None:
    x, (_, packed) = activations(5, form.k), form.packed()
    clean = form.matmul().run([x, packed], {"t": 5})
    x[1, -1] = bad
    y = form.matmul().run([x, packed], {"t": 5})
    assert not np.isfinite(y[1]).any()
    np.testing.assert_array_equal(np.delete(y, 1, 0), np.delete(clean, 1, 0))
