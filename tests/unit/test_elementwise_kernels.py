"""Kernels that evaluate expressions (Fused, Reduce, ScatterRows) on random trees read through random views.

Each tree is also evaluated in double precision together with a bound on what rounding to its type can have changed (a
running error analysis: Higham, Accuracy and Stability of Numerical Algorithms, section 3.3), with NumPy's own indexing
in place of views.
"""

from dataclasses import dataclass, field
from math import prod

import kernels
import numpy as np
import pytest
from kernels import Case
from random_views import DIMS, random_shape, random_walk, raw_shape

from engine.compiler.dtype import DType
from engine.compiler.shape import Shape, View, evaluate, symbol
from engine.ops.base import Array, Spec
from engine.ops.expression import Expression

F32, F16, BF16, I32, I64, BOOL = (
    DType.F32,
    DType.F16,
    DType.BF16,
    DType.I32,
    DType.I64,
    DType.BOOL,
)
UNIT = {F32: 2.0**-24, F16: 2.0**-11, BF16: 2.0**-8, I32: 0.0, I64: 0.0, BOOL: 0.0}
"""Relative rounding of one operation in a type."""
FLOATS = (F32, F16, BF16)


@dataclass
class Tree:
    """A random expression over a shape, with the data of its leaves and its exact value."""

    shape: Shape
    rng: np.random.Generator
    specs: list[Spec] = field(default_factory=list)
    arrays: list[Array] = field(default_factory=list)

    def load(self, dtype: DType) -> tuple[Expression, Array, Array]:
        """(expression, value, error bound); here and below."""
        walk = random_walk(self.rng, self.shape)
        if dtype is I32 and self.rng.random() < 0.3:
            return Expression("Iota", I32, (), walk.view), walk.places.astype(np.float64), zero()
        if dtype.is_float:
            numbers = self.rng.uniform(-2, 2, walk.size)
        else:
            numbers = self.rng.integers(0, 2 if dtype is BOOL else 9, walk.size).astype(float)
        array = numbers.astype(dtype.numpy)
        self.specs.append(Spec(walk.shape, dtype))
        self.arrays.append(array)
        leaf = Expression("Load", dtype, (), (len(self.specs) - 1, walk.view))
        return leaf, array.astype(np.float64)[walk.places], zero()

    def grow(self, dtype: DType, depth: int) -> tuple[Expression, Array, Array]:
        if depth == 0:
            return self.load(dtype)
        roll = self.rng.random()
        if roll < 0.1:
            number = int(self.rng.integers(0, 2) if dtype is BOOL else self.rng.integers(-3, 5))
            value = float(number) if dtype.is_float else number
            text = repr(value) if dtype.is_float else str(value)
            return Expression("Const", dtype, (), text), np.asarray(float(value)), zero()
        if dtype is BOOL:
            return self.compare(depth)
        if roll < 0.3:
            return self.cast(dtype, depth)
        if roll < 0.6 and dtype.is_float:
            return self.unary(dtype, depth)
        return self.binary(dtype, depth)

    def unary(self, dtype: DType, depth: int) -> tuple[Expression, Array, Array]:
        e, x, error = self.grow(dtype, depth - 1)
        match self.rng.choice(["Sin", "Exp2", "Sqrt", "Recip"]):
            case "Sin":
                return rounded(Expression("Sin", dtype, (e,)), np.sin(x), error)
            case "Exp2":  # of a sine, so that nothing overflows
                e, x, error = rounded(Expression("Sin", dtype, (e,)), np.sin(x), error)
                y = np.exp2(x)
                return rounded(Expression("Exp2", dtype, (e,)), y, y * np.expm1(error))
            case "Sqrt":  # of 1 or more
                e, x, error = self.above_one(e, x, error)
                return rounded(Expression("Sqrt", dtype, (e,)), np.sqrt(x), error)
            case _:
                e, x, error = self.above_one(e, x, error)
                return rounded(Expression("Recip", dtype, (e,)), 1 / x, 2 * error)

    @staticmethod
    def above_one(e: Expression, x: Array, error: Array) -> tuple[Expression, Array, Array]:
        squared = rounded(
            Expression("Mul", e.dtype, (e, e)), x * x, 2 * np.abs(x) * error + error**2
        )
        one = Expression("Const", e.dtype, (), "1.0")
        plus = Expression("Add", e.dtype, (one, squared[0]))
        return rounded(plus, 1 + squared[1], squared[2])

    def binary(self, dtype: DType, depth: int) -> tuple[Expression, Array, Array]:
        (a, x, dx), (b, y, dy) = self.grow(dtype, depth - 1), self.grow(dtype, depth - 1)
        if not dtype.is_float and self.rng.random() < 0.3:
            return (
                Expression("Mod", dtype, (a, Expression("Const", dtype, (), "7"))),
                np.fmod(x, 7),
                zero(),
            )
        if self.rng.random() < 0.5:
            return rounded(Expression("Add", dtype, (a, b)), x + y, dx + dy)
        error = np.abs(x) * dy + np.abs(y) * dx + dx * dy
        return rounded(Expression("Mul", dtype, (a, b)), x * y, error)

    def cast(self, dtype: DType, depth: int) -> tuple[Expression, Array, Array]:
        # From an inexact float to an integer or a truth value there may be a jump: only exact ones go there.
        sources = [*FLOATS, I32, BOOL] if dtype.is_float else [I32, BOOL]
        source = sources[self.rng.integers(len(sources))]
        e, x, error = self.grow(source, depth - 1)
        return rounded(Expression("Cast", dtype, (e,)), x, error)

    def compare(self, depth: int) -> tuple[Expression, Array, Array]:
        (a, x, _), (b, y, _) = self.grow(I32, depth - 1), self.grow(I32, depth - 1)
        return Expression("LessThan", BOOL, (a, b)), (x < y).astype(np.float64), zero()


