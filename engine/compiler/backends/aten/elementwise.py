"""Arithmetic, comparisons and activations, element by element with NumPy's broadcasting."""

import math
from collections.abc import Callable, Sequence

from engine.compiler.backends.aten.site import Meaning, Site, Table, broadcast, promoted, widened
from engine.compiler.dtype import DType
from engine.compiler.handle import Number
from engine.compiler.tensor import Tensor

Operand = Tensor | Number


def _unary(function: Callable[[Tensor], Tensor]) -> Meaning:
    return lambda at, x: function(at.operand(x))


def _binary(function: Callable[[Tensor, Tensor], Tensor]) -> Meaning:
    return lambda at, a, b: function(at.operand(a), at.operand(b))


def _comparison(function: Callable[[Tensor, Tensor], Tensor]) -> Meaning:
    def meaning(at: Site, a: Operand, b: Operand) -> Tensor:
        dtype = widened(promoted(a, b))
        return function(at.operand(a, dtype), at.operand(b, dtype))

    return meaning


def _logical(function: Callable[[Tensor, Tensor], Tensor]) -> Meaning:
    return lambda at, a, b: function(at.operand(a, DType.BOOL), at.operand(b, DType.BOOL))


def _bitwise(function: Callable[[Tensor, Tensor], Tensor]) -> Meaning:
    logical = _logical(function)

    def meaning(at: Site, a: Operand, b: Operand) -> Tensor:
        if at.dtype is not DType.BOOL:
            raise at.refuse(f"an operation on the bits of {at.dtype.value}")
        return logical(at, a, b)  # type: ignore[return-value]

    return meaning


def _bitwise_not(at: Site, x: Tensor) -> Tensor:
    return ~x if x.dtype is DType.BOOL else -x - 1


def _add(at: Site, a: Operand, b: Operand, alpha: Number = 1) -> Tensor:
    if at.dtype is DType.BOOL:
        return at.operand(a) | at.operand(b)
    return at.operand(a) + (at.operand(b) if alpha == 1 else at.operand(b) * alpha)


def _sub(at: Site, a: Operand, b: Operand, alpha: Number = 1) -> Tensor:
    return at.operand(a) - (at.operand(b) if alpha == 1 else at.operand(b) * alpha)


def _mul(at: Site, a: Operand, b: Operand) -> Tensor:
    if at.dtype is DType.BOOL:
        return at.operand(a) & at.operand(b)
    return at.operand(a) * at.operand(b)


def _div_mode(at: Site, a: Operand, b: Operand, rounding_mode: str | None = None) -> Tensor:
    if rounding_mode is None:
        return at.operand(a) / at.operand(b)
    if not at.dtype.is_float:
        raise at.refuse(f"a quotient of {at.dtype.value} rounded to {rounding_mode!r}")
    quotient = at.operand(a) / at.operand(b)
    return _floored(quotient) if rounding_mode == "floor" else quotient - quotient % 1


def _floored(x: Tensor) -> Tensor:
    whole = x - x % 1
    return (x < whole).select(whole - 1, whole)


def _remainder(at: Site, a: Operand, b: Operand) -> Tensor:
    """Remainder with the divisor's sign."""
    divisor = at.operand(b)
    rest = at.operand(a) % divisor
    other_sign = (rest < 0).ne(divisor < 0) & rest.ne(0)
    return other_sign.select(rest + divisor, rest)


def _pow(at: Site, x: Tensor, exponent: float) -> Tensor:
    base = at.operand(x)
    if exponent == 0.5:
        return base.sqrt()
    if exponent == -0.5:
        return base.sqrt().recip()
    return base.pow(exponent)


def _gelu(at: Site, x: Tensor, approximate: str = "none") -> Tensor:
    x = at.operand(x)
    return x.gelu_tanh() if approximate == "tanh" else x.gelu()


def _clamp(at: Site, x: Tensor, low: Operand | None = None, high: Operand | None = None) -> Tensor:
    x = at.operand(x)
    x = x if low is None else x.maximum(at.operand(low))
    return x if high is None else x.minimum(at.operand(high))


def _hardtanh(at: Site, x: Tensor, min_val: Number = -1.0, max_val: Number = 1.0) -> Tensor:
    return _clamp(at, x, min_val, max_val)


def _leaky_relu(at: Site, x: Tensor, negative_slope: float = 0.01) -> Tensor:
    x = at.operand(x)
    return (x < 0).select(x * negative_slope, x)


def _elu(
    at: Site, x: Tensor, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0
) -> Tensor:
    x = at.operand(x)
    below = ((x.minimum(0.0) * input_scale).exp() - 1.0) * (alpha * scale)
    return (x > 0).select(x * scale, below)


def _where(at: Site, condition: Tensor, a: Operand, b: Operand) -> Tensor:
    chosen = at.operand(condition, DType.BOOL)
    return chosen.select(at.operand(a), at.operand(b))


def _cast(at: Site, x: Tensor, dtype: DType | None = None) -> Tensor:
    return x.cast(at.dtype)


def _full(
    at: Site, size: Sequence[object], fill_value: Number, dtype: DType | None = None
) -> Tensor:
    return at.graph.constant(fill_value, at.dtype)._broadcast(at.shape)


