"""Rows of a packed quantised table as floats: `(QuantGatherRows t n k g rows weights)`."""

from collections.abc import Callable

from engine.compiler.dtype import DType
from engine.compiler.shape import Dim, parse_dim
from engine.ops.base import Array, Call, Counts, Dims, Kernel, Source, Spec, template
from engine.ops.quant_matmul.layout import Format, dequantize
from engine.ops.views import take_rows


def _spec(call: Call) -> Spec:
    return Spec((parse_dim(call.params[0]), parse_dim(call.params[2])), DType.F32)


def _meaning(call: Call, dims: Dims, rows: Array, weights: Array) -> Array:
    del dims
    table = dequantize(Format.parse(call.inputs[1].layout), weights)
    return take_rows(table, rows)


def _counts(call: Call, dims: Dims) -> Counts:
    size = _spec(call).bytes(dims)
    return Counts(size, size, size)


def _source(call: Call, code: Callable[["int | Dim"], str]) -> Source:
    t, n, k = (code(parse_dim(p)) for p in call.params[:3])
    form = Format.parse(call.inputs[1].layout)
    return Source(template(__file__), (("T", t), ("N", n), ("K", k), *form.macros))


OPS = (
    Kernel(
        "QuantGatherRows",
        ("String",) * 4,
        2,
        _spec,
        _meaning,
        source=_source,
        counts=_counts,
        supersedes=frozenset({"CopyRows", "GatherElements", "Fused"}),
    ),
)
