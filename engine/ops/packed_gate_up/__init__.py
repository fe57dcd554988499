"""A gated unit of two products with packed float weights, in one pass: `(PackedGateUp m n k kind x gate up)`."""

from collections.abc import Callable

from engine.compiler.shape import Dim
from engine.ops.base import Array, Call, Dims, Kernel, Source, template
from engine.ops.gated_units import gated
from engine.ops.packed_matmul import (
    ENTRY,
    PRODUCT,
    VARIANTS,
    multiply,
    product_counts,
    product_macros,
    product_spec,
)


def _meaning(call: Call, dims: Dims, x: Array, gate: Array, up: Array) -> Array:
    del dims
    left, right = multiply(call, x, gate), multiply(call, x, up)
    return gated(call.params[3], left, right)


def finish_macros(kind: str) -> tuple[tuple[str, str], ...]:
    """Macros of `FINISH`."""
    return (("UNIT", f"egg_{kind}"), ("STREAMS", "2"))


def _source(call: Call, code: Callable[["int | Dim"], str]) -> Source:
    macros = (*product_macros(call, code), *finish_macros(call.params[3]))
    return Source(PRODUCT + FINISH + ENTRY, macros)


FINISH = template(__file__)

OPS = (
    Kernel(
        "PackedGateUp",
        ("String",) * 4,
        3,
        product_spec,
        _meaning,
        source=_source,
        counts=product_counts,
        variants=VARIANTS,
        supersedes=frozenset({"Reduce"}),
    ),
)
