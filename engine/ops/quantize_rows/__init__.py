"""Rows of activations rounded to 16 bits in groups: what the quantised products read.

`(QuantizeRows m k g x)` keeps, for each row, int16 codes [k], then for each group of g an f32 scale (the group's
largest magnitude / 32767) and the f32 sum of the group's rounded values. The rounding is about 1.5e-5 of a group's
largest value.
"""

from collections.abc import Callable

import numpy as np

from engine.compiler.dtype import DType
from engine.compiler.shape import Dim, parse_dim
from engine.ops.base import Array, Call, Counts, Dims, Kernel, Source, Spec, template

LEVELS = np.float32(32767)


def row_bytes(k: int, group: int) -> int:
    return 2 * k + 8 * (k // group)


def rows_spec(m: "int | Dim", k: int, group: int) -> Spec:
    """Spec of m quantised rows of k elements."""
    return Spec((m, row_bytes(k, group)), DType.U8, f"i16 rows of {k} in groups of {group}")


def quantize(x: Array, group: int) -> Array:
    """f32 [m, k] -> u8 [m, row_bytes(k, group)]."""
    m, k = x.shape
    groups = x.reshape(m, k // group, group)
    scale = np.abs(groups).max(-1) / LEVELS
    inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale > 0)
    codes = np.rint(groups * inverse[..., None]).astype(np.int16)
    sums = codes.sum(-1, dtype=np.int32).astype(np.float32) * scale
    parts = [codes.reshape(m, -1), scale.astype(np.float32), sums]
    return np.concatenate([np.ascontiguousarray(p).view(np.uint8) for p in parts], axis=1)


def dequantize(rows: Array, k: int, group: int) -> Array:
    """f32 [m, k] of quantised rows."""
    m = len(rows)
    codes = np.ascontiguousarray(rows[:, : 2 * k]).view(np.int16).reshape(m, k // group, group)
    scale = np.ascontiguousarray(rows[:, 2 * k : 2 * k + 4 * (k // group)]).view(np.float32)
    return (codes * scale[..., None]).reshape(m, k).astype(np.float32)


def _spec(call: Call) -> Spec:
    return rows_spec(parse_dim(call.params[0]), int(call.params[1]), int(call.params[2]))


def _meaning(call: Call, dims: Dims, x: Array) -> Array:
    del dims
    return quantize(x.reshape(-1, int(call.params[1])), int(call.params[2]))


def _counts(call: Call, dims: Dims) -> Counts:
    read = call.inputs[0].bytes(dims)
    return Counts(read, _spec(call).bytes(dims), read)


def _source(call: Call, code: Callable[["int | Dim"], str]) -> Source:
    m = code(parse_dim(call.params[0]))
    macros = (("M", m), ("K", call.params[1]), ("G", call.params[2]))
    return Source(template(__file__), macros)


OPS = (Kernel("QuantizeRows", ("String",) * 3, 1, _spec, _meaning, source=_source, counts=_counts),)
