"""Rotary position embedding of split halves: `(Rotary t heads half row x cos sin)`.

x holds t rows of `row` elements, each with `heads` heads of 2 * half; cos and sin are [t, half].
"""

from collections.abc import Callable

import numpy as np

from engine.compiler.dtype import DType
from engine.compiler.shape import Dim, parse_dim
from engine.ops.base import Array, Call, Counts, Dims, Kernel, Op, Source, Spec, template
from engine.ops.views import sizes

_SORTS = ("String", "String", "String", "String")


def _spec(call: Call) -> Spec:
    t, heads, half, _ = (parse_dim(p) for p in call.params)
    return Spec((t, heads, 2, half), DType.F32)


def _meaning(call: Call, dims: Dims, x: Array, cos: Array, sin: Array) -> Array:
    heads, half, row = sizes(tuple(parse_dim(p) for p in call.params[1:]), dims)
    pairs = x.reshape(-1, row)[:, : heads * 2 * half].reshape(-1, heads, 2, half)
    a, b, c, s = pairs[:, :, 0], pairs[:, :, 1], cos[:, None], sin[:, None]
    return np.stack([a * c - b * s, b * c + a * s], axis=2)


def _counts(call: Call, dims: Dims) -> Counts:
    size = _spec(call).bytes(dims)
    tables = sum(spec.bytes(dims) for spec in call.inputs[1:])
    return Counts(size + tables, size, 6 * size / 8)


def _source(call: Call, code: Callable[["int | Dim"], str]) -> Source:
    t, heads, half, row = (code(parse_dim(p)) for p in call.params)
    macros = (("T", t), ("HEADS", heads), ("HALF", half), ("ROW", row))
    return Source(template(__file__), macros)


OPS = (
    Op("Rotary", _SORTS, 3, _spec, _meaning),
    Kernel("RotateHeads", _SORTS, 3, _spec, _meaning, source=_source, counts=_counts),
)
