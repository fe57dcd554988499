"""Sigmoid, GELU (by tanh) and the units silu(gate) * up and gelu(gate) * up, found in their primitives.

They have no kernels of their own: as element-wise regions they fuse with what reads them, and `quant_gate_up` and
`packed_gate_up` compute units together with the two products. `(Gated kind shape gate up)` is a unit of kind "swiglu"
or "geglu".
"""

import math

import numpy as np

from engine.ops.base import Array, Call, Op, Spec
from engine.ops.views import as_shape

GELU_SCALE = 2 * math.sqrt(2 / math.pi)


def sigmoid(x: Array) -> Array:
    with np.errstate(over="ignore"):
        return (1 / (1 + np.exp(-x))).astype(x.dtype)


def _spec(call: Call) -> Spec:
    return Spec(as_shape(call.params[0]), call.inputs[0].dtype)


def gated(kind: str, gate: Array, up: Array) -> Array:
    """A unit's value."""
    if kind == "swiglu":
        return gate * sigmoid(gate) * up
    return _gelu(gate) * up


def _gelu(x: Array) -> Array:
    cubed = x * x * x * np.float32(0.044715) + x
    return x * sigmoid(cubed * np.float32(GELU_SCALE))


OPS = (
    Op("Sigmoid", ("Dims", "Dims"), 1, _spec, lambda call, dims, x: sigmoid(x)),
    Op("Gelu", ("Dims",), 1, _spec, lambda call, dims, x: _gelu(x)),
    Op(
        "Gated",
        ("String", "Dims"),
        2,
        lambda call: Spec(as_shape(call.params[1]), call.inputs[0].dtype),
        lambda call, dims, gate, up: gated(call.params[0], gate, up),
    ),
)
