"""Reading arrays through views, and views as egglog text.

In egglog a shape is `(Dim "t" (Dim "576" (Nil "")))` and a view is the list of its strides with the offset in the tail,
`(Dim "576" (Dim "1" (Nil "0")))`. An axis of several factors is one opaque string, "(9:64,2:-32,32:1)", which no rule's
pattern can mistake for a plain stride; and the offset of a buffer's first elements, which have the strides of a whole
buffer, is FIRST_PART. Lists are never unioned: dimensions are in normal form before they are printed.
"""

from collections.abc import Sequence

import numpy as np

from engine.compiler.dtype import DType
from engine.compiler.shape import Axis, Dim, Shape, View, evaluate, parse_dim
from engine.ops.base import Array, Dims, Spec

Raw = tuple[tuple[str, ...], str]  # strides (or sizes) and the tail's text
FIRST_PART = "0+0"


def shape_text(shape: Shape) -> str:
    return _list([str(d) for d in shape], "")


def view_text(view: View, buffer: Shape | None = None) -> str:
    """`buffer`: the shape of what the view reads, where that may have more elements than the view's."""
    part = buffer is not None and view.is_first_part(buffer)
    offset = FIRST_PART if part else str(view.offset)
    return _list([_axis_text(axis) for axis in view.axes], offset)


def _list(items: Sequence[str], tail: str) -> str:
    return "".join(f'(Dim "{item}" ' for item in items) + f'(Nil "{tail}")' + ")" * len(items)


def _axis_text(axis: Axis) -> str:
    if not axis:
        return "0"
    if len(axis) == 1:
        return str(axis[0][1])
    return "(" + ",".join(f"{size}:{stride}" for size, stride in axis) + ")"


def as_shape(raw: Raw) -> Shape:
    return tuple(parse_dim(text) for text in raw[0])


def as_view(raw: Raw, shape: Shape) -> View:
    """The view whose text this is, over a tensor read as `shape`."""
    axes: list[Axis] = []
    for text, size in zip(raw[0], shape, strict=True):
        if text.startswith("("):
            pairs = (pair.split(":") for pair in text[1:-1].split(","))
            axes.append(tuple((parse_dim(s), parse_dim(t)) for s, t in pairs))
        else:
            axes.append(() if size == 1 else ((size, parse_dim(text)),))
    return View(tuple(axes), parse_dim(raw[1]))


def read(array: Array, spec: Spec, view: View, dims: Dims) -> Array:
    """The logical tensor that `view` reads from a buffer, as an array of the view's shape."""
    flat = np.ascontiguousarray(array).reshape(-1)
    if spec.dtype is DType.U4:
        flat = np.stack([flat & 15, flat >> 4], axis=1).reshape(-1)
    factors = [
        (evaluate(size, dims), evaluate(stride, dims))
        for axis in view.axes
        for size, stride in axis
    ]
    shape = [evaluate(d, dims) for d in view.shape]
    if 0 in shape:
        return np.empty(shape, flat.dtype)
    strided = np.lib.stride_tricks.as_strided(
        flat[evaluate(view.offset, dims) :],
        [size for size, _ in factors],
        [stride * flat.itemsize for _, stride in factors],
        writeable=False,
    )
    return strided.reshape(shape)


def take_rows(table: Array, rows: Array) -> Array:
    """table[rows], flattened; an index outside the table takes its nearest row."""
    taken: Array = table[np.clip(rows.reshape(-1), 0, len(table) - 1)]
    return taken


def sizes(shape: Shape, dims: Dims) -> tuple[int, ...]:
    return tuple(evaluate(d, dims) for d in shape)


def elements(shape: Sequence["int | Dim"], dims: Dims) -> int:
    return int(np.prod([evaluate(d, dims) for d in shape], dtype=np.int64))
