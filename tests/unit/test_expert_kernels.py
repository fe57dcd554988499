"""Kernels of mixtures of experts against one pair at a time in double precision."""

from dataclasses import dataclass

import kernels
import numpy as np
import pytest
from kernels import Case
from test_product_kernels import F16, F32, UNITS, Quantised, activations, folded

from engine.compiler.dtype import DType
from engine.compiler.shape import symbol
from engine.ops.base import Array, Spec

PAIRS = symbol("pairs")
I32 = DType.I32
EXPERTS = 5
SIZES = (1, 2, 3, 13, 150)


def drawn(pairs: int, seed: int = 0) -> Array:
    """Experts of pairs, some far more often than others; one that does not exist stands for the nearest."""
    rng = np.random.default_rng((seed, pairs))
    experts = rng.choice(EXPERTS, pairs, p=[0.02, 0.1, 0.2, 0.6, 0.08]).astype(np.int32)
    if pairs > 2:
        experts[1:3] = -1, EXPERTS
    return experts


def group(experts: Array) -> tuple[Array, Array]:
    """(groups as the kernel makes them, order of the pairs)."""
    specs = (Spec((PAIRS,), I32), Spec((PAIRS,), I32))
    order = experts.argsort(kind="stable").astype(np.int32)
    case = Case("GroupPairs", ("pairs",), specs)
    return case.run([order, experts], {"pairs": len(experts)}), order


@pytest.mark.parametrize("pairs", SIZES)
def test_groups(pairs: int) -> None:
    experts = drawn(pairs)
    groups, order = group(experts)
    found, counts = np.unique(experts, return_counts=True)
    want = np.zeros(4 * pairs + 2, np.int32)
    want[:pairs], want[pairs : 2 * pairs] = order, order.argsort()
    want[2 * pairs : 2 * pairs + len(found) + 1] = [0, *counts.cumsum()]
    want[3 * pairs + 1 : 3 * pairs + 1 + len(found)] = found
    want[-1] = len(found)
    np.testing.assert_array_equal(groups, want)


@pytest.mark.parametrize(("t", "k", "width"), [(1, 1, 1), (1, 4, 9), (7, 2, 16), (40, 3, 33)])
def test_rows_there_and_back(t: int, k: int, width: int) -> None:
    rng = np.random.default_rng(width)
    groups, order = group(drawn(t * k))
    x = rng.standard_normal((t, width), np.float32)
    weights = rng.standard_normal((t, k), np.float32)
    of_groups = Spec((4 * symbol("t") * k + 2,), I32)
    rows = Case("PairRows", ("t", str(k)), (Spec((symbol("t"), width), F32), of_groups))
    found = rows.run([x, groups], {"t": t})
    np.testing.assert_array_equal(found, x[order // k])
    specs = (
        Spec((symbol("t") * k, width), F32),
        Spec((symbol("t"), k), F32),
        of_groups,
    )
    combine = Case("CombinePairs", ("t", str(k), str(width)), specs)
    total = combine.run([found, weights, groups], {"t": t})
    want = x.astype(np.float64) * weights.astype(np.float64).sum(1, keepdims=True)
    np.testing.assert_allclose(total, want, atol=1e-5)


# -- products --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Weights:
    """Packed weights of all experts, [n, k] each, with their values in f64 [experts, n, k]."""

    n: int
    k: int
    group: int  # 0: floats
    dtype: DType = F32
    bits: int = 4

    def __str__(self) -> str:
        return f"{self.n}x{self.k} {f'{self.bits} bits' if self.group else self.dtype.value}"

    def make(self, seed: int) -> tuple[Spec, Array, Array]:
        if self.group:
            held = Quantised(self.bits, self.group, F16, self.bits == 4, EXPERTS * self.n)
            return *held.packed(seed), held.values(seed).reshape(EXPERTS, self.n, self.k)
        rng = np.random.default_rng(seed)
        w = rng.standard_normal((EXPERTS * self.n, self.k)).astype(self.dtype.numpy)
        packed = folded("PackRows", (str(self.k),), (Spec(w.shape, self.dtype),), w)
        return *packed, w.astype(np.float64).reshape(EXPERTS, self.n, self.k)

    def case(self, unit: str) -> Case:
        kind = "Quant" if self.group else "Packed"
        sizes = ("pairs", str(self.n), str(self.k), *([str(self.group)] if self.group else []))
        specs = (self._rows(), *[self.make(0)[0]] * (2 if unit else 1), Spec((4 * PAIRS + 2,), I32))
        if unit:
            return Case(f"{kind}ExpertGateUp", (*sizes, unit), specs)
        return Case(f"{kind}ExpertMatmul", sizes, specs)

    def _rows(self) -> Spec:
        return self.quantize().spec if self.group else Spec((PAIRS, self.k), F32)

    def quantize(self) -> Case:
        params = ("pairs", str(self.k), str(self.group))
        return Case("QuantizeRows", params, (Spec((PAIRS, self.k), F32),))


WEIGHTS = (
    *(Weights(n, 9, 0, dtype) for n in (8, 24) for dtype in (F32, F16, DType.BF16)),
    Weights(8, 96, 32),
    Weights(40, 96, 32),
    Weights(24, 48, 16, bits=8),
)
UNIT_NAMES = ("", *UNITS)


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    cases = [w.case(unit) for w in WEIGHTS for unit in UNIT_NAMES]
    variants = [
        Case(c.name, c.params, c.inputs, variant=v)
        for c in cases
        for v in range(len(c.op.variants))
    ]
    kernels.prepare([*variants, *(w.quantize() for w in WEIGHTS if w.group)], "pairs")


@pytest.mark.parametrize("unit", UNIT_NAMES)
@pytest.mark.parametrize("weights", WEIGHTS, ids=str)
def test_products(weights: Weights, unit: str) -> None:
    made = [weights.make(seed) for seed in (0, 1)][: 2 if unit else 1]
    for pairs in SIZES:
        experts, dims = drawn(pairs), {"pairs": pairs}
        groups, order = group(experts)
        x = activations(pairs, weights.k, pairs)
        rows = weights.quantize().run([x], dims) if weights.group else x
        own = np.clip(experts[order], 0, EXPERTS - 1)
        products = [
            np.einsum("pk,pnk->pn", x.astype(np.float64), values[own]) for *_, values in made
        ]
        sizes = [
            np.einsum("pk,pnk->pn", np.abs(x).astype(np.float64), np.abs(values[own]))
            for *_, values in made
        ]
        want = UNITS[unit](products[0]) * products[1] if unit else products[0]
        bound = sizes[0] * (2e-4 if weights.group else 1e-5)
        if unit:
            bound = bound * (1 + np.abs(products[1])) + sizes[1] * 2e-4 * (1 + np.abs(products[0]))
        case = weights.case(unit)
        inputs = [rows, *(packed for _, packed, _ in made), groups]
        first = case.run(inputs, dims)
        assert (np.abs(first - want) <= bound + 1e-6).all()
        assert (np.abs(case.meaning(inputs, dims) - want) <= bound + 1e-6).all()
        for variant in range(1, len(case.op.variants)):
            other = Case(case.name, case.params, case.inputs, variant=variant)
            np.testing.assert_array_equal(other.run(inputs, dims, threads=1), first)
