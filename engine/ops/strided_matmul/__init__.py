"""Any product that is summed, where it is a matmul: `(StridedMatmul shape k view_a view_b a b)`, all in f32.

It means what `Contract` does. Along one axis of `shape`, the rows, only `a` moves, and along another, the columns, only
`b` does; both operands are read through their views, so that batches, transposes and the windows of convolutions need
no copies.
"""

from collections.abc import Callable
from typing import NamedTuple

from engine.compiler.shape import Axis, Dim, View, parse_dim, product
from engine.ops.base import Array, Call, Counts, Dims, Kernel, Source, Spec, template
from engine.ops.elementwise.fused import factors_index, unravel
from engine.ops.matmul import contract
from engine.ops.views import as_shape, as_view, elements


class Axes(NamedTuple):
    """Axes of the result along which only `a`, and only `b`, moves by one stride; None for a single row."""

    rows: int | None
    columns: int


def rows_and_columns(a: View, b: View) -> Axes | None:
    """The last such axes, if both operands move along the last axis, which is summed, and `b` alone along another."""
    columns = _mover(b, a)
    summed = all(any(stride != 0 for _, stride in view.axes[-1]) for view in (a, b))
    return Axes(_mover(a, b), columns) if columns is not None and summed else None


def _mover(moves: View, stays: View) -> int | None:
    for at in reversed(range(len(moves.axes) - 1)):
        if _stride(moves.axes[at]) not in (0, None) and _stride(stays.axes[at]) == 0:
            return at
    return None


def _stride(axis: Axis) -> "int | Dim | None":
    return axis[0][1] if len(axis) == 1 else None


def _spec(call: Call) -> Spec:
    return Spec(as_shape(call.params[0]), call.inputs[0].dtype)


def _meaning(call: Call, dims: Dims, a: Array, b: Array) -> Array:
    return contract(call, dims, a, b)


def _counts(call: Call, dims: Dims) -> Counts:
    size = _spec(call).bytes(dims)
    k = elements((parse_dim(call.params[1]),), dims)
    return Counts(sum(spec.bytes(dims) for spec in call.inputs), size, 2 * size / 4 * k)


def _source(call: Call, code: Callable[["int | Dim"], str]) -> Source:
    shape = as_shape(call.params[0])
    full = (*shape, parse_dim(call.params[1]))
    views = [as_view(raw, full) for raw in call.params[2:]]
    axes = rows_and_columns(*views)
    assert axes is not None
    rows, columns = axes
    outer = [at for at in range(len(shape)) if at not in axes]

    def start(view: View) -> str:
        terms = [code(view.offset)]
        for counter, at in enumerate(outer):
            if view.axes[at]:
                terms.append(factors_index(view.axes[at], f"r{counter}", code))
        return " + ".join(terms)

    def along(view: View) -> str:
        axis = view.axes[-1]
        return factors_index(axis, "(kk)", code) if axis else "0"

    def stride(view: View, at: int | None) -> str:
        found = None if at is None else _stride(view.axes[at])
        return "0" if found is None else code(found)

    out = View.contiguous(shape)
    macros = (
        ("OUTER", code(product(shape[at] for at in outer))),
        ("M", "1" if rows is None else code(shape[rows])),
        ("N", code(shape[columns])),
        ("K", code(full[-1])),
        ("UNRAVEL", " ".join(unravel([shape[at] for at in outer], code))),
        ("A_START", start(views[0])),
        ("B_START", start(views[1])),
        ("Y_START", start(out)),
        ("A_ROW", stride(views[0], rows)),
        ("B_COLUMN", stride(views[1], columns)),
        ("Y_ROW", stride(out, rows)),
        ("Y_COLUMN", stride(out, columns)),
        ("A_K(kk)", along(views[0])),
        ("B_K(kk)", along(views[1])),
    )
    return Source(template(__file__), macros)


OPS = (
    Kernel(
        "StridedMatmul",
        ("Dims", "String", "Dims", "Dims"),
        2,
        _spec,
        _meaning,
        source=_source,
        counts=_counts,
        supersedes=frozenset({"Reduce"}),
        efficiency=0.25,
    ),
)
