"""Root-mean-square normalisation of rows: `(RMSNorm t k eps x weight)`, x / sqrt(mean(x^2) + eps) * weight."""

from collections.abc import Callable

import numpy as np

from engine.compiler.dtype import DType
from engine.compiler.shape import Dim, parse_dim
from engine.ops.base import Array, Call, Counts, Dims, Kernel, Op, Source, Spec, template

SORTS = ("String", "String", "String")


def _spec(call: Call) -> Spec:
    return Spec((parse_dim(call.params[0]), parse_dim(call.params[1])), DType.F32)


def rms_norm(call: Call, dims: Dims, x: Array, weight: Array) -> Array:
    """Meaning of every op whose parameters begin with t, k, eps and whose inputs are x [t, k] and weight [k]."""
    del dims
    rows = x.reshape(-1, int(call.params[1]))
    mean = np.mean(rows * rows, axis=1, keepdims=True, dtype=np.float32)
    return rows * (1 / np.sqrt(mean + np.float32(call.params[2]))) * weight


def counts(call: Call, dims: Dims) -> Counts:
    size = _spec(call).bytes(dims)
    return Counts(size + call.inputs[1].bytes(dims), size, size)


def macros(call: Call, code: Callable[["int | Dim"], str]) -> tuple[tuple[str, str], ...]:
    rows, k = (code(parse_dim(p)) for p in call.params[:2])
    return (("M", rows), ("K", k), ("EPS", f"{float(call.params[2])!r}f"))


def _source(call: Call, code: Callable[["int | Dim"], str]) -> Source:
    return Source(template(__file__), macros(call, code))


OPS = (
    Op("RMSNorm", SORTS, 2, _spec, rms_norm),
    Kernel("RowNorm", SORTS, 2, _spec, rms_norm, source=_source, counts=counts),
)
