"""Reading at indexes: `(Gather shape view_i data_shape view_d indexes data)` is `data.flat[indexes]`.

`(GatherRows t width rows data)` is the case where whole rows are read; a rule finds it in the index arithmetic.
"""

from collections.abc import Callable

from engine.compiler.shape import Dim, parse_dim, product
from engine.ops.base import Array, Call, Counts, Dims, Kernel, Op, Source, Spec, template
from engine.ops.elementwise.fused import flat_index
from engine.ops.views import as_shape, as_view, elements, read, take_rows


def _spec(call: Call) -> Spec:
    return Spec(as_shape(call.params[0]), call.inputs[1].dtype)


def _meaning(call: Call, dims: Dims, indexes: Array, data: Array) -> Array:
    shape, data_shape = as_shape(call.params[0]), as_shape(call.params[2])
    at = read(indexes, call.inputs[0], as_view(call.params[1], shape), dims)
    flat = read(data, call.inputs[1], as_view(call.params[3], data_shape), dims).reshape(-1)
    return take_rows(flat, at).reshape(at.shape)


def _counts(call: Call, dims: Dims) -> Counts:
    count = elements(as_shape(call.params[0]), dims)
    width = call.inputs[1].dtype.bits / 8
    return Counts(count * (width + 4), count * width, count)


def _source(call: Call, code: Callable[["int | Dim"], str]) -> Source:
    shape, data_shape = as_shape(call.params[0]), as_shape(call.params[2])
    at, data = as_view(call.params[1], shape), as_view(call.params[3], data_shape)
    macros = (
        ("COUNT", code(product(shape))),
        ("LIMIT", code(product(data_shape))),
        ("TYPE", call.inputs[1].dtype.c_type),
        ("INDEX(n)", flat_index(at, "(n)", code)),
        ("DATA(n)", flat_index(data, "(n)", code)),
    )
    return Source(template(__file__, "gather.c"), macros)


def _rows_spec(call: Call) -> Spec:
    t, width = (parse_dim(p) for p in call.params)
    return Spec((t, width), call.inputs[1].dtype)


def _rows_meaning(call: Call, dims: Dims, rows: Array, data: Array) -> Array:
    width = elements((parse_dim(call.params[1]),), dims)
    table = data.reshape(-1, width)
    return take_rows(table, rows)


def _rows_counts(call: Call, dims: Dims) -> Counts:
    size = _rows_spec(call).bytes(dims)
    return Counts(size, size, 0)


def _rows_source(call: Call, code: Callable[["int | Dim"], str]) -> Source:
    t, width = (code(parse_dim(p)) for p in call.params)
    limit = code(product(call.inputs[1].shape))
    macros = (("T", t), ("WIDTH", width), ("LIMIT", limit), ("TYPE", call.inputs[1].dtype.c_type))
    return Source(template(__file__, "gather_rows.c"), macros)


GATHER_SORTS = ("Dims", "Dims", "Dims", "Dims")
OPS = (
    Op("Gather", GATHER_SORTS, 2, _spec, _meaning),
    Kernel("GatherElements", GATHER_SORTS, 2, _spec, _meaning, source=_source, counts=_counts),
    Op("GatherRows", ("String", "String"), 2, _rows_spec, _rows_meaning),
    Kernel(
        "CopyRows",
        ("String", "String"),
        2,
        _rows_spec,
        _rows_meaning,
        source=_rows_source,
        counts=_rows_counts,
    ),
)
