"""A gated unit of two products with quantised weights, in one pass: `(QuantGateUp m n k g kind rows gate up)`."""

from collections.abc import Callable

from engine.compiler.shape import Dim
from engine.ops.base import Array, Call, Dims, Kernel, Source
from engine.ops.gated_units import gated
from engine.ops.packed_gate_up import FINISH, finish_macros
from engine.ops.packed_matmul import ENTRY
from engine.ops.quant_matmul import (
    PRODUCT,
    VARIANTS,
    product,
    product_counts,
    product_macros,
    product_spec,
)


def _meaning(call: Call, dims: Dims, rows: Array, gate: Array, up: Array) -> Array:
    del dims
    left, right = product(call, rows, gate), product(call, rows, up)
    return gated(call.params[4], left, right)


def _source(call: Call, code: Callable[["int | Dim"], str]) -> Source:
    macros = (*product_macros(call, code), *finish_macros(call.params[4]))
    return Source(PRODUCT + FINISH + ENTRY, macros)


OPS = (
    Kernel(
        "QuantGateUp",
        ("String",) * 5,
        3,
        product_spec,
        _meaning,
        source=_source,
        counts=product_counts,
        variants=tuple(v for v in VARIANTS if dict(v)["BLOCKS"] != "1"),
        supersedes=frozenset({"Reduce"}),
    ),
)
