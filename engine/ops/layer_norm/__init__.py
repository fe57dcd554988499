"""(x - mean) / sqrt(variance + eps) * weight + bias over rows: `(LayerNorm t k eps x weight bias)` (Ba et al. 2016)."""

from collections.abc import Callable

import numpy as np

from engine.compiler.shape import Dim, parse_dim
from engine.ops.base import Array, Call, Counts, Dims, Kernel, Op, Source, Spec, template
from engine.ops.rms_norm import macros
from engine.ops.views import sizes

_SORTS = ("String",) * 3


def _spec(call: Call) -> Spec:
    return Spec((parse_dim(call.params[0]), parse_dim(call.params[1])), call.inputs[0].dtype)


def _meaning(call: Call, dims: Dims, x: Array, weight: Array, bias: Array) -> Array:
    rows = x.reshape(sizes(_spec(call).shape, dims))
    centred = rows - rows.mean(1, keepdims=True)
    scale = 1 / np.sqrt((centred * centred).mean(1, keepdims=True) + np.float32(call.params[2]))
    return np.asarray(centred * scale * weight.reshape(-1) + bias.reshape(-1))


def _counts(call: Call, dims: Dims) -> Counts:
    read = sum(spec.bytes(dims) for spec in call.inputs)
    return Counts(read, _spec(call).bytes(dims), 2 * read)


def _source(call: Call, code: Callable[["int | Dim"], str]) -> Source:
    return Source(template(__file__), macros(call, code))


OPS = (
    Op("LayerNorm", _SORTS, 3, _spec, _meaning),
    Kernel("RowLayerNorm", _SORTS, 3, _spec, _meaning, source=_source, counts=_counts),
)
