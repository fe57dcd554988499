"""Sigmoid and the SwiGLU unit silu(gate) * up, found in their primitives.

They have no kernels of their own: as element-wise regions they fuse with what reads them, and `quant_gate_up` and
`packed_gate_up` compute them together with the two products.
"""

import numpy as np

from engine.ops.base import Array, Call, Dims, Op, Spec
from engine.ops.views import as_shape


def sigmoid(x: Array) -> Array:
    with np.errstate(over="ignore"):
        return (1 / (1 + np.exp(-x))).astype(x.dtype)


def _spec(call: Call) -> Spec:
    return Spec(as_shape(call.params[0]), call.inputs[0].dtype)


def _sigmoid(call: Call, dims: Dims, x: Array) -> Array:
    del call, dims
    return sigmoid(x)


def _swiglu(call: Call, dims: Dims, gate: Array, up: Array) -> Array:
    del call, dims
    return gate * sigmoid(gate) * up


OPS = (
    Op("Sigmoid", ("Dims", "Dims"), 1, _spec, _sigmoid),
    Op("SwiGLU", ("Dims",), 2, _spec, _swiglu),
)
