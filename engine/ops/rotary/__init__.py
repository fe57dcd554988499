"""Rotary position embedding: `(Rotary pairs t heads half row x cos sin)`.

x holds t rows of `row` elements, each with `heads` heads of 2 * half; cos and sin are [t, half]. The pair that turns by
angle i is elements i and i + half where `pairs` is "halves", and 2i and 2i + 1 where it is "neighbours".
"""

from collections.abc import Callable

import numpy as np

from engine.compiler.dtype import DType
from engine.compiler.shape import Dim, parse_dim
from engine.ops.base import Array, Call, Counts, Dims, Kernel, Op, Source, Spec, template
from engine.ops.views import sizes

_SORTS = ("String",) * 5


def _pair_axis(call: Call) -> int:
    """Of the value [t, heads, 2, half] or [t, heads, half, 2]."""
    return 2 if call.params[0] == "halves" else 3


def _spec(call: Call) -> Spec:
    t, heads, half, _ = (parse_dim(p) for p in call.params[1:])
    pair = (2, half) if _pair_axis(call) == 2 else (half, 2)
    return Spec((t, heads, *pair), DType.F32)


def _meaning(call: Call, dims: Dims, x: Array, cos: Array, sin: Array) -> Array:
    heads, half, row = sizes(tuple(parse_dim(p) for p in call.params[2:]), dims)
    rows, axis = x.reshape(-1, row)[:, : heads * 2 * half], _pair_axis(call)
    pairs = rows.reshape(-1, heads, *((2, half) if axis == 2 else (half, 2)))
    a, b, c, s = pairs.take(0, axis), pairs.take(1, axis), cos[:, None], sin[:, None]
    return np.stack([a * c - b * s, b * c + a * s], axis)


def _counts(call: Call, dims: Dims) -> Counts:
    size = _spec(call).bytes(dims)
    tables = sum(spec.bytes(dims) for spec in call.inputs[1:])
    return Counts(size + tables, size, 6 * size / 8)


def _source(call: Call, code: Callable[["int | Dim"], str]) -> Source:
    t, heads, half, row = (code(parse_dim(p)) for p in call.params[1:])
    first, second = ("i", "i + HALF") if _pair_axis(call) == 2 else ("2 * i", "2 * i + 1")
    sizes_of = (("T", t), ("HEADS", heads), ("HALF", half), ("ROW", row))
    macros = (*sizes_of, ("FIRST(i)", first), ("SECOND(i)", second))
    return Source(template(__file__), macros)


OPS = (
    Op("Rotary", _SORTS, 3, _spec, _meaning),
    Kernel("RotateHeads", _SORTS, 3, _spec, _meaning, source=_source, counts=_counts),
)
