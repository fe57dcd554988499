"""Stable order of the rows of a dense tensor: `(ArgSort shape descending x)`, i32 places along the last axis.

The graph gives it together with its expansion in primitives, which counts for each element those before it.
"""

from collections.abc import Callable

import numpy as np

from engine.compiler.dtype import DType
from engine.compiler.shape import Dim, product
from engine.ops.base import Array, Call, Counts, Dims, Kernel, Op, Source, Spec, template
from engine.ops.views import as_shape, sizes

_SORTS = ("Dims", "String")


def _spec(call: Call) -> Spec:
    return Spec(as_shape(call.params[0]), DType.I32)


def _meaning(call: Call, dims: Dims, x: Array) -> Array:
    rows = x.reshape(sizes(as_shape(call.params[0]), dims))
    if call.params[1] == "0":
        return rows.argsort(-1, kind="stable").astype(np.int32)
    # The reverse of an ascending order of the reverse keeps equal elements in place, but has the NaNs first.
    n = rows.shape[-1]
    order = (n - 1) - rows[..., ::-1].argsort(-1, kind="stable")[..., ::-1]
    is_nan = np.take_along_axis(rows != rows, order, -1)
    return np.take_along_axis(order, is_nan.argsort(-1, kind="stable"), -1).astype(np.int32)


def _counts(call: Call, dims: Dims) -> Counts:
    size = _spec(call).bytes(dims)
    length = float(sizes(as_shape(call.params[0]), dims)[-1])
    return Counts(
        call.inputs[0].bytes(dims), size, size / 4 * max(1.0, np.log2(max(length, 1.0))) * 4
    )


def _source(call: Call, code: Callable[["int | Dim"], str]) -> Source:
    shape = as_shape(call.params[0])
    macros = (
        ("ROWS", code(product(shape[:-1]))),
        ("N", code(shape[-1])),
        ("TYPE", call.inputs[0].dtype.c_type),
        ("DESCENDING", call.params[1]),
    )
    return Source(template(__file__), macros)


OPS = (
    Op("ArgSort", _SORTS, 1, _spec, _meaning),
    Kernel(
        "SortRows",
        _SORTS,
        1,
        _spec,
        _meaning,
        source=_source,
        counts=_counts,
        supersedes=frozenset({"ScatterCopy"}),
    ),
)
