"""The handle that model code holds: a node read through a view. Arithmetic adds nodes; movement only changes the view.

Broadcasting is never implied between tensors: operands have equal shapes, except for Python numbers and scalars of
shape (). Types are never promoted: operands have equal types, and `cast` is explicit.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from engine.compiler.dtype import DType
from engine.compiler.shape import Dim, Shape, ShapeError, View, product, symbol

if TYPE_CHECKING:
    from engine.compiler.graph import Graph, Node

Number = int | float | Dim
LOG2_E = math.log2(math.e)


@dataclass(frozen=True, eq=False)
class Tensor:
    graph: "Graph"
    node: "Node"
    view: View

    @property
    def shape(self) -> Shape:
        return self.view.shape

    @property
    def dtype(self) -> DType:
        return self.node.dtype

    # -- what outlives an execution ------------------------------------------------------------------------------

    def persist(self) -> "Tensor":
        """Keep this input's data across executions; other inputs are consumed by each."""
        if self.node.op != "Input":
            raise ShapeError("persist: only an input can be kept across executions")
        self.graph.persisted.add(self.node)
        return self

    def output(self) -> "Tensor":
        """Make the value readable with `Runtime.get` after an execution."""
        if self.node.op == "Input" or not self.view.is_contiguous:
            return self.copy().output()
        self.graph.outputs.append(self)
        return self

    def assign(self, value: "Tensor") -> None:
        """After each execution this persisted input holds `value` (in place where nothing else reads the old data)."""
        if self.node not in self.graph.persisted:
            raise ShapeError("assign: only a persisted input can be assigned")
        if (
            value.shape != self.node.shape
            or value.dtype != self.dtype
            or not value.view.is_contiguous
        ):
            raise ShapeError(
                f"assign: {value.shape} {value.dtype.value} does not fit "
                f"{self.node.shape} {self.dtype.value}"
            )
        self.graph.updates[self.node] = value

    # -- movement ------------------------------------------------------------------------------------------------

    def _seen(self, view: View) -> "Tensor":
        return Tensor(self.graph, self.node, view)

    def _axis(self, axis: int) -> int:
        rank = len(self.shape)
        if not -rank <= axis < rank:
            raise ShapeError(f"axis {axis} is outside shape {self.shape}")
        return axis % rank

    def permute(self, *order: int) -> "Tensor":
        return self._seen(self.view.permute([self._axis(i) for i in order]))

    def transpose(self, a: int, b: int) -> "Tensor":
        order = list(range(len(self.shape)))
        a, b = self._axis(a), self._axis(b)
        order[a], order[b] = order[b], order[a]
        return self.permute(*order)

    def expand(self, axis: int, size: Any) -> "Tensor":
        """A new axis at `axis` that repeats the tensor `size` times."""
        return self._seen(self.view.insert(axis, symbol(size) if isinstance(size, str) else size))

    def squeeze(self, axis: int) -> "Tensor":
        return self._seen(self.view.drop(self._axis(axis)))

    def split(self, axis: int, inner: Any) -> "Tensor":
        """Axis of size n as (n / inner, inner)."""
        return self._seen(self.view.split(self._axis(axis), inner))

    def merge(self, axis: int) -> "Tensor":
        """Axes `axis` and `axis + 1` as one."""
        return self._seen(self.view.merge(self._axis(axis)))

    def slice(self, axis: int, start: Any, stop: Any) -> "Tensor":
        return self._seen(self.view.slice(self._axis(axis), start, stop))

    def flip(self, axis: int) -> "Tensor":
        return self._seen(self.view.flip(self._axis(axis)))

    # -- arithmetic ----------------------------------------------------------------------------------------------

    def _unary(self, op: str) -> "Tensor":
        if not self.dtype.is_float:
            raise ShapeError(f"{op} needs a float tensor, not {self.dtype.value}")
        return self._new(op, (), [self], self.shape, self.dtype)

    def _new(
        self,
        op: str,
        attrs: tuple[Any, ...],
        inputs: Sequence["Tensor"],
        shape: Shape,
        dtype: DType,
    ) -> "Tensor":
        if dtype is DType.U4 or (op != "Cast" and any(t.dtype is DType.U4 for t in inputs)):
            raise ShapeError(f"{op}: u4 is a type of inputs, which a cast reads and nothing makes")
        node = self.graph.add(op, attrs, inputs, shape, dtype)
        return Tensor(self.graph, node, View.contiguous(shape))

    def _binary(self, op: str, other: "Tensor | Number", dtype: DType | None = None) -> "Tensor":
        b = other if isinstance(other, Tensor) else self.graph.constant(other, self.dtype)
        a = self
        if a.shape != b.shape and not a.shape:
            a = self._broadcast(b.shape)
        if a.shape != b.shape and not b.shape:
            b = b._broadcast(a.shape)
        if a.shape != b.shape:
            raise ShapeError(
                f"{op}: shapes {a.shape} and {b.shape} differ (broadcasting is explicit: use expand)"
            )
        if a.dtype != b.dtype:
            raise ShapeError(f"{op}: types {a.dtype.value} and {b.dtype.value} differ (use cast)")
        return a._new(op, (), [a, b], a.shape, dtype or a.dtype)

    def _broadcast(self, shape: Shape) -> "Tensor":
        view = self.view
        for axis, size in enumerate(shape):
            view = view.insert(axis, size)
        return self._seen(view)

    def __add__(self, other: "Tensor | Number") -> "Tensor":
        return self._binary("Add", other)

    def __mul__(self, other: "Tensor | Number") -> "Tensor":
        return self._binary("Mul", other)

    def __mod__(self, other: "Tensor | Number") -> "Tensor":
        """Remainder with the sign of the dividend, as C's % and fmod."""
        return self._binary("Mod", other)

    def __lt__(self, other: "Tensor | Number") -> "Tensor":
        return self._binary("LessThan", other, DType.BOOL)

    def __neg__(self) -> "Tensor":
        return self * -1

    def __sub__(self, other: "Tensor | Number") -> "Tensor":
        return self + -other

    def __truediv__(self, other: "Tensor | float") -> "Tensor":
        return self * (1.0 / other if not isinstance(other, Tensor) else other.recip())

    __radd__ = __add__
    __rmul__ = __mul__

    def log2(self) -> "Tensor":
        return self._unary("Log2")

    def exp2(self) -> "Tensor":
        return self._unary("Exp2")

    def sin(self) -> "Tensor":
        return self._unary("Sin")

    def sqrt(self) -> "Tensor":
        return self._unary("Sqrt")

    def recip(self) -> "Tensor":
        return self._unary("Recip")

    def exp(self) -> "Tensor":
        return (self * LOG2_E).exp2()

    def cos(self) -> "Tensor":
        return (self + math.pi / 2).sin()

    def sigmoid(self) -> "Tensor":
        return ((self * -LOG2_E).exp2() + 1.0).recip()

    def silu(self) -> "Tensor":
        return self * self.sigmoid()

    def tanh(self) -> "Tensor":
        return (self * 2.0).sigmoid() * 2.0 + -1.0

    def cast(self, dtype: DType) -> "Tensor":
        """Converted to another type; to BOOL it is `!= 0`, from float to integer it truncates."""
        return (
            self if dtype == self.dtype else self._new("Cast", (dtype,), [self], self.shape, dtype)
        )

    def copy(self) -> "Tensor":
        """The same values, contiguous in a buffer of their own."""
        if self.dtype is DType.BOOL:
            return self.cast(DType.U8).cast(DType.BOOL)
        return self * 1

    # -- reductions ----------------------------------------------------------------------------------------------

    def _reduce(self, op: str, axis: int) -> "Tensor":
        axis = self._axis(axis)
        last = self.permute(*(i for i in range(len(self.shape)) if i != axis), axis)
        return self._new(op, (), [last], last.shape[:-1], self.dtype)

    def sum(self, axis: int) -> "Tensor":
        return self._reduce("SumReduce", axis)

    def max(self, axis: int) -> "Tensor":
        return self._reduce("MaxReduce", axis)

    def mean(self, axis: int) -> "Tensor":
        size = self.shape[self._axis(axis)]
        if isinstance(size, Dim):
            raise ShapeError(f"mean: axis {axis} of {self.shape} has no fixed size")
        return self.sum(axis) * (1.0 / size)

    def softmax(self, axis: int) -> "Tensor":
        axis = self._axis(axis)
        size = self.shape[axis]
        e = (self + (-self.max(axis)).expand(axis, size)).exp()
        return e * e.sum(axis).recip().expand(axis, size)

    # -- contraction and indexing --------------------------------------------------------------------------------

    def matmul(self, other: "Tensor") -> "Tensor":
        """[..., m, k] x [..., k, n] -> [..., m, n]; leading axes are equal."""
        a, b = self, other
        if (
            len(a.shape) != len(b.shape)
            or len(a.shape) < 2
            or a.shape[:-2] != b.shape[:-2]
            or a.shape[-1] != b.shape[-2]
        ):
            raise ShapeError(f"matmul: {a.shape} x {b.shape} do not fit")
        rank = len(a.shape)
        left = a.expand(rank - 1, b.shape[-1])
        right = b.transpose(rank - 2, rank - 1).expand(rank - 2, a.shape[-2])
        return (left * right).sum(-1)

    def gather(self, indexes: "Tensor") -> "Tensor":
        """out[i] = self.flat[indexes[i]] for I32 `indexes` of any shape; the result has their shape."""
        if indexes.dtype is not DType.I32:
            raise ShapeError(f"gather: indexes are i32, not {indexes.dtype.value}")
        return self._new("Gather", (), [indexes, self], indexes.shape, self.dtype)

    def scatter(self, indexes: "Tensor", source: "Tensor") -> "Tensor":
        """A copy of self with out.flat[indexes[i]] = source[i]; indexes outside it are skipped, the last writer
        wins."""
        if (
            indexes.dtype is not DType.I32
            or indexes.shape != source.shape
            or source.dtype != self.dtype
        ):
            raise ShapeError(
                f"scatter: indexes {indexes.shape} {indexes.dtype.value} and source {source.shape} "
                f"{source.dtype.value} do not fit a {self.dtype.value} tensor"
            )
        return self._new("Scatter", (), [self, indexes, source], self.shape, self.dtype)

    def numel(self) -> "int | Dim":
        return product(self.shape)
