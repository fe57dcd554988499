"""Softmax over the last axis: `(Softmax shape k x)`, with k the last of `shape`."""

from collections.abc import Callable

import numpy as np

from engine.compiler.dtype import DType
from engine.compiler.shape import Dim, parse_dim, product
from engine.ops.base import Array, Call, Counts, Dims, Kernel, Op, Source, Spec, template
from engine.ops.views import as_shape


def _spec(call: Call) -> Spec:
    return Spec(as_shape(call.params[0]), DType.F32)


def _meaning(call: Call, dims: Dims, x: Array) -> Array:
    del call, dims
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True, dtype=np.float32))


def _counts(call: Call, dims: Dims) -> Counts:
    size = _spec(call).bytes(dims)
    return Counts(size, size, 4 * size)


def _source(call: Call, code: Callable[["int | Dim"], str]) -> Source:
    rows = product(as_shape(call.params[0])[:-1])
    macros = (("M", code(rows)), ("K", code(parse_dim(call.params[1]))))
    return Source(template(__file__), macros)


_SORTS = ("Dims", "String")
OPS = (
    Op("Softmax", _SORTS, 1, _spec, _meaning),
    Kernel("RowSoftmax", _SORTS, 1, _spec, _meaning, source=_source, counts=_counts),
)