def zero() -> Array:
    return np.zeros(())


def rounded(e: Expression, value: Array, error: Array) -> tuple[Expression, Array, Array]:
    """With what rounding the result to its type adds; functions are good to 2 units in the last place."""
    ulps = 4 if e.op in ("Sin", "Exp2") else 2
    return (
        e,
        value,
        error + ulps * UNIT[e.dtype] * (np.abs(value) + error) + (1e-7 if e.dtype is F16 else 0),
    )


def fused(seed: int) -> tuple[Case, list[Array], Array, Array]:
    rng = np.random.default_rng(seed)
    tree = Tree(random_shape(rng), rng)
    dtype = [F32, F32, F32, F16, BF16, I32, I64, BOOL][seed % 8]
    e, value, error = tree.grow(dtype, int(rng.integers(1, 4)))
    case = Case("Fused", (raw_shape(tree.shape),), tuple(tree.specs), e)
    return case, tree.arrays, value, error


def reduced(seed: int) -> tuple[Case, list[Array], Array, Array]:
    rng = np.random.default_rng(seed)
    tree = Tree((*random_shape(rng, int(rng.integers(0, 3))), int(rng.choice([1, 6, 7, 40]))), rng)
    dtype, kind = [F32, F32, F16, BF16, I32][seed % 5], ["Sum", "Max"][seed // 5 % 2]
    e, value, error = tree.grow(dtype, int(rng.integers(0, 3)))
    shape, size = tree.shape[:-1], tree.shape[-1]
    case = Case("Reduce", (kind, raw_shape(shape), str(size)), tuple(tree.specs), e)
    full = [evaluate(d, DIMS) for d in tree.shape]
    value, error = np.broadcast_to(value, full), np.broadcast_to(error, full)
    if kind == "Sum":
        total = value.sum(-1)
        return (
            case,
            tree.arrays,
            total,
            error.sum(-1) + UNIT[dtype] * 2 * np.abs(total) + 1e-7 * np.abs(value).sum(-1),
        )
    return case, tree.arrays, value.max(-1), error.max(-1)


FUSED = [fused(seed) for seed in range(96)]
REDUCED = [reduced(seed) for seed in range(100, 140)]


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    scatters = [s.case for s in SCATTERS]
    kernels.prepare([*(case for case, *_ in (*FUSED, *REDUCED)), *scatters], *DIMS)
    kernels.prepare(
        [*(primitive(*p) for p in PRIMITIVES), *(reduction(*r) for r in REDUCTIONS)], "n"
    )


@pytest.mark.parametrize("at", range(len(FUSED)))
@pytest.mark.parametrize("threads", [1, 3])
def test_fused_region(at: int, threads: int) -> None:
    check(*FUSED[at], threads)


@pytest.mark.parametrize("at", range(len(REDUCED)))
@pytest.mark.parametrize("threads", [1, 3])
def test_reduction(at: int, threads: int) -> None:
    check(*REDUCED[at], threads)


def check(case: Case, inputs: list[Array], value: Array, error: Array, threads: int) -> None:
    y = case.run(inputs, DIMS, threads).astype(np.float64)
    assert case.expression is not None
    assert np.all(np.abs(y - value) <= error), str(case.expression)
    meant = case.meaning(inputs, DIMS).astype(np.float64)
    assert np.all(
        np.abs(meant - value)
        <= error + bool(case.name == "Reduce") * 64 * UNIT[case.spec.dtype] * (1 + np.abs(value))
    ), str(case.expression)


# -- the edges of types ----------------------------------------------------------------------------------------------


N = symbol("n")
PRIMITIVES = [
    *(
        ("Cast", target, F32, 1)
        for target in (F16, BF16, DType.F8E4M3, DType.F8E5M2, BOOL, I32, I64)
    ),
    *(("Cast", F32, source, 1) for source in (F16, BF16, DType.F8E4M3, DType.F8E5M2)),
    *((op, F32, F32, 1) for op in ("Log2", "Exp2", "Sin", "Sqrt", "Recip")),
    *((op, F32, F32, 2) for op in ("Add", "Mul", "Mod")),
    ("LessThan", BOOL, F32, 2),
    *((op, dtype, dtype, 2) for op in ("Add", "Mul", "Mod") for dtype in (I32, I64)),
]


def primitive(op: str, result: DType, held: DType, arity: int) -> Case:
    """One primitive as a fused region over whole arrays."""
    leaves = tuple(Expression("Load", held, (), (i, View.contiguous((N,)))) for i in range(arity))
    specs = (Spec((N,), held),) * arity
    return Case("Fused", (raw_shape((N,)),), specs, Expression(op, result, leaves))


def elementwise(op: str, result: DType, *inputs: Array) -> Array:
    case = primitive(op, result, DType.of(inputs[0].dtype), len(inputs))
    return case.run(list(inputs), {"n": inputs[0].size})


EDGES = np.array(
    [0.0, -0.0, 1.5, -1.5, 3e38, -3e38, 1e-40, np.inf, -np.inf, np.nan, 65504, 65520, 70000, 2.5],
    np.float32,
)


@pytest.mark.parametrize("target", [F16, BF16, DType.F8E4M3, DType.F8E5M2])
def test_casts_round_to_nearest_even(target: DType) -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate(
        [EDGES, (rng.standard_normal(5000) * 10.0 ** rng.integers(-8, 6, 5000)).astype(np.float32)]
    )
    # Every number that the type has and the middle between it and the next.
    numbers = np.arange(1 << target.bits).astype(f"u{target.bits // 8}").view(target.numpy)
    held = np.unique(numbers.astype(np.float32))
    held = held[np.isfinite(held)]
    x = np.concatenate([x, held, held[1:] / 2 + held[:-1] / 2])
    with np.errstate(all="ignore"):
        want = x.astype(target.numpy)
    found = elementwise("Cast", target, x)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(want))
    kept, bits = ~np.isnan(want), f"u{target.bits // 8}"
    np.testing.assert_array_equal(found[kept].view(bits), want[kept].view(bits))


