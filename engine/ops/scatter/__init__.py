"""Writing at indexes: `(Scatter shape view_d at_shape view_i view_s data indexes source)`.

The value is a copy of the data with `source` written at flat `indexes`; indexes outside it are skipped. Where nothing
else reads the old data, `(ScatterRows ...)` writes whole rows of an expression into the data's own buffer.
"""

from collections.abc import Callable

import numpy as np

from engine.compiler.shape import Dim, View, loop_nest, parse_dim, product
from engine.ops.base import Array, Call, Counts, Dims, Kernel, Op, Source, Spec, template
from engine.ops.elementwise.codegen import print_expression, store
from engine.ops.elementwise.fused import (
    evaluate_expression,
    flat_index,
    leaf_bytes,
    nest_index,
    unravel,
)
from engine.ops.views import as_shape, as_view, elements, read, sizes

_SORTS = ("Dims", "Dims", "Dims", "Dims", "Dims")


def _spec(call: Call) -> Spec:
    return Spec(as_shape(call.params[0]), call.inputs[0].dtype)


def _meaning(call: Call, dims: Dims, data: Array, indexes: Array, source: Array) -> Array:
    shape, at_shape = as_shape(call.params[0]), as_shape(call.params[2])
    out = np.array(read(data, call.inputs[0], as_view(call.params[1], shape), dims)).reshape(-1)
    at = read(indexes, call.inputs[1], as_view(call.params[3], at_shape), dims).reshape(-1)
    values = read(source, call.inputs[2], as_view(call.params[4], at_shape), dims).reshape(-1)
    inside = (at >= 0) & (at < out.size)
    out[at[inside]] = values[inside]
    return out.reshape(sizes(shape, dims))


def _copy_counts(call: Call, dims: Dims) -> Counts:
    spec, moved = _spec(call), elements(as_shape(call.params[2]), dims)
    width = spec.dtype.bits / 8
    return Counts(spec.bytes(dims) + moved * (width + 4), spec.bytes(dims) + moved * width, moved)


def _copy_source(call: Call, code: Callable[["int | Dim"], str]) -> Source:
    shape, at_shape = as_shape(call.params[0]), as_shape(call.params[2])
    macros = (
        ("SIZE", code(product(shape))),
        ("COUNT", code(product(at_shape))),
        ("TYPE", call.inputs[0].dtype.c_type),
        ("DATA(n)", flat_index(as_view(call.params[1], shape), "(n)", code)),
        ("INDEX(n)", flat_index(as_view(call.params[3], at_shape), "(n)", code)),
        ("SOURCE(n)", flat_index(as_view(call.params[4], at_shape), "(n)", code)),
    )
    return Source(template(__file__, "scatter.c"), macros)


def _rows_spec(call: Call) -> Spec:
    return call.inputs[0]


def _rows_meaning(call: Call, dims: Dims, data: Array, rows: Array, *leaves: Array) -> Array:
    assert call.expression is not None
    width = elements((parse_dim(call.params[0]),), dims)
    pairs = list(zip(leaves, call.inputs[2:], strict=True))
    shape = sizes(as_shape(call.params[1]), dims)
    values = np.broadcast_to(evaluate_expression(call.expression, pairs, dims), shape)
    out = data.reshape(-1, width).copy()
    inside = (rows >= 0) & (rows < len(out))
    out[rows[inside]] = values.reshape(-1, width)[inside]
    return out.reshape(data.shape)


def _rows_counts(call: Call, dims: Dims) -> Counts:
    assert call.expression is not None
    count = elements(as_shape(call.params[1]), dims)
    written = count * call.inputs[0].dtype.bits / 8
    operations = sum(1 for e in call.expression.walk() if e.children)
    return Counts(leaf_bytes(call.expression, dims), written, operations * count)


def _rows_source(call: Call, code: Callable[["int | Dim"], str]) -> Source:
    expression = call.expression
    assert expression is not None
    shape, data = as_shape(call.params[1]), call.inputs[0]
    row_view, column_view = View.contiguous(shape[:1]), View.contiguous(shape[1:])
    for axis, size in enumerate(shape[1:], start=1):
        row_view = row_view.insert(axis, size)
    column_view = column_view.insert(0, shape[0])
    views = [row_view, column_view, *expression.views]
    nest = loop_nest(views)
    indexes = [nest_index(nest, n, "r", view.offset, code) for n, view in enumerate(views)]
    outer, inner, last = [size for size, _ in nest[:-1]], code(nest[-1][0]), f"r{len(nest) - 1}"
    value = store(data.dtype, print_expression(expression, indexes[2:], code))
    width = code(parse_dim(call.params[0]))
    at = f"const long at = rows[{indexes[0]}];"
    write = f"if (at >= 0 && at < limit) y[at * width + {indexes[1]}] = {value};"
    loop = f"for (long {last} = 0; {last} < {inner}; {last}++)"
    lines = [f"      {at}", f"      {loop}", f"        {write}"]
    if nest[-1][1][0] != 0:  # each element has a row of its own
        lines = [f"      {loop} {{", f"        {at}", f"        {write}", "      }"]
    text = "\n".join(
        [
            "void NAME(void *const *a, const long *dims, egg_ctx *ctx) {",
            f"  {data.dtype.c_type} *restrict y = a[0];",
            "  const int32_t *restrict rows = a[2];",
            *(
                f"  const {x.dtype.c_type} *restrict x{n} = a[{n + 3}];"
                for n, x in enumerate(call.inputs[2:])
            ),
            f"  const long width = {width}, limit = ({code(product(data.shape))}) / width;",
            f"  const long lines = {code(product(outer))}, share = 16;",
            "  for (long c; (c = egg_claim(ctx)) * share < lines;)",
            "    for (long row = c * share; row < (c + 1) * share && row < lines; row++) {",
            *(f"      {line}" for line in unravel(outer, code)),
            *lines,
            "    }",
            "  (void)dims;",
            "}",
        ]
    )
    return Source(text, ())


OPS = (
    Op("Scatter", _SORTS, 3, _spec, _meaning),
    Kernel("ScatterCopy", _SORTS, 3, _spec, _meaning, source=_copy_source, counts=_copy_counts),
    Kernel(
        "ScatterRows",
        ("String", "Dims"),
        2,
        _rows_spec,
        _rows_meaning,
        takes_expression=True,
        source=_rows_source,
        counts=_rows_counts,
        in_place=0,
        supersedes=frozenset({"ScatterCopy"}),
    ),
)
