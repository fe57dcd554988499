"""Which kernels the rules find in graphs of primitives, and not in graphs that only look like theirs."""

from collections.abc import Callable

import pytest

from engine.compiler import nn
from engine.compiler.arithmetic import LOG2_E
from engine.compiler.dtype import DType
from engine.compiler.graph import Graph
from engine.compiler.regions import partition
from engine.compiler.shape import symbol
from engine.compiler.space import explore
from engine.compiler.tensor import Tensor
from engine.ops.registry import native_ops

F32, F16, BF16, I32, I8, U4, U8 = (
    DType.F32,
    DType.F16,
    DType.BF16,
    DType.I32,
    DType.I8,
    DType.U4,
    DType.U8,
)
K, N = 64, 24


class Builder:
    """Inputs of the graphs below."""

    def __init__(self) -> None:
        self.graph = Graph()

    def x(self, *shape: object, dtype: DType = F32) -> Tensor:
        return self.graph.tensor(shape or ("t", K), dtype)

    def weight(self, *shape: object, dtype: DType = F32) -> Tensor:
        return self.graph.tensor(shape, dtype).persist()

    def quantised(
        self,
        bits: int = 4,
        group: int = 32,
        minimum: bool = True,
        scales: DType = F16,
        n: int = N,
        k: int = K,
    ) -> Tensor:
        codes = self.weight(n, k, dtype=U4 if bits == 4 else I8)
        scale = self.weight(n, k // group, dtype=scales)
        low = self.weight(n, k // group, dtype=scales) if minimum else None
        return nn.dequantize(codes, scale, low)


Build = Callable[[Builder], Tensor]


def found(build: Build) -> set[str]:
    """Ops in the native runtime's search space of a graph."""
    b = Builder()
    build(b).output()
    regions = [explore(region, b.graph, native_ops()) for region in partition(b.graph)]
    assert all(region.classes[root] for region in regions for root in region.roots)
    return {node.op for region in regions for nodes in region.classes for node in nodes}


# -- what is found --------------------------------------------------------------------------------------------------


def norm(
    b: Builder,
    order: int = 0,
    inverse: float = 1 / K,
    axis: int = 1,
    other: bool = False,
    root: bool = True,
    weight_axis: int = 0,
    shape: tuple[object, ...] = ("t", K),
) -> Tensor:
    """RMSNorm with its operands in one of 8 orders, or with something wrong in it."""
    x, w = b.x(*shape), b.weight(K)
    squares = (x * (b.x(*shape) if other else x)).sum(axis)
    constant = b.graph.constant
    mean = constant(inverse) * squares if order & 1 else squares * inverse
    total = constant(1e-5) + mean if order & 2 else mean + 1e-5
    scale = (total.sqrt() if root else total).recip()
    wide = scale.expand(1 if axis == 1 else 0, x.shape[axis])
    scaled = wide * x if order & 4 else x * wide
    weights = w.expand(weight_axis, x.shape[weight_axis])
    return weights * scaled if order & 1 else scaled * weights


def swiglu(
    b: Builder, gate: Tensor, up: Tensor, order: int = 0, constant: float = -LOG2_E
) -> Tensor:
    e = (gate * constant).exp2()
    one = b.graph.constant(1.0)
    sigmoid = (one + e if order & 1 else e + 1.0).recip()
    silu = sigmoid * gate if order & 1 else gate * sigmoid
    return up * silu if order & 2 else silu * up


def gated(b: Builder, quantised: bool = True, order: int = 0, **wrong: float) -> Tensor:
    x = nn.rms_norm(b.x(), b.weight(K), 1e-5)
    weights = [b.quantised() if quantised else b.weight(N, K, dtype=BF16) for _ in range(2)]
    gate, up = (nn.linear(x, w.cast(F32)) for w in weights)
    return swiglu(b, gate, up, order, **wrong)


def dequantised(b: Builder, order: int = 0, minimum: bool = True, bits: int = 4) -> Tensor:
    codes = b.weight(N, K, dtype=U4 if bits == 4 else I8)
    scale, low = (b.weight(N, 2, dtype=F16).cast(F32).expand(2, 32) for _ in range(2))
    value = codes.split(1, 32).cast(F32)
    scaled = scale * value if order & 1 else value * scale
    if minimum:
        scaled = low + scaled if order & 2 else scaled + low
    return nn.linear(b.x(), scaled.merge(1))


def softmax(
    b: Builder,
    order: int = 0,
    log2_e: float = LOG2_E,
    shifted: bool = True,
    total_axis: int = 1,
    shape: tuple[object, ...] = ("t", K),
) -> Tensor:
    x = b.x(*shape)
    top = (-x.max(1)).expand(1, x.shape[1])
    moved = (top + x if order & 1 else x + top) if shifted else x
    e = (moved * log2_e).exp2()
    scale = e.sum(total_axis).recip().expand(total_axis, x.shape[total_axis])
    return scale * e if order & 2 else e * scale


def rotary(
    b: Builder,
    order: int = 0,
    first: float = -1.0,
    flipped: bool = True,
    d: int = 16,
    pair: int = 2,
) -> Tensor:
    """Pairs lie along axis 2 (split halves) or 3 (neighbours) of heads that are read as two axes."""
    x, cos, sin = b.x("t", 3 * d).split(1, d), b.x("t", d // 2), b.x("t", d // 2)
    pairs = x.split(2, d // 2 if pair == 2 else 2)
    sign = b.graph.iota(2).cast(F32) * (-2.0 * first) + first
    t = x.shape[0]
    cos, sin = (table.expand(1, 3).expand(pair, 2) for table in (cos, sin))
    signs = sign.expand(0, t).expand(1, 3).expand(5 - pair, d // 2)
    partner = pairs.flip(pair) if flipped else pairs
    straight = cos * pairs if order & 1 else pairs * cos
    turned = sin * (signs * partner) if order & 2 else partner * signs * sin
    return turned + straight if order & 4 else straight + turned


def attention(b: Builder, pool: DType = F16, page_size: int = 16) -> Tensor:
    k, v = (b.weight("slots", 2, 8, dtype=pool) for _ in range(2))
    table, positions = b.x("r", "p", dtype=I32), b.x("t", dtype=I32)
    starts = b.x(symbol("r") + 1, dtype=I32)
    q = b.x("t", 4, 8)
    return nn.paged_attention(q, k, v, table, starts, positions, page_size=page_size, scale=0.3)


def scattered(
    b: Builder,
    width: int = 8,
    read_elsewhere: bool = False,
    assigned: bool = True,
    order: int = 0,
) -> Tensor:
    table, rows, source = b.weight(10, 8), b.x("t", dtype=I32), b.x("t", 8)
    base, column = (rows * width).expand(1, 8), b.graph.iota(8).expand(0, rows.shape[0])
    filled = table.scatter(column + base if order else base + column, source * 2.0)
    if assigned:
        table.assign(filled)
    return filled + table if read_elsewhere else filled * 3.0


def gathered(b: Builder, width: int = 8, order: int = 0, dtype: DType = F32) -> Tensor:
    table, rows = b.x(10, 8, dtype=dtype), b.x("t", dtype=I32)
    base, column = (rows * width).expand(1, 8), b.graph.iota(8).expand(0, rows.shape[0])
    return table.gather(column + base if order else base + column)


def tied(b: Builder, table: Tensor) -> Tensor:
    """A table that is both an embedding and an output head."""
    rows = nn.gather_rows(table.cast(F32), b.x("t", dtype=I32))
    return nn.linear(rows, table.cast(F32))


def bias_first(b: Builder) -> Tensor:
    return b.weight(N).expand(0, symbol("t")) + nn.linear(b.x(), b.quantised())


def ordered(b: Builder, order: int) -> Tensor:
    """x @ w, with either operand held transposed, and the product's factors in either order."""
    x, w = b.x("t", K), b.x(K, N)
    if order & 1:
        x = b.x(K, "t").transpose(0, 1)
    if order & 2:
        w = b.x(N, K).transpose(0, 1)
    left, right = x.expand(1, N), w.transpose(0, 1).expand(0, x.shape[0])
    return (right * left if order & 4 else left * right).sum(2)


def mixture(
    b: Builder,
    held: str = "bf16",
    normalise: bool = True,
    unit: Callable[[Tensor, Tensor], Tensor] = nn.swiglu,
    scaled: bool = False,
    f: int = N,
) -> Tensor:
    """Six experts of which each token has two, as Qwen's and (with `scaled` experts) Gemma's routers choose them."""

    def stack(n: int, k: int) -> Tensor:
        if held == "4 bits":
            return b.quantised(group=8, n=6 * n, k=k).split(0, n)
        return b.weight(6, n, k, dtype=DType(held)).cast(F32)

    x = b.x()
    weights, experts = nn.route(nn.linear(x, b.weight(6, K)), 2, normalise=normalise)
    if scaled:
        weights = weights * b.weight(6).gather(experts)
    stacks = [stack(n, k) for n, k in ((f, K), (f, K), (K, f))]
    return nn.experts_glu(x, weights, experts, *stacks, unit=unit)


def attended(
    b: Builder,
    order: int = 0,
    heads: tuple[int, ...] = (4,),
    mask: str = "t s",
    d: int = 8,
    axis: int = -1,
    dtype: DType = F32,
) -> Tensor:
    """softmax(q . k * 0.3 + mask) . v, with the operands of each product and sum in one of 16 orders."""
    q, k, v = (b.x(*heads, n, d, dtype=dtype) for n in ("t", "s", "s"))
    n = len(heads)
    q, k = q.expand(n + 1, k.shape[n]), k.expand(n, q.shape[n])
    scores = (k * q if order & 1 else q * k).sum(-1).cast(F32)
    scaled = b.graph.constant(0.3) * scores if order & 2 else scores * 0.3
    if mask == "t s":
        added = b.x("t", "s")
        for axis_of_heads, size in enumerate(heads):
            added = added.expand(axis_of_heads, size)
        scaled = added + scaled if order & 4 else scaled + added
    elif mask == "factor":
        scaled = scaled * b.x(*heads, "t", "s")
    weights = scaled.softmax(axis).expand(n + 1, d)
    v = v.cast(F32).transpose(n, n + 1).expand(n, q.shape[n])
    return (v * weights if order & 8 else weights * v).sum(-1)


def self_attended(b: Builder, transposed: bool = False) -> Tensor:
    """Heads that are read from rows of one projection, [t, 3 * heads * d], or from its transpose."""
    rows = b.x(3 * 4 * 8, "t").transpose(0, 1) if transposed else b.x("t", 3 * 4 * 8)
    parts = (rows.slice(1, 32 * i, 32 * (i + 1)).split(1, 8).permute(1, 0, 2) for i in range(3))
    return nn.attention(*parts, nn.causal_mask(b.graph, "t", "t", 5), 0.3)


FOUND: list[tuple[str, str, Build]] = [
    *(("MaskedAttention", f"order {i}", lambda b, i=i: attended(b, i)) for i in range(16)),
    *(("DenseAttention", f"heads {h}", lambda b, h=h: attended(b, heads=h, mask="")) for h in ((), (4,), (2, 3))),
    ("MaskedAttention", "two axes of heads", lambda b: attended(b, heads=(2, 3))),
    ("MaskedAttention", "shared heads, window", lambda b: nn.attention(
        b.x(4, "t", 8), b.x(2, "s", 8), b.x(2, "s", 8), nn.causal_mask(b.graph, "t", "s", 5), 0.3)),
    *(("MaskedAttention", f"of one projection, {t}", lambda b, t=t: self_attended(b, t)) for t in (False, True)),
    *(
        ("PackedExpertGateUp", f"{held} {unit.__name__}, {rest}",
         lambda b, h=held, u=unit, r=rest: mixture(b, h, unit=u, **r))
        for held in ("f32", "f16", "bf16")
        for unit in (nn.swiglu, nn.geglu)
        for rest in ({}, {"normalise": False}, {"scaled": True})
    ),
    ("QuantExpertGateUp", "4 bits", lambda b: mixture(b, "4 bits")),
    ("QuantExpertMatmul", "4 bits", lambda b: mixture(b, "4 bits", unit=nn.geglu, scaled=True)),
    ("CombinePairs", "4 bits", lambda b: mixture(b, "4 bits")),
    ("CopyRows", "two axes of rows", lambda b: nn.embedding(b.x(10, 8), b.x("t", 3, dtype=I32))),
    ("QuantGatherRows", "two axes of rows", lambda b: nn.embedding(b.quantised(), b.x("t", 3, dtype=I32))),
    *(("RowNorm", f"order {i}", lambda b, i=i: norm(b, i)) for i in range(8)),
    ("RowNormAdd", "residual first", lambda b: b.x() + norm(b)),
    ("RowNormAdd", "residual last", lambda b: norm(b, 5) + b.x()),
    ("RowNorm", "nn", lambda b: nn.rms_norm(b.x(), b.weight(K, dtype=BF16), 1e-6)),
    *(("QuantMatmul", f"4 bits, order {i}", lambda b, i=i: dequantised(b, i)) for i in range(4)),
    *(
        ("QuantMatmul", f"{bits} bits, {groups} of {group}, {minimum}, {scales.value}",
         lambda b, a=(bits, group, minimum, scales, N, groups * group): nn.linear(b.x("t", a[-1]), b.quantised(*a)))
        for bits in (4, 8)
        for group in (16, 32, 64)
        for groups in (1, 2)
        for minimum in (False, True)
        for scales in (F16, F32)
    ),
    ("QuantMatmul", "8 bits, scale first", lambda b: dequantised(b, 1, False, 8)),
    ("QuantMatmulBias", "bias last", lambda b: nn.linear(b.x(), b.quantised(), b.weight(N))),
    ("QuantMatmulBias", "bias first", bias_first),
    ("PackedMatmulBias", "bias last", lambda b: nn.linear(b.x(), b.weight(N, K), b.weight(N))),
    ("QuantGateUp", "geglu", lambda b: nn.geglu(*(nn.linear(x, b.quantised()) for x in [b.x()] * 2))),
    ("PackedGateUp", "geglu", lambda b: nn.geglu(*(nn.linear(x, b.weight(N, K)) for x in [b.x()] * 2))),
    ("RowLayerNorm", "nn", lambda b: nn.layer_norm(b.x(), b.weight(K), b.weight(K))),
    ("RowLayerNorm", "three axes", lambda b: nn.layer_norm(b.x("t", 3, K), b.weight(K), b.weight(K, dtype=F16))),
    ("RowNorm", "of each head", lambda b: nn.rms_norm(b.x("t", 3, K), b.weight(K), 1e-6)),
    ("QuantMatmulAdd", "residual last", lambda b: nn.linear(b.x(), b.quantised()) + b.x("t", N)),
    ("QuantMatmulAdd", "residual first", lambda b: b.x("t", N) + nn.linear(b.x(), b.quantised())),
    ("NormQuantizeRows", "norm and product", lambda b: nn.linear(norm(b), b.quantised())),
    *(
        ("PackedMatmul", dtype.value, lambda b, d=dtype: nn.linear(b.x(), b.weight(N, K, dtype=d)))
        for dtype in (F32, F16, BF16)
    ),
    ("PackedMatmulAdd", "residual", lambda b: b.x("t", N) + nn.linear(b.x(), b.weight(N, K))),
    *(("QuantGateUp", f"order {i}", lambda b, i=i: gated(b, order=i)) for i in range(4)),
    *(("PackedGateUp", f"order {i}", lambda b, i=i: gated(b, False, order=i)) for i in range(4)),
    ("QuantGateUp", "nn", lambda b: nn.swiglu(*(nn.linear(x, b.quantised()) for x in [b.x()] * 2))),
    *(
        ("RotateHeads", f"order {i}, axis {pair}, {d}", lambda b, a=(i, pair, d): rotary(b, a[0], pair=a[1], d=a[2]))
        for i in range(8)
        for pair in (2, 3)
        for d in (4, 16)
    ),
    *(
        ("RotateHeads", f"nn, {interleaved}", lambda b, i=interleaved: nn.rotary(
            b.x("t", 3, 16), b.x("t", 8).cos(), b.x("t", 8).sin(), interleaved=i))
        for interleaved in (False, True)
    ),
    *(("RowSoftmax", f"order {i}", lambda b, i=i: softmax(b, i)) for i in range(4)),
    ("RowSoftmax", "three axes", lambda b: b.x("t", 3, "c").softmax(2)),
    ("PagedFlash", "nn", attention),
    *(("ScatterRows", f"order {i}", lambda b, i=i: scattered(b, order=i)) for i in range(2)),
    *(("CopyRows", f"order {i}", lambda b, i=i: gathered(b, order=i)) for i in range(2)),
    ("CopyRows", "u8", lambda b: gathered(b, dtype=U8).cast(F32)),
    ("QuantGatherRows", "tied", lambda b: tied(b, b.quantised())),
    ("PackedGatherRows", "tied bf16", lambda b: tied(b, b.weight(N, K, dtype=BF16))),
    ("PackedGatherRows", "tied f32", lambda b: tied(b, b.weight(N, K))),
    *(("StridedMatmul", f"order {i}", lambda b, i=i: ordered(b, i)) for i in range(8)),
    ("StridedMatmul", "batched", lambda b: b.x(3, "t", K).matmul(b.x(3, K, N))),
    ("StridedMatmul", "two batches", lambda b: b.x(3, 2, "t", K).matmul(b.x(3, 2, K, N))),
    ("StridedMatmul", "one row", lambda b: b.x(1, K).matmul(b.x(K, N))),
    ("StridedMatmul", "windows", lambda b: nn.conv(b.x(4, 9, 9), b.weight(6, 4, 3, 3))),
    ("StridedMatmul", "scores", lambda b: nn.attention(b.x(4, "t", 8), b.x(2, "s", 8), b.x(2, "s", 8), None, 0.3)),
]  # fmt: skip


@pytest.mark.parametrize(("op", "build"), [pytest.param(o, f, id=f"{o}: {n}") for o, n, f in FOUND])
def test_found(op: str, build: Build) -> None:
    assert op in found(build)


@pytest.mark.parametrize(
    ("op", "build"),
    [
        ("RowNorm", lambda b: nn.rms_norm(b.x() + b.x(), b.weight(K), 1e-5)),
        ("RowSoftmax", lambda b: (b.x(2, "t", K) * 0.3 + b.x("t", K).expand(0, 2)).softmax(2)),
    ],
)
def test_what_a_row_kernel_reads_can_be_computed_in_it(op: str, build: Build) -> None:
    b = Builder()
    build(b).output()
    [region] = (explore(region, b.graph, native_ops()) for region in partition(b.graph))
    kernels = [n for nodes in region.classes for n in nodes if n.op == op]
    assert any(n.op == "Bin" for k in kernels for n in region.classes[k.children[-1]])


@pytest.mark.parametrize("held", ["f32", "bf16", "4 bits"])
def test_no_token_gathers_weights_of_its_experts(held: str) -> None:
    """Nothing of the size of a token's weights is ever made where products by expert are found."""
    b = Builder()
    mixture(b, held).output()
    (region,) = [explore(r, b.graph, native_ops()) for r in partition(b.graph)]
    assert {node.op for node in region.classes[region.roots[0]]} == {"CombinePairs"}


# -- what only looks like it ------------------------------------------------------------------------------------------


def wrong_scale_axis(b: Builder) -> Tensor:
    """Scales repeated over groups instead of inside them; there are as many groups as columns in one."""
    codes, scale = b.weight(N, K, dtype=U4), b.weight(N, 8)
    return nn.linear(b.x(), (codes.split(1, 8).cast(F32) * scale.expand(1, 8)).merge(1))


def held_as(b: Builder, codes: DType, scales: DType = F16, group: int = 32) -> Tensor:
    scale = b.weight(N, K // group, dtype=scales)
    return nn.linear(b.x(), nn.dequantize(b.weight(N, K, dtype=codes), scale, None))


def codes_of_this_step(b: Builder) -> Tensor:
    codes, scale = b.x(N, K, dtype=I8), b.weight(N, 2, dtype=F16)
    return nn.linear(b.x(), nn.dequantize(codes, scale, None))


def codes_that_change(b: Builder) -> Tensor:
    codes, scale = b.weight(N, K, dtype=I8), b.weight(N, 2, dtype=F16)
    y = nn.linear(b.x(), nn.dequantize(codes, scale, None))
    codes.assign(b.x(N, K, dtype=I8).copy())
    return y


def two_types_of_numbers(b: Builder) -> Tensor:
    scale, minimum = b.weight(N, 2, dtype=F16), b.weight(N, 2, dtype=F32)
    return nn.linear(b.x(), nn.dequantize(b.weight(N, K, dtype=I8), scale, minimum))


def half_rows(b: Builder, table: Tensor, product: bool = False) -> Tensor:
    """A table [24, 64] read as one of [48, 32], and perhaps multiplied with as it is."""
    rows = nn.gather_rows(table.split(1, K // 2).merge(0), b.x(5, dtype=I32))
    return rows.sum(1) + nn.linear(b.x(5, K), table).sum(1) if product else rows


def mixed_gate_up(b: Builder, gate: Tensor, up: Tensor) -> Tensor:
    x = b.x()
    return nn.swiglu(nn.linear(x, gate), nn.linear(x, up))


def two_inputs(b: Builder) -> Tensor:
    return nn.swiglu(nn.linear(b.x(), b.quantised()), nn.linear(b.x(), b.quantised()))


def exact_gelu(b: Builder) -> Tensor:
    x = b.x()
    return nn.linear(x, b.quantised()).gelu() * nn.linear(x, b.quantised())


def used_twice(b: Builder) -> Tensor:
    """Old rows that the step's output reads beside the new ones."""
    return scattered(b, read_elsewhere=True)


NOT_FOUND: list[tuple[str, str, Build]] = [
    ("MaskedAttention", "no mask", lambda b: attended(b, mask="")),
    ("DenseAttention", "mask as a factor", lambda b: attended(b, mask="factor")),
    ("DenseAttention", "masked", attended),
    ("DenseAttention", "softmax over tokens", lambda b: attended(b, mask="", axis=-2)),
    ("DenseAttention", "heads that fill the scratch", lambda b: attended(b, mask="", d=513)),
    ("DenseAttention", "f16", lambda b: attended(b, mask="", dtype=F16)),
    ("CombinePairs", "outputs that fill no block", lambda b: mixture(b, f=12)),
    ("CombinePairs", "of another unit", lambda b: mixture(b, unit=lambda gate, up: gate.relu() * up)),
    ("QuantMatmulBias", "of rows", lambda b: nn.linear(b.x(N, K), b.quantised()) + b.x(N).expand(1, N)),
    ("QuantGateUp", "exact gelu", exact_gelu),
    ("RowLayerNorm", "not centred", lambda b: nn.rms_norm(b.x(), b.weight(K), 1e-5) + b.x("t", K)),
    ("StridedMatmul", "squares", lambda b: (b.x("t", K) * b.x("t", K)).sum(1)),
    ("StridedMatmul", "times a number", lambda b: (b.x("t", K) * 2.0).sum(1)),
    ("StridedMatmul", "integers", lambda b: b.x("t", K, dtype=I32).matmul(b.x(K, N, dtype=I32))),
    *(("Reduce", f"beside a matmul of order {i}", lambda b, i=i: ordered(b, i)) for i in range(8)),
    ("RowNorm", "another count", lambda b: norm(b, inverse=1 / (K + 1))),
    ("RowNorm", "other axis", lambda b: norm(b, axis=0, shape=(K, K))),
    ("RowNorm", "product of two", lambda b: norm(b, other=True)),
    ("RowNorm", "no root", lambda b: norm(b, root=False)),
    ("RowNorm", "weights along rows", lambda b: norm(b, weight_axis=1, shape=(K, K))),
    ("QuantMatmul", "scales repeated over groups", wrong_scale_axis),
    ("QuantMatmul", "group of 4", lambda b: held_as(b, I8, group=4)),
    ("QuantMatmul", "i32 codes", lambda b: held_as(b, I32)),
    ("QuantMatmul", "u8 codes", lambda b: held_as(b, U8)),
    ("QuantMatmul", "f16 codes", lambda b: held_as(b, F16)),
    ("QuantMatmul", "bf16 scales", lambda b: held_as(b, I8, scales=BF16)),
    ("QuantMatmul", "two types of numbers", two_types_of_numbers),
    ("QuantMatmul", "codes of this step", codes_of_this_step),
    ("QuantMatmul", "codes that change", codes_that_change),
    ("PackedMatmul", "weights of this step", lambda b: nn.linear(b.x(), b.x(N, K))),
    ("PackedMatmul", "not transposed", lambda b: b.x().matmul(b.weight(K, N))),
    ("PackedMatmul", "f8", lambda b: nn.linear(b.x(), b.weight(N, K, dtype=DType.F8E4M3))),
    ("PackedMatmul", "integers", lambda b: nn.linear(b.x(), b.weight(N, K, dtype=I32))),
    ("PackedMatmul", "f16 activations", lambda b: b.x(dtype=F16).matmul(b.weight(N, K, dtype=F16).transpose(0, 1))),
    ("QuantGateUp", "another constant", lambda b: gated(b, constant=-1.4426)),
    ("QuantGateUp", "two inputs", two_inputs),
    ("QuantGateUp", "4 and 8 bits", lambda b: mixed_gate_up(b, b.quantised(4), b.quantised(8))),
    ("QuantGateUp", "one minimum", lambda b: mixed_gate_up(b, b.quantised(), b.quantised(minimum=False))),
    ("QuantGateUp", "two types of scales", lambda b: mixed_gate_up(b, b.quantised(), b.quantised(scales=F32))),
    ("PackedGateUp", "f16 and bf16", lambda b: mixed_gate_up(b, b.weight(N, K, dtype=F16), b.weight(N, K, dtype=BF16))),
    ("RotateHeads", "other direction", lambda b: rotary(b, first=1.0)),
    ("RotateHeads", "not flipped", lambda b: rotary(b, flipped=False)),
    ("RotateHeads", "neighbours, other direction", lambda b: rotary(b, first=1.0, pair=3)),
    ("RotateHeads", "neighbours, not flipped", lambda b: rotary(b, flipped=False, pair=3)),
    ("RowSoftmax", "another base", lambda b: softmax(b, log2_e=1.0)),
    ("RowSoftmax", "not shifted", lambda b: softmax(b, shifted=False)),
    ("RowSoftmax", "total of columns", lambda b: softmax(b, total_axis=0, shape=(K, K))),
    ("RowSoftmax", "first axis", lambda b: b.x(K, K).softmax(0)),
    ("PagedFlash", "f32 pages", lambda b: attention(b, F32)),
    ("PagedFlash", "bf16 pages", lambda b: attention(b, BF16)),
    ("PagedFlash", "pages of 4", lambda b: attention(b, page_size=4)),
    ("ScatterRows", "old rows are read", used_twice),
    ("ScatterRows", "not kept", lambda b: scattered(b, assigned=False)),
    ("ScatterRows", "overlapping rows", lambda b: scattered(b, width=7)),
    ("CopyRows", "overlapping rows", lambda b: gathered(b, width=7)),
    ("QuantGatherRows", "rows of half the width", lambda b: half_rows(b, b.quantised())),
    ("QuantGatherRows", "and a product", lambda b: half_rows(b, b.quantised(), product=True)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("op", "build"), [pytest.param(o, f, id=f"{o}: {n}") for o, n, f in NOT_FOUND]
)
def test_not_found(op: str, build: Build) -> None:
    assert op not in found(build)