@pytest.mark.parametrize("source", [F16, BF16, DType.F8E4M3, DType.F8E5M2])
def test_every_narrow_float_is_read_exactly(source: DType) -> None:
    bits = np.arange(1 << source.bits, dtype=f"u{source.bits // 8}")
    x = bits.view(source.numpy)
    found = elementwise("Cast", F32, x)
    np.testing.assert_array_equal(found, x.astype(np.float32))


def test_truth_of_numbers() -> None:
    np.testing.assert_array_equal(elementwise("Cast", BOOL, EDGES), EDGES != 0)


def test_floats_truncate_to_integers() -> None:
    x = np.array([0.0, 0.9, -0.9, 1.5, -1.5, 2e9, -2e9, 1e5], np.float32)
    np.testing.assert_array_equal(elementwise("Cast", I32, x), x.astype(np.int32))
    wide = np.array([3e9, -3e12, 1.5], np.float32)
    np.testing.assert_array_equal(elementwise("Cast", I64, wide), wide.astype(np.int64))


def test_packed_nibbles_are_read() -> None:
    packed = np.arange(256, dtype=np.uint8)
    view = View.contiguous((512,)).flip(0)
    case = Case(
        "Fused",
        (raw_shape((512,)),),
        (Spec((512,), DType.U4),),
        Expression("Cast", F32, (Expression("Load", DType.U4, (), (0, view)),)),
    )
    want = np.stack([packed & 15, packed >> 4], axis=1).reshape(-1)[::-1]
    np.testing.assert_array_equal(case.run([packed]), want)
    np.testing.assert_array_equal(case.meaning([packed]), want)


