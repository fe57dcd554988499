"""RMSNorm whose result goes straight into quantised rows: `(NormQuantizeRows m k eps g x weight)`."""

from collections.abc import Callable

from engine.compiler.shape import Dim, parse_dim
from engine.ops.base import Array, Call, Counts, Dims, Kernel, Source, Spec, template
from engine.ops.quantize_rows import quantize, rows_spec
from engine.ops.rms_norm import macros, rms_norm


def _spec(call: Call) -> Spec:
    return rows_spec(parse_dim(call.params[0]), int(call.params[1]), int(call.params[3]))


def _meaning(call: Call, dims: Dims, x: Array, weight: Array) -> Array:
    return quantize(rms_norm(call, dims, x, weight), int(call.params[3]))


def _counts(call: Call, dims: Dims) -> Counts:
    read = sum(spec.bytes(dims) for spec in call.inputs)
    return Counts(read, _spec(call).bytes(dims), 2 * read)


def _source(call: Call, code: Callable[["int | Dim"], str]) -> Source:
    return Source(template(__file__), (*macros(call, code), ("G", call.params[3])))


OPS = (
    Kernel("NormQuantizeRows", ("String",) * 4, 2, _spec, _meaning, source=_source, counts=_counts),
)
