"""Rows of a packed float table: `(PackedGatherRows t k rows weights)`."""

from collections.abc import Callable

from engine.compiler.dtype import DType
from engine.compiler.shape import Dim, parse_dim
from engine.ops.base import Array, Call, Counts, Dims, Kernel, Source, Spec, template
from engine.ops.packed_matmul import layout_type, packed_row_bytes, unpack_rows
from engine.ops.views import take_rows


def _spec(call: Call) -> Spec:
    t, k = (parse_dim(p) for p in call.params)
    return Spec((t, k), DType.F32)


def _rows(call: Call) -> int:
    """Rows that the packed table holds, padding included."""
    k, dtype, size = int(call.params[1]), layout_type(call.inputs[1]), call.inputs[1].shape[0]
    assert isinstance(size, int)
    return size // packed_row_bytes(k, dtype)


def _meaning(call: Call, dims: Dims, rows: Array, weights: Array) -> Array:
    del dims
    table = unpack_rows(weights, _rows(call), int(call.params[1]), layout_type(call.inputs[1]))
    return take_rows(table, rows)


def _counts(call: Call, dims: Dims) -> Counts:
    size = _spec(call).bytes(dims)
    return Counts(size, size, size)


def _source(call: Call, code: Callable[["int | Dim"], str]) -> Source:
    t, k = (code(parse_dim(p)) for p in call.params)
    held = {DType.F32: "F32", DType.F16: "F16", DType.BF16: "BF16"}[layout_type(call.inputs[1])]
    macros = (("T", t), ("K", k), ("N", str(_rows(call))), (f"HELD_{held}", "1"))
    return Source(template(__file__), macros)


OPS = (
    Kernel(
        "PackedGatherRows",
        ("String", "String"),
        2,
        _spec,
        _meaning,
        source=_source,
        counts=_counts,
        supersedes=frozenset({"CopyRows", "GatherElements", "Fused"}),
    ),
)