def _full_like(at: Site, x: Tensor, fill_value: Number, dtype: DType | None = None) -> Tensor:
    return at.graph.constant(fill_value, at.dtype)._broadcast(at.shape)


def _scalar_tensor(at: Site, value: Number, dtype: DType | None = None) -> Tensor:
    return at.graph.constant(value, at.dtype)


def _arange(
    at: Site, start: Number, end: Number, step: Number = 1, dtype: DType | None = None
) -> Tensor:
    places = at.graph.iota(at.shape[0]).cast(at.dtype)
    places = places if step == 1 else places * step
    return places if start == 0 else places + start


def _tensor_and_scalar(name: str, meaning: Meaning) -> dict[str, Meaning]:
    return {f"aten.{name}.Tensor": meaning, f"aten.{name}.Scalar": meaning}


def _is_nan(x: Tensor) -> Tensor:
    return x.ne(x)


def _is_inf(x: Tensor) -> Tensor:
    return x.abs().eq(math.inf)


def _log1p(x: Tensor) -> Tensor:
    """log(1 + x) for small x too: what 1 + x lost by rounding is divided out (Goldberg 1991, theorem 4)."""
    near = x + 1.0
    lost = near.eq(1.0)
    return lost.select(x, x * near.log() / lost.select(1.0, near - 1.0))


def _copy(at: Site, x: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    return broadcast(source, at.shape)


def _of_float(function: Callable[[Tensor], Tensor]) -> Meaning:
    return lambda at, x: function(x.cast(widened(x.dtype)))


ELEMENTWISE: Table = {
    **_tensor_and_scalar("add", _add),
    **_tensor_and_scalar("sub", _sub),
    **_tensor_and_scalar("mul", _mul),
    **_tensor_and_scalar("div", _div_mode),
    "aten.div.Tensor_mode": _div_mode,
    "aten.div.Scalar_mode": _div_mode,
    **_tensor_and_scalar("fmod", _binary(lambda a, b: a % b)),
    **_tensor_and_scalar("remainder", _remainder),
    "aten.pow.Tensor_Scalar": _pow,
    **_tensor_and_scalar("eq", _comparison(Tensor.eq)),
    **_tensor_and_scalar("ne", _comparison(Tensor.ne)),
    **_tensor_and_scalar("lt", _comparison(Tensor.__lt__)),
    **_tensor_and_scalar("le", _comparison(Tensor.__le__)),
    **_tensor_and_scalar("gt", _comparison(Tensor.__gt__)),
    **_tensor_and_scalar("ge", _comparison(Tensor.__ge__)),
    "aten.logical_and.default": _logical(Tensor.__and__),
    "aten.logical_or.default": _logical(Tensor.__or__),
    "aten.logical_xor.default": _logical(Tensor.ne),
    "aten.logical_not.default": lambda at, x: ~x.cast(DType.BOOL),
    **_tensor_and_scalar("bitwise_and", _bitwise(Tensor.__and__)),
    **_tensor_and_scalar("bitwise_or", _bitwise(Tensor.__or__)),
    **_tensor_and_scalar("bitwise_xor", _bitwise(Tensor.ne)),
    "aten.bitwise_not.default": _bitwise_not,
    "aten.minimum.default": _binary(Tensor.minimum),
    "aten.maximum.default": _binary(Tensor.maximum),
    "aten.where.self": _where,
    "aten.clamp.default": _clamp,
    "aten.clamp.Tensor": _clamp,
    "aten.hardtanh.default": _hardtanh,
    "aten.abs.default": _unary(Tensor.abs),
    "aten.neg.default": _unary(Tensor.__neg__),
    "aten.sign.default": _unary(Tensor.sign),
    "aten.exp.default": _unary(Tensor.exp),
    "aten.exp2.default": _unary(Tensor.exp2),
    "aten.log.default": _unary(Tensor.log),
    "aten.log1p.default": _unary(_log1p),
    "aten.log2.default": _unary(Tensor.log2),
    "aten.sin.default": _unary(Tensor.sin),
    "aten.cos.default": _unary(Tensor.cos),
    "aten.sqrt.default": _unary(Tensor.sqrt),
    "aten.rsqrt.default": _unary(lambda x: x.sqrt().recip()),
    "aten.reciprocal.default": _unary(Tensor.recip),
    "aten.erf.default": _unary(Tensor.erf),
    "aten.floor.default": _unary(_floored),
    "aten.ceil.default": _unary(lambda x: -_floored(-x)),
    "aten.trunc.default": _unary(lambda x: x - x % 1),
    "aten.isnan.default": _of_float(_is_nan),
    "aten.isinf.default": _of_float(_is_inf),
    "aten.relu.default": _unary(Tensor.relu),
    "aten.sigmoid.default": _unary(Tensor.sigmoid),
    "aten.tanh.default": _unary(Tensor.tanh),
    "aten.gelu.default": _gelu,
    "aten.leaky_relu.default": _leaky_relu,
    "aten.elu.default": _elu,
    "aten._to_copy.default": _cast,
    "aten.copy.default": _copy,
    "aten.full.default": _full,
    "aten.full_like.default": _full_like,
    "aten.scalar_tensor.default": _scalar_tensor,
    "aten.arange.start_step": _arange,
}
