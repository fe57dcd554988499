"""Sum and maximum over the last axis of what a view reads: `(SumReduce shape size view x)`.

The view has the axes of `shape` and then the reduced one. The native kernel reduces an element-wise expression, so a
product that is summed is never held in memory.
"""

from collections.abc import Callable

import numpy as np

from engine.compiler.shape import Dim, parse_dim, product
from engine.ops.base import Array, Call, Counts, Dims, Kernel, Op, Source, Spec
from engine.ops.elementwise.codegen import store
from engine.ops.elementwise.fused import evaluate_expression, leaf_bytes
from engine.ops.elementwise.rows import rows_of
from engine.ops.views import as_shape, as_view, elements, read, sizes


def _op(kind: str) -> Op:
    def meaning(call: Call, dims: Dims, x: Array) -> Array:
        shape = (*as_shape(call.params[0]), parse_dim(call.params[1]))
        values = read(x, call.inputs[0], as_view(call.params[2], shape), dims)
        return np.asarray(
            values.sum(-1, dtype=x.dtype) if kind == "Sum" else values.max(-1), order="C"
        )

    return Op(
        f"{kind}Reduce",
        ("Dims", "String", "Dims"),
        1,
        lambda call: Spec(as_shape(call.params[0]), call.inputs[0].dtype),
        meaning,
    )


def _spec(call: Call) -> Spec:
    assert call.expression is not None
    return Spec(as_shape(call.params[1]), call.expression.dtype)


def _meaning(call: Call, dims: Dims, *inputs: Array) -> Array:
    assert call.expression is not None
    shape = (*as_shape(call.params[1]), parse_dim(call.params[2]))
    value = evaluate_expression(call.expression, list(zip(inputs, call.inputs, strict=True)), dims)
    full = np.broadcast_to(value, sizes(shape, dims))
    reduced = full.sum(-1, dtype=value.dtype) if call.params[0] == "Sum" else full.max(-1)
    return np.asarray(reduced, order="C")


def _counts(call: Call, dims: Dims) -> Counts:
    assert call.expression is not None
    spec = _spec(call)
    count = elements((*spec.shape, parse_dim(call.params[2])), dims)
    operations = 1 + sum(1 for e in call.expression.walk() if e.children)
    return Counts(leaf_bytes(call.expression, dims), spec.bytes(dims), operations * count)


def _source(call: Call, code: Callable[["int | Dim"], str]) -> Source:
    expression, spec = call.expression, _spec(call)
    assert expression is not None
    rows = rows_of(expression, (*spec.shape, parse_dim(call.params[2])), call.inputs, 1, code)
    is_float = spec.dtype.is_float
    total = "double" if is_float and call.params[0] == "Sum" else "float" if is_float else "int64_t"
    step = (
        f"s += {rows.value};"
        if call.params[0] == "Sum"
        else f"const {total} v = {rows.value}; s = v > s || v != v ? v : s;"
    )
    start = "0" if call.params[0] == "Sum" else ("-INFINITY" if is_float else "INT64_MIN")
    text = "\n".join(
        [
            "void NAME(void *const *a, const long *dims, egg_ctx *ctx) {",
            f"  {spec.dtype.c_type} *restrict y = a[0];",
            *(f"  {leaf}" for leaf in rows.leaves),
            f"  const long rows = {code(product(spec.shape))}, share = 64;",
            "  for (long c; (c = egg_claim(ctx)) * share < rows;)",
            "    for (long row = c * share; row < (c + 1) * share && row < rows; row++) {",
            *(f"      {line}" for line in rows.place),
            f"      {total} s = {start};",
            f"      {rows.loops} {{ {step} }}",
            f"      y[row] = {store(spec.dtype, '(float)s' if is_float else 's')};",
            "    }",
            "  (void)dims;",
            "}",
        ]
    )
    return Source(text, ())


REDUCE = Kernel(
    "Reduce",
    ("String", "Dims", "String"),
    0,
    _spec,
    _meaning,
    takes_expression=True,
    source=_source,
    counts=_counts,
    efficiency=0.02,
)
OPS = (_op("Sum"), _op("Max"), REDUCE)
