"""Running sums along the rows of a dense tensor: `(CumSum shape x)`, over the last axis.

The graph gives it together with its expansion in primitives, which sums what is not later for each element.
"""

from collections.abc import Callable

import numpy as np

from engine.compiler.shape import Dim, product
from engine.ops.base import Array, Call, Counts, Dims, Kernel, Op, Source, Spec
from engine.ops.elementwise.codegen import load, store
from engine.ops.views import as_shape, sizes


def _spec(call: Call) -> Spec:
    return Spec(as_shape(call.params[0]), call.inputs[0].dtype)


def _meaning(call: Call, dims: Dims, x: Array) -> Array:
    rows = x.reshape(sizes(as_shape(call.params[0]), dims))
    wide = np.float64 if call.inputs[0].dtype.is_float else np.int64
    return rows.cumsum(-1, dtype=wide).astype(x.dtype)


def _counts(call: Call, dims: Dims) -> Counts:
    size = _spec(call).bytes(dims)
    return Counts(size, size, 8 * size / _spec(call).dtype.bits)


def _source(call: Call, code: Callable[["int | Dim"], str]) -> Source:
    shape, dtype = as_shape(call.params[0]), call.inputs[0].dtype
    wide = "double" if dtype.is_float else "int64_t"
    total = store(dtype, "(float)s" if dtype.is_float else "s")
    text = "\n".join(
        [
            "void NAME(void *const *a, const long *dims, egg_ctx *ctx) {",
            f"  {dtype.c_type} *restrict y = a[0];",
            f"  const {dtype.c_type} *restrict x = a[1];",
            f"  const long rows = {code(product(shape[:-1]))}, n = {code(shape[-1])};",
            "  (void)dims;",
            "  for (long row; (row = egg_claim(ctx)) < rows;) {",
            f"    {wide} s = 0;",
            "    for (long i = row * n; i < (row + 1) * n; i++) {",
            f"      s += {load(dtype, 'x', 'i')};",
            f"      y[i] = {total};",
            "    }",
            "  }",
            "}",
        ]
    )
    return Source(text, ())


OPS = (
    Op("CumSum", ("Dims",), 1, _spec, _meaning),
    Kernel(
        "ScanRows",
        ("Dims",),
        1,
        _spec,
        _meaning,
        source=_source,
        counts=_counts,
        supersedes=frozenset({"Reduce"}),
    ),
)
