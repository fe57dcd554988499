"""Attention over tensors, softmax(scale * q . k) . v, of `shape` [.., t, dv] in f32:
`(DenseAttention shape s d scale view_q view_k view_v q k v)`, and
`(MaskedAttention shape s d scale view_q view_k view_v view_m q k v mask)`, which adds a mask to the scores first.

The views of q and k are those of the product [.., t, s, d] that is summed for the scores, the view of v that of the
product [.., t, dv, s], and the mask's that of the scores [.., t, s]: heads that share keys, and any order of axes,
need no copies.
"""

from collections.abc import Callable

import numpy as np

from engine.compiler.dtype import DType
from engine.compiler.shape import Axis, Dim, Shape, View, parse_dim, product
from engine.ops.base import Array, Call, Counts, Dims, Kernel, Source, Spec, template
from engine.ops.elementwise.fused import factors_index, unravel
from engine.ops.views import as_shape, as_view, elements, read

HEAD_WIDTHS = range(1, 513)
"""Widths of heads, of keys and of values, that a thread's scratch has room for."""


def stride_of(axis: Axis) -> "int | Dim | None":
    """The one stride that walks an axis, 0 for one of size 1, None if there are several."""
    return 0 if not axis else axis[0][1] if len(axis) == 1 else None


def are_crossed(a: View, b: View) -> bool:
    """Whether, of a product [.., t, s, d], one stride walks `a` along t, `b` along s and both along d, and `a` does not
    move along s nor `b` along t."""
    if len(a.axes) < 3:
        return False
    (t_a, s_a, d_a), (t_b, s_b, d_b) = ([stride_of(x) for x in v.axes[-3:]] for v in (a, b))
    return s_a == t_b == 0 and None not in (t_a, d_a, s_b, d_b) and d_a != 0 and d_b != 0


def held_rows(view: View) -> Shape | None:
    """The shape of the dense tensor that `view` reads with its rows repeated along the axis before the last."""
    if len(view.axes) < 2:
        return None
    shape = (*view.shape[:-2], view.shape[-1])
    repeated = View.contiguous(shape).insert(len(shape) - 1, view.shape[-2])
    return shape if view == repeated else None


def _shapes(call: Call) -> tuple[Shape, Shape, Shape]:
    """The value's shape, and those of the two products that are summed."""
    shape = as_shape(call.params[0])
    s, d = (parse_dim(p) for p in call.params[1:3])
    return shape, (*shape[:-1], s, d), (*shape, s)


def _views(call: Call) -> list[View]:
    _, scored, weighted = _shapes(call)
    of = (scored, scored, weighted, scored[:-1])
    return [as_view(raw, z) for raw, z in zip(call.params[4:], of, strict=False)]


def _spec(call: Call) -> Spec:
    return Spec(as_shape(call.params[0]), DType.F32)


def _without(view: View, axis: int) -> View:
    axes = list(view.axes)
    del axes[axis]
    return View(tuple(axes), view.offset)


def _meaning(call: Call, dims: Dims, *inputs: Array) -> Array:
    q, k, v, *mask = _views(call)
    views = [_without(q, -2), _without(k, -3), _without(v, -3), *mask]
    q_rows, k_rows, v_columns, *added = (
        read(x, spec, view, dims) for x, spec, view in zip(inputs, call.inputs, views, strict=True)
    )
    scores = q_rows @ k_rows.swapaxes(-1, -2) * np.float32(call.params[3])
    scores = scores + added[0] if added else scores
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True) @ v_columns.swapaxes(-1, -2), np.float32)


def _counts(call: Call, dims: Dims) -> Counts:
    shape, scored, _ = _shapes(call)
    size, products = elements(shape, dims), elements(scored, dims)
    s = elements((scored[-2],), dims)
    return Counts(sum(x.bytes(dims) for x in call.inputs), 4 * size, 2 * products + 2 * size * s)


def _source(call: Call, code: Callable[["int | Dim"], str]) -> Source:
    shape, scored, _ = _shapes(call)
    q, k, v, *mask = _views(call)
    outer = len(shape) - 2

    def start(view: View, axes: int = outer) -> str:
        terms = [code(view.offset)]
        terms += [factors_index(x, f"r{n}", code) for n, x in enumerate(view.axes[:axes]) if x]
        return " + ".join(terms)

    def stride(view: View, axis: int) -> str:
        found = stride_of(view.axes[axis])
        assert found is not None
        return code(found)

    def masked(view: View) -> str:
        terms = [
            factors_index(axis, name, code)
            for axis, name in zip(view.axes[-2:], ("(t)", "(s)"), strict=True)
            if axis
        ]
        return f"m[{' + '.join([start(view), *terms])}]"

    macros = (
        ("OUTER", code(product(shape[:outer]))),
        ("T", code(shape[-2])),
        ("S", code(scored[-2])),
        ("DK", code(scored[-1])),
        ("DV", code(shape[-1])),
        ("SCALE", f"{float(call.params[3])!r}f"),
        ("UNRAVEL", " ".join(unravel(shape[:outer], code))),
        ("Q_START", start(q)),
        ("K_START", start(k)),
        ("V_START", start(v)),
        ("Y_START", start(View.contiguous(shape))),
        ("Q_ROW", stride(q, -3)),
        ("Q_DEPTH", stride(q, -1)),
        ("K_ROW", stride(k, -2)),
        ("K_DEPTH", stride(k, -1)),
        ("V_DEPTH", stride(v, -1)),
        ("V_COLUMN", stride(v, -2)),
        ("MASK_ARGUMENT", "const float *restrict m = a[4];" if mask else ""),
        ("MASK(t, s)", masked(mask[0]) if mask else "0"),
    )
    return Source(template(__file__), macros)


def _kernel(name: str, arity: int) -> Kernel:
    return Kernel(
        name,
        ("Dims", "String", "String", "String", *["Dims"] * arity),
        arity,
        _spec,
        _meaning,
        source=_source,
        counts=_counts,
        variants=tuple((("QUERIES", queries),) for queries in ("16", "64")),
        supersedes=frozenset({"Reduce"}),
        efficiency=0.25,
    )


OPS = (_kernel("DenseAttention", 3), _kernel("MaskedAttention", 4))
