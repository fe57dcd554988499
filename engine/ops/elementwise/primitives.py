"""The element-wise primitives' meanings.

A unary primitive is `(Exp2 shape view x)`, a binary one `(Add shape view_a view_b a b)`, and so on: each operand is
read through its view in the iteration `shape`, and the result is contiguous.
"""

from collections.abc import Callable

import numpy as np

from engine.compiler.dtype import DType
from engine.compiler.shape import evaluate, parse_dim
from engine.ops.base import Array, Call, Dims, Op, Spec
from engine.ops.views import as_shape, as_view, read

UNARY: dict[str, Callable[[Array], Array]] = {
    "Log2": np.log2,
    "Exp2": np.exp2,
    "Sin": np.sin,
    "Sqrt": np.sqrt,
    "Recip": lambda x: (x.dtype.type(1) / x).astype(x.dtype),
}
BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "Add": np.add,
    "Mul": np.multiply,
    "Mod": np.fmod,
    "LessThan": np.less,
    "Equal": np.equal,
}
TERNARY: dict[str, Callable[[Array, Array, Array], Array]] = {"Select": np.where}
FUNCTIONS: dict[str, Callable[..., Array]] = {**UNARY, **BINARY, **TERNARY}


def result_type(op: str, *operands: DType) -> DType:
    """Type of a primitive's value."""
    return DType.BOOL if op in ("LessThan", "Equal") else operands[-1]


def convert(x: Array, dtype: DType) -> Array:
    """`Cast`'s meaning: to BOOL it is `!= 0`."""
    return x != 0 if dtype is DType.BOOL else x.astype(dtype.numpy)


def number(text: str, dtype: DType, dims: Dims) -> Array:
    """A constant's value: a number, or for integers a dimension."""
    value = float(text) if dtype.is_float else evaluate(parse_dim(text), dims)
    return np.asarray(value, dtype.numpy)


def _primitive(name: str, function: Callable[..., Array], arity: int) -> Op:
    def spec(call: Call) -> Spec:
        return Spec(as_shape(call.params[0]), result_type(name, *(x.dtype for x in call.inputs)))

    def meaning(call: Call, dims: Dims, *inputs: Array) -> Array:
        shape = as_shape(call.params[0])
        operands = [
            read(x, s, as_view(raw, shape), dims)
            for x, s, raw in zip(inputs, call.inputs, call.params[1:], strict=True)
        ]
        with np.errstate(all="ignore"):
            return function(*operands)

    return Op(name, ("Dims",) * (arity + 1), arity, spec, meaning)


def _cast_spec(call: Call) -> Spec:
    return Spec(as_shape(call.params[0]), DType(call.params[2]))


def _cast(call: Call, dims: Dims, x: Array) -> Array:
    view = as_view(call.params[1], as_shape(call.params[0]))
    with np.errstate(all="ignore"):
        return convert(read(x, call.inputs[0], view, dims), DType(call.params[2]))


def _iota(call: Call, dims: Dims) -> Array:
    return np.arange(evaluate(as_shape(call.params[0])[0], dims), dtype=np.int32)


PRIMITIVES = (
    *(_primitive(name, function, 1) for name, function in UNARY.items()),
    *(_primitive(name, function, 2) for name, function in BINARY.items()),
    *(_primitive(name, function, 3) for name, function in TERNARY.items()),
    Op("Cast", ("Dims", "Dims", "String"), 1, _cast_spec, _cast),
    Op(
        "Constant",
        ("String", "String"),
        0,
        lambda call: Spec((), DType(call.params[1])),
        lambda call, dims: number(call.params[0], DType(call.params[1]), dims),
    ),
    Op("Iota", ("Dims",), 0, lambda call: Spec(as_shape(call.params[0]), DType.I32), _iota),
)
