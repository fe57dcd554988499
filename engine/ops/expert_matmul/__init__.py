"""Products of grouped rows with their experts' weights, which lie one after another in one packed weight.

`(PackedExpertMatmul pairs n k x w groups)` multiplies the rows [pairs, k] of each group with its expert's [n, k];
`(PackedExpertGateUp pairs n k kind x gate up groups)` makes a gated unit of two such products. The `Quant` kernels have
the group's size after k, and read quantised rows. The groups are `experts`' GroupPairs; n is a multiple of 8. Tiles and
formats are those of `packed_matmul` and `quant_matmul`.
"""

from collections.abc import Callable

import numpy as np

from engine.compiler.shape import Dim, parse_dim
from engine.ops import packed_gate_up, packed_matmul, quant_matmul
from engine.ops.base import Array, Call, Counts, Dims, Kernel, Source, template
from engine.ops.experts import groups_of
from engine.ops.gated_units import gated
from engine.ops.quant_matmul import layout
from engine.ops.quantize_rows import dequantize as dequantize_rows
from engine.ops.views import sizes

ENTRY = template(__file__, "entry.c")


def _weights(call: Call, packed: Array) -> Array:
    """f32 [experts, n, k] of a packed weight."""
    n, k = (int(p) for p in call.params[1:3])
    spec = call.inputs[1]
    if spec.layout.startswith("packed"):
        values = layout.dequantize(layout.Format.parse(spec.layout), packed)
    else:
        values = packed_matmul.unpack_rows(
            packed, _experts(call) * n, k, packed_matmul.layout_type(spec)
        )
    return values.reshape(-1, n, k)


def _experts(call: Call) -> int:
    """How many experts' weights there are."""
    n, k = (int(p) for p in call.params[1:3])
    spec = call.inputs[1]
    if spec.layout.startswith("packed"):
        return layout.Format.parse(spec.layout).n // n
    return spec.bytes({}) // (
        n * packed_matmul.packed_row_bytes(k, packed_matmul.layout_type(spec))
    )


def _meaning(call: Call, dims: Dims, rows: Array, *rest: Array) -> Array:
    *packed, groups = rest
    k = int(call.params[2])
    if call.inputs[1].layout.startswith("packed"):
        rows = dequantize_rows(rows, k, int(call.params[3]))
    x, weights = rows.reshape(-1, k), [_weights(call, w) for w in packed]
    y = np.empty(sizes((parse_dim(call.params[0]), int(call.params[1])), dims), np.float32)
    for start, end, expert in groups_of(groups)[2]:
        e = min(max(expert, 0), len(weights[0]) - 1)
        products = [x[start:end] @ w[e].T for w in weights]
        y[start:end] = gated(call.params[-1], *products) if len(products) == 2 else products[0]
    return y


def _counts(call: Call, dims: Dims) -> Counts:
    size = packed_matmul.product_spec(call).bytes(dims)
    (pairs,) = sizes((parse_dim(call.params[0]),), dims)
    rows, *packed, groups = (spec.bytes(dims) for spec in call.inputs)
    used = min(1.0, pairs / _experts(call))
    operations = size / 2 * int(call.params[2]) * len(packed)
    return Counts(rows + groups + used * sum(packed), size, operations)


def _kernel(name: str, quantised: bool, unit: bool) -> Kernel:
    home = quant_matmul if quantised else packed_matmul

    def source(call: Call, code: Callable[["int | Dim"], str]) -> Source:
        finish, ends = packed_matmul.FINISH, packed_matmul.finish_macros()
        if unit:
            finish, ends = packed_gate_up.FINISH, packed_gate_up.finish_macros(call.params[-1])
        macros = (
            *home.product_macros(call, code),
            *ends,
            ("EXPERTS", str(_experts(call))),
            ("X_BYTES", "ROW_BYTES" if quantised else "(4L * K)"),
        )
        return Source(home.PRODUCT + finish + ENTRY, macros)

    return Kernel(
        name,
        ("String",) * (3 + quantised + unit),
        3 + unit,
        packed_matmul.product_spec,
        _meaning,
        source=source,
        counts=_counts,
        variants=home.VARIANTS,
    )


OPS = tuple(
    _kernel(
        f"{'Quant' if quantised else 'Packed'}Expert{'GateUp' if unit else 'Matmul'}",
        quantised,
        unit,
    )
    for quantised in (False, True)
    for unit in (False, True)
)
