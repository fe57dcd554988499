"""silu(x @ gate.T) * (x @ up.T) with packed float weights in one pass: `(PackedGateUp m n k x gate up)`."""

from collections.abc import Callable

from engine.compiler.shape import Dim
from engine.ops.base import Array, Call, Dims, Kernel, Source, template
from engine.ops.packed_matmul import (
    PRODUCT,
    VARIANTS,
    multiply,
    product_counts,
    product_macros,
    product_spec,
)
from engine.ops.swiglu import sigmoid


def _meaning(call: Call, dims: Dims, x: Array, gate: Array, up: Array) -> Array:
    del dims
    left, right = multiply(call, x, gate), multiply(call, x, up)
    return left * sigmoid(left) * right


def _source(call: Call, code: Callable[["int | Dim"], str]) -> Source:
    return Source(PRODUCT + template(__file__), product_macros(call, code))


OPS = (
    Kernel(
        "PackedGateUp",
        ("String",) * 3,
        3,
        product_spec,
        _meaning,
        source=_source,
        counts=product_counts,
        variants=VARIANTS,
        supersedes=frozenset({"Reduce"}),
    ),
)
