"""Softmax over the last axis: `(Softmax shape k x)`, with k the last of `shape`.

The native kernel takes the softmax of an element-wise expression, so that scaled and masked scores are read as they
were made.
"""

from collections.abc import Callable

import numpy as np

from engine.compiler.dtype import DType
from engine.compiler.shape import Dim, product
from engine.ops.base import Array, Call, Counts, Dims, Kernel, Op, Source, Spec, template
from engine.ops.elementwise.fused import evaluate_expression, leaf_bytes
from engine.ops.elementwise.rows import rows_of
from engine.ops.views import as_shape, sizes


def _spec(call: Call) -> Spec:
    return Spec(as_shape(call.params[0]), DType.F32)


def _meaning(call: Call, dims: Dims, x: Array) -> Array:
    del call, dims
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True, dtype=np.float32))


def _row_meaning(call: Call, dims: Dims, *leaves: Array) -> Array:
    assert call.expression is not None
    value = evaluate_expression(call.expression, list(zip(leaves, call.inputs, strict=True)), dims)
    return _meaning(call, dims, np.broadcast_to(value, sizes(as_shape(call.params[0]), dims)))


def _counts(call: Call, dims: Dims) -> Counts:
    assert call.expression is not None
    size = _spec(call).bytes(dims)
    operations = 16 + sum(1 for e in call.expression.walk() if e.children)
    return Counts(leaf_bytes(call.expression, dims), size, operations * size / 4)


def _source(call: Call, code: Callable[["int | Dim"], str]) -> Source:
    assert call.expression is not None
    shape = as_shape(call.params[0])
    rows = rows_of(call.expression, shape, call.inputs, 1, code)
    macros = (("M", code(product(shape[:-1]))), ("K", code(shape[-1])), *rows.macros)
    return Source(template(__file__), macros)


_SORTS = ("Dims", "String")
OPS = (
    Op("Softmax", _SORTS, 1, _spec, _meaning),
    Kernel(
        "RowSoftmax",
        ("Dims",),
        0,
        _spec,
        _row_meaning,
        takes_expression=True,
        source=_source,
        counts=_counts,
    ),
)
