"""Root-mean-square normalisation of rows: `(RMSNorm t k eps x weight)`, x / sqrt(mean(x^2) + eps) * weight.

The native kernel normalises an element-wise expression, such as the sum of a residual and a layer's output, and with
`RowNormAdd` adds a residual to the result.
"""

from collections.abc import Callable

import numpy as np

from engine.compiler.dtype import DType
from engine.compiler.shape import Dim, parse_dim
from engine.ops.base import Array, Call, Counts, Dims, Kernel, Meaning, Op, Source, Spec, template
from engine.ops.elementwise.fused import evaluate_expression, leaf_bytes
from engine.ops.elementwise.rows import rows_of
from engine.ops.views import sizes

SORTS = ("String", "String", "String")


def _spec(call: Call) -> Spec:
    return Spec((parse_dim(call.params[0]), parse_dim(call.params[1])), DType.F32)


def rms_norm(call: Call, dims: Dims, x: Array, weight: Array) -> Array:
    """Meaning of every op whose parameters begin with t, k, eps and whose inputs are x [t, k] and weight [k]."""
    del dims
    rows = x.reshape(-1, int(call.params[1]))
    mean = np.mean(rows * rows, axis=1, keepdims=True, dtype=np.float32)
    return rows * (1 / np.sqrt(mean + np.float32(call.params[2]))) * weight


def macros(call: Call, code: Callable[["int | Dim"], str]) -> tuple[tuple[str, str], ...]:
    rows, k = (code(parse_dim(p)) for p in call.params[:2])
    return (("M", rows), ("K", k), ("EPS", f"{float(call.params[2])!r}f"))


def _leaves(call: Call, inputs: tuple[Array, ...], fixed: int, dims: Dims) -> Array:
    """The expression's value [t, k]; its leaves are the inputs from `fixed` on."""
    assert call.expression is not None
    leaves = list(zip(inputs[fixed:], call.inputs[fixed:], strict=True))
    return np.broadcast_to(
        evaluate_expression(call.expression, leaves, dims), sizes(_spec(call).shape, dims)
    )


def _norm(call: Call, dims: Dims, weight: Array, *leaves: Array) -> Array:
    return rms_norm(call, dims, _leaves(call, (weight, *leaves), 1, dims), weight)


def _norm_add(call: Call, dims: Dims, weight: Array, residual: Array, *leaves: Array) -> Array:
    x = _leaves(call, (weight, residual, *leaves), 2, dims)
    return residual.reshape(x.shape) + rms_norm(call, dims, x, weight)


def _kernel(name: str, meaning: Meaning, fixed: int, result: str) -> Kernel:
    def source(call: Call, code: Callable[["int | Dim"], str]) -> Source:
        assert call.expression is not None
        rows = rows_of(call.expression, _spec(call).shape, call.inputs[fixed:], fixed + 1, code)
        return Source(
            template(__file__), (*macros(call, code), *rows.macros, ("RESULT(x)", result))
        )

    def counts(call: Call, dims: Dims) -> Counts:
        assert call.expression is not None
        size = _spec(call).bytes(dims)
        read = sum(spec.bytes(dims) for spec in call.inputs[:fixed])
        operations = 4 + sum(1 for e in call.expression.walk() if e.children)
        return Counts(read + leaf_bytes(call.expression, dims), size, operations * size / 4)

    return Kernel(
        name, SORTS, fixed, _spec, meaning, takes_expression=True, source=source, counts=counts
    )


OPS = (
    Op("RMSNorm", SORTS, 2, _spec, rms_norm),
    _kernel("RowNorm", _norm, 1, "(x)"),
    _kernel("RowNormAdd", _norm_add, 2, "(((const float *)a[2])[row * K + k] + (x))"),
)
