"""Arithmetic, comparisons, activations and reductions, composed of primitives.

Axes may be negative. Names and results are NumPy's where it has the function, unless a method says otherwise.
"""

import math
from collections.abc import Sequence
from typing import Self

from engine.compiler.dtype import DType
from engine.compiler.handle import Handle, Number
from engine.compiler.shape import Dim, ShapeError, product

LOG2_E = math.log2(math.e)


class Arithmetic(Handle):
    # -- arithmetic ----------------------------------------------------------------------------------------------

    def __neg__(self) -> Self:
        return self * -1

    def __sub__(self, other: "Self | Number") -> Self:
        return self + -other

    def __rsub__(self, other: Number) -> Self:
        return -self + other

    def __truediv__(self, other: "Self | float") -> Self:
        return self * (1.0 / other if not isinstance(other, Arithmetic) else other.recip())

    def __rtruediv__(self, other: float) -> Self:
        return self.recip() * other

    def exp(self) -> Self:
        return (self * LOG2_E).exp2()

    def log(self) -> Self:
        return self.log2() * (1 / LOG2_E)

    def cos(self) -> Self:
        return (self + math.pi / 2).sin()

    def square(self) -> Self:
        return self * self

    def pow(self, exponent: float) -> Self:
        """A whole exponent multiplies; another one needs numbers that are not negative."""
        if exponent < 0:
            return self.pow(-exponent).recip()
        if exponent != int(exponent):
            return (self.log2() * exponent).exp2()
        power, base, left = (
            self._constant(1, self.dtype)._broadcast(self.shape),
            self,
            int(exponent),
        )
        while left:
            power = power * base if left & 1 else power
            base, left = (base * base if left > 1 else base), left >> 1
        return power

    # -- comparison and choice -----------------------------------------------------------------------------------

    def __gt__(self, other: "Self | Number") -> Self:
        if isinstance(other, Arithmetic):
            return other < self
        return self._constant(other, self.dtype)._broadcast(self.shape) < self

    def __le__(self, other: "Self | Number") -> Self:
        return (self < other) | self.eq(other)

    def __ge__(self, other: "Self | Number") -> Self:
        return (self > other) | self.eq(other)

    def ne(self, other: "Self | Number") -> Self:
        return ~self.eq(other)

    def __invert__(self) -> Self:
        return self.eq(self._constant(0, self._bool("~")))

    def __and__(self, other: Self) -> Self:
        return self.select(other, self._constant(0, self._bool("&")))

    def __or__(self, other: Self) -> Self:
        return self.select(self._constant(1, self._bool("|")), other)

    def _bool(self, op: str) -> DType:
        if self.dtype is not DType.BOOL:
            raise ShapeError(f"{op} needs a bool tensor, not {self.dtype.value}")
        return self.dtype

    def minimum(self, other: "Self | Number") -> Self:
        return (self < other).select(self, other)._or_nan(self, other)

    def maximum(self, other: "Self | Number") -> Self:
        return (self > other).select(self, other)._or_nan(self, other)

    def _or_nan(self, *operands: "Self | Number") -> Self:
        """This, and NaN where an operand is one."""
        result = self
        for x in operands:
            if isinstance(x, Arithmetic) and x.dtype.is_float:
                result = x.eq(x).select(result, x)
        return result

    def clamp(self, low: Number, high: Number) -> Self:
        return self.maximum(low).minimum(high)

    def abs(self) -> Self:
        return (self < 0).select(-self, self)

    def sign(self) -> Self:
        positive, negative = (self > 0).cast(self.dtype), (self < 0).cast(self.dtype)
        return (positive - negative)._or_nan(self)

    # -- activations ---------------------------------------------------------------------------------------------

    def relu(self) -> Self:
        return (self < 0).select(0, self)

    def sigmoid(self) -> Self:
        return ((self * -LOG2_E).exp2() + 1.0).recip()

    def silu(self) -> Self:
        return self * self.sigmoid()

    def tanh(self) -> Self:
        return (self * 2.0).sigmoid() * 2.0 + -1.0

    def erf(self) -> Self:
        """Within 2e-7: Abramowitz and Stegun, formula 7.1.26."""
        x = self.abs()
        t = (x * 0.3275911 + 1.0).recip()
        series = 1.061405429
        terms = (-1.453152027, 1.421413741, -0.284496736, 0.254829592)
        total = t * series
        for term in terms:
            total = (total + term) * t
        return (1.0 - total * (-(x * x)).exp()) * self.sign()

    def gelu(self) -> Self:
        """x * P(X <= x) for a normal X (Hendrycks and Gimpel 2016)."""
        return self * 0.5 * ((self * math.sqrt(0.5)).erf() + 1.0)

    def gelu_tanh(self) -> Self:
        """GELU's approximation by tanh, as (1 + tanh(z)) / 2 = sigmoid(2 z)."""
        bent = self * self * self * 0.044715 + self
        return self * (bent * (2 * math.sqrt(2 / math.pi))).sigmoid()

    # -- reductions ----------------------------------------------------------------------------------------------

    def sum(self, *axes: int) -> Self:
        return self._over(axes, "SumReduce")

    def max(self, *axes: int) -> Self:
        return self._over(axes, "MaxReduce")

    def min(self, *axes: int) -> Self:
        return -(-self).max(*axes)

    def _over(self, axes: Sequence[int], op: str) -> Self:
        """Over some axes, or over all if none is named."""
        if not axes and self.shape:
            axes = range(len(self.shape))
        result = self
        for axis in sorted({self._axis(axis) for axis in axes}, reverse=True):
            result = result._reduce(op, axis)
        return result

    def mean(self, *axes: int) -> Self:
        return self.sum(*axes) * (1.0 / self._count("mean", axes))

    def var(self, *axes: int, correction: int = 0) -> Self:
        """Mean squared distance from the mean; the divisor is the count less `correction`."""
        count = self._count("var", axes)
        from_mean = self - self._again(self.mean(*axes), axes)
        return from_mean.square().sum(*axes) * (1.0 / (count - correction))

    def any(self, *axes: int) -> Self:
        return self.cast(DType.I32).max(*axes).cast(self._bool("any"))

    def all(self, *axes: int) -> Self:
        return ~(~self).any(*axes)

    def _count(self, op: str, axes: Sequence[int]) -> int:
        sizes = [self.shape[self._axis(a)] for a in (axes or range(len(self.shape)))]
        count = product(sizes)
        if isinstance(count, Dim):
            raise ShapeError(f"{op}: axes {tuple(axes)} of {self.shape} have no fixed size")
        return count

    def _again(self, reduced: Self, axes: Sequence[int]) -> Self:
        """A reduction of this, repeated along the axes that it lacks."""
        for axis in sorted({self._axis(a) for a in (axes or range(len(self.shape)))}):
            reduced = reduced.expand(axis, self.shape[axis])
        return reduced

    def softmax(self, axis: int) -> Self:
        axis = self._axis(axis)
        size = self.shape[axis]
        e = (self + (-self.max(axis)).expand(axis, size)).exp()
        return e * e.sum(axis).recip().expand(axis, size)

    def log_softmax(self, axis: int) -> Self:
        axis = self._axis(axis)
        size = self.shape[axis]
        shifted = self + (-self.max(axis)).expand(axis, size)
        return shifted - shifted.exp().sum(axis).log().expand(axis, size)
