"""Contractions: a product summed over its last axis, and the case that weights are used in.

`(Contract shape k view_a view_b a b)` is sum over k of a[view_a] * b[view_b]. `(Linear m n k x w)` is x [m, k]
times the transpose of w [n, k]. Both are found by rules; kernels for packed weights are in `packed_matmul` and
`quant_matmul`.
"""

import numpy as np

from engine.compiler.shape import View, parse_dim
from engine.ops.base import Array, Call, Dims, Op, Spec
from engine.ops.views import as_shape, as_view, read, sizes


def contract(call: Call, dims: Dims, a: Array, b: Array) -> Array:
    """The meaning of `Contract`."""
    shape = (*as_shape(call.params[0]), parse_dim(call.params[1]))
    last = len(shape) - 1
    operands: list[Array | list[int]] = []
    for x, spec, raw in zip((a, b), call.inputs, call.params[2:], strict=True):
        view = as_view(raw, shape)
        # An axis that only repeats is left out of the operand, so that einsum never builds the product.
        kept = [
            i for i, axis in enumerate(view.axes) if i == last or any(step != 0 for _, step in axis)
        ]
        thin = View(tuple(view.axes[i] for i in kept), view.offset)
        operands += [read(x, spec, thin, dims), kept]
    used = {i for axes in operands[1::2] for i in axes}
    result = np.einsum(*operands, sorted(used - {last}), optimize=True)
    full = np.expand_dims(result, [i for i in range(last) if i not in used])
    return np.array(np.broadcast_to(full, sizes(shape[:-1], dims)), dtype=a.dtype, order="C")


def _linear(call: Call, dims: Dims, x: Array, w: Array) -> Array:
    n, k = sizes(tuple(parse_dim(p) for p in call.params[1:]), dims)
    return x.reshape(-1, k) @ w.reshape(n, k).T


def linear_spec(call: Call) -> Spec:
    """Spec of an [m, n] product whose first two parameters are m and n."""
    return Spec((parse_dim(call.params[0]), parse_dim(call.params[1])), call.inputs[0].dtype)


OPS = (
    Op(
        "Contract",
        ("Dims", "String", "Dims", "Dims"),
        2,
        lambda call: Spec(as_shape(call.params[0]), call.inputs[0].dtype),
        contract,
    ),
    Op(
        "Linear",
        ("String", "String", "String"),
        2,
        linear_spec,
        _linear,
        supersedes=frozenset({"Contract", "SumReduce"}),
    ),
)