@pytest.mark.parametrize("op", ["Log2", "Exp2", "Sin", "Sqrt", "Recip"])
def test_unary_functions_over_their_range(op: str) -> None:
    rng = np.random.default_rng(0)
    size = 1e-30 if op == "Exp2" else 1.0
    x = np.concatenate(
        [
            EDGES,
            (rng.standard_normal(4000) * 10.0 ** rng.integers(-3, 3, 4000)).astype(np.float32),
            np.linspace(-152, 130, 4000, dtype=np.float32),
        ]
    )
    exact = {
        "Log2": np.log2,
        "Exp2": np.exp2,
        "Sin": np.sin,
        "Sqrt": np.sqrt,
        "Recip": np.reciprocal,
    }
    with np.errstate(all="ignore"):
        want = exact[op](x.astype(np.float64)).astype(np.float32)
    np.testing.assert_allclose(elementwise(op, F32, x), want, rtol=3e-7, atol=size * 1e-7)


@pytest.mark.parametrize("op", ["Add", "Mul", "Mod", "LessThan"])
def test_binary_operations_on_the_edges(op: str) -> None:
    a, b = (x.reshape(-1).copy() for x in np.meshgrid(EDGES, EDGES))
    exact = {"Add": np.add, "Mul": np.multiply, "Mod": np.fmod, "LessThan": np.less}
    with np.errstate(all="ignore"):
        want = exact[op](a, b)
    np.testing.assert_array_equal(elementwise(op, BOOL if op == "LessThan" else F32, a, b), want)


@pytest.mark.parametrize("dtype", [I32, I64])
def test_integer_remainder_has_the_dividend_s_sign_and_survives_zero(dtype: DType) -> None:
    numbers = np.array([0, 1, -1, 7, -7, 3, -3, np.iinfo(dtype.numpy).min], dtype.numpy)
    a, b = (x.reshape(-1).copy() for x in np.meshgrid(numbers, numbers))
    found = elementwise("Mod", dtype, a, b)
    for x, y, z in zip(a.tolist(), b.tolist(), found.tolist(), strict=True):
        assert z == (abs(x) % abs(y) * (1 if x >= 0 else -1) if y else 0)


def test_integers_keep_values_that_floats_do_not() -> None:
    a = np.array([2**24 + 1, 2**30, -(2**30)], np.int32)
    np.testing.assert_array_equal(elementwise("Add", I32, a, np.ones(3, np.int32)), a + 1)
    b = np.array([2**40 + 1, 3, -(2**52)], np.int64)
    np.testing.assert_array_equal(elementwise("Mul", I64, b, b[::-1].copy()), b * b[::-1])


# -- reductions at the edges -----------------------------------------------------------------------------------------


REDUCTIONS = [(kind, dtype, k) for kind in ("Sum", "Max") for dtype, k in ((F32, 3), (I32, 9))]
REDUCTIONS.append(("Sum", F32, 100_000))


def reduction(kind: str, dtype: DType, k: int) -> Case:
    leaf = Expression("Load", dtype, (), (0, View.contiguous((N, k))))
    return Case("Reduce", (kind, raw_shape((N,)), str(k)), (Spec((N, k), dtype),), leaf)


def reduce(kind: str, x: Array) -> Array:
    case = reduction(kind, DType.of(x.dtype), x.shape[1])
    y, dims = case.run([x], {"n": len(x)}), {"n": len(x)}
    np.testing.assert_allclose(y, case.meaning([x], dims), rtol=1e-4)
    return y


def test_reductions_of_what_is_not_finite() -> None:
    x = np.array(
        [[1, np.nan, 3], [1, np.inf, -2], [-np.inf, -np.inf, -np.inf], [-1, -2, -3]], np.float32
    )
    np.testing.assert_array_equal(reduce("Max", x), [np.nan, np.inf, -np.inf, -1])
    np.testing.assert_array_equal(reduce("Sum", x), [np.nan, np.inf, -np.inf, -6])


def test_integer_reductions_are_exact() -> None:
    x = np.random.default_rng(0).integers(-(2**26), 2**26, (3, 9)).astype(np.int32)
    np.testing.assert_array_equal(reduce("Sum", x), x.sum(-1))
    np.testing.assert_array_equal(reduce("Max", x), x.max(-1))


def test_a_long_sum_loses_nothing() -> None:
    x = np.full((2, 100_000), 0.1, np.float32)
    np.testing.assert_allclose(reduce("Sum", x), x.astype(np.float64).sum(-1), rtol=1e-7)


# -- scatter of rows in place ----------------------------------------------------------------------------------------

T = symbol("t")


@dataclass
class RowScatter:
    """An expression over [t, ...] written to rows of a table of 11."""

    seed: int

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        inner: Shape = ((3,), (2, 6), (6, 2), (1, 7))[self.seed % 4]
        self.tree = Tree((T, *inner), rng)
        self.dtype = [F16, F32, BF16, I32][self.seed % 4]
        self.expression, self.value, self.error = self.tree.grow(self.dtype, self.seed % 3)
        self.width = prod(evaluate(d, {}) for d in inner)

    @property
    def case(self) -> Case:
        specs = (Spec((11, self.width), self.dtype), Spec((T,), I32), *self.tree.specs)
        return Case(
            "ScatterRows", (str(self.width), raw_shape(self.tree.shape)), specs, self.expression
        )


SCATTERS = [RowScatter(seed) for seed in range(16)]


@pytest.mark.parametrize("at", range(len(SCATTERS)))
@pytest.mark.parametrize("threads", [1, 3])
def test_rows_are_scattered_in_place(at: int, threads: int) -> None:
    s = SCATTERS[at]
    data = np.arange(11 * s.width).reshape(11, s.width).astype(s.dtype.numpy)
    rows = np.array([4, -1, 0, 11, 10], np.int32)
    inputs = [data, rows, *s.tree.arrays]
    y = s.case.run(inputs, DIMS, threads)
    full = [evaluate(d, DIMS) for d in s.tree.shape]
    value, error = (np.broadcast_to(x, full).reshape(5, s.width) for x in (s.value, s.error))
    for token, row in enumerate(rows):
        if 0 <= row < 11:
            assert np.all(np.abs(y[row].astype(np.float64) - value[token]) <= error[token])
    untouched = [row for row in range(11) if row not in rows]
    np.testing.assert_array_equal(y[untouched], data[untouched])
    meant = s.case.meaning(inputs, DIMS).astype(np.float64)
    np.testing.assert_allclose(
        y.astype(np.float64), meant, rtol=64 * UNIT[s.dtype], atol=64 * UNIT[s.dtype]
    )
