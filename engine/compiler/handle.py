"""A node read through a view: movement only changes the view, primitives add nodes. `Tensor` composes the rest.

Broadcasting is never implied between tensors: operands have equal shapes, except for Python numbers and scalars of
shape (). Types are never promoted: operands have equal types, and `cast` is explicit.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from engine.compiler.dtype import DType
from engine.compiler.shape import Dim, Shape, ShapeError, View, product, symbol

if TYPE_CHECKING:
    from engine.compiler.graph import Graph, Node

Number = int | float | Dim


@dataclass(frozen=True, eq=False)
class Handle:
    graph: "Graph"
    node: "Node"
    view: View

    @property
    def shape(self) -> Shape:
        return self.view.shape

    @property
    def dtype(self) -> DType:
        return self.node.dtype

    @property
    def is_dense(self) -> bool:
        """Whether it is all of its node's elements in their order, and not a part or another order of them."""
        return self.view.is_contiguous and product(self.shape) == product(self.node.shape)

    # -- what outlives an execution ------------------------------------------------------------------------------

    def persist(self) -> Self:
        """Keep this input's data across executions; other inputs are consumed by each."""
        if self.node.op != "Input":
            raise ShapeError("persist: only an input can be kept across executions")
        self.graph.persisted.add(self.node)
        return self

    def output(self) -> Self:
        """Make the value readable with `Runtime.get` after an execution."""
        if self.node.op == "Input" or not self.is_dense:
            return self.copy().output()
        self.graph.outputs.append(self)
        return self

    def assign(self, value: Self) -> None:
        """After each execution this persisted input holds `value` (in place where nothing else reads the old data)."""
        if self.node not in self.graph.persisted:
            raise ShapeError("assign: only a persisted input can be assigned")
        if value.shape != self.node.shape or value.dtype != self.dtype or not value.is_dense:
            raise ShapeError(
                f"assign: {value.shape} {value.dtype.value} does not fit "
                f"{self.node.shape} {self.dtype.value}"
            )
        self.graph.updates[self.node] = value

    # -- movement ------------------------------------------------------------------------------------------------

    def _seen(self, view: View) -> Self:
        return type(self)(self.graph, self.node, view)

    def _axis(self, axis: int) -> int:
        rank = len(self.shape)
        if not -rank <= axis < rank:
            raise ShapeError(f"axis {axis} is outside shape {self.shape}")
        return axis % rank

    def permute(self, *order: int) -> Self:
        return self._seen(self.view.permute([self._axis(i) for i in order]))

    def transpose(self, a: int, b: int) -> Self:
        order = list(range(len(self.shape)))
        a, b = self._axis(a), self._axis(b)
        order[a], order[b] = order[b], order[a]
        return self.permute(*order)

    def expand(self, axis: int, size: Any) -> Self:
        """A new axis at `axis` that repeats the tensor `size` times."""
        return self._seen(self.view.insert(axis, symbol(size) if isinstance(size, str) else size))

    def squeeze(self, axis: int) -> Self:
        return self._seen(self.view.drop(self._axis(axis)))

    def split(self, axis: int, inner: Any) -> Self:
        """Axis of size n as (n / inner, inner)."""
        return self._seen(self.view.split(self._axis(axis), inner))

    def merge(self, axis: int) -> Self:
        """Axes `axis` and `axis + 1` as one."""
        return self._seen(self.view.merge(self._axis(axis)))

    def reshape(self, *shape: Any) -> Self:
        """The same elements, row by row, in another shape: a view of this one where there is such a view, else of a
        copy."""
        if product(shape) != product(self.shape):
            raise ShapeError(f"reshape: {self.shape} has other elements than {shape}")
        view = self.view if self.shape else self.view.insert(0, 1)
        while len(view.axes) > 1:
            view = view.merge(0)
        try:
            for size in reversed(shape[1:]):
                view = view.split(0, size)
        except ShapeError:  # a strided axis would be cut
            return self.copy().reshape(*shape)
        return self._seen(view if shape else view.drop(0))

    def slice(self, axis: int, start: Any, stop: Any) -> Self:
        return self._seen(self.view.slice(self._axis(axis), start, stop))

    def flip(self, axis: int) -> Self:
        return self._seen(self.view.flip(self._axis(axis)))

    def unfold(self, axis: int, size: int, step: int = 1, dilation: int = 1) -> Self:
        """Windows of `size` elements, `dilation` apart, that begin each `step`: the axis as (windows, size)."""
        return self._seen(self.view.unfold(self._axis(axis), size, step, dilation))

    def repeat(self, axis: int, times: Any) -> Self:
        """The axis `times` over, one after another, as NumPy's tile."""
        axis = self._axis(axis)
        return self.expand(axis, times).merge(axis)

    # -- arithmetic ----------------------------------------------------------------------------------------------

    def _unary(self, op: str) -> Self:
        if not self.dtype.is_float:
            raise ShapeError(f"{op} needs a float tensor, not {self.dtype.value}")
        return self._new(op, (), [self], self.shape, self.dtype)

    def _new(
        self,
        op: str,
        attrs: tuple[Any, ...],
        inputs: Sequence[Self],
        shape: Shape,
        dtype: DType,
    ) -> Self:
        if dtype is DType.U4 or (op != "Cast" and any(t.dtype is DType.U4 for t in inputs)):
            raise ShapeError(f"{op}: u4 is a type of inputs, which a cast reads and nothing makes")
        node = self.graph.add(op, attrs, inputs, shape, dtype)
        return type(self)(self.graph, node, View.contiguous(shape))

    def _constant(self, value: Number, dtype: DType) -> Self:
        made = self.graph.constant(value, dtype)
        return type(self)(made.graph, made.node, made.view)

    def _binary(self, op: str, other: "Self | Number", dtype: DType | None = None) -> Self:
        b = other if isinstance(other, Handle) else self._constant(other, self.dtype)
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

    def _broadcast(self, shape: Shape) -> Self:
        view = self.view
        for axis, size in enumerate(shape):
            view = view.insert(axis, size)
        return self._seen(view)

    def __add__(self, other: "Self | Number") -> Self:
        return self._binary("Add", other)

    def __mul__(self, other: "Self | Number") -> Self:
        return self._binary("Mul", other)

    def __mod__(self, other: "Self | Number") -> Self:
        """Remainder with the sign of the dividend, as C's % and fmod."""
        return self._binary("Mod", other)

    def __lt__(self, other: "Self | Number") -> Self:
        return self._binary("LessThan", other, DType.BOOL)

    __radd__ = __add__
    __rmul__ = __mul__

    def eq(self, other: "Self | Number") -> Self:
        return self._binary("Equal", other, DType.BOOL)

    def select(self, true: "Self | Number", false: "Self | Number") -> Self:
        """Where this is true the elements of the one, elsewhere of the other; a number takes the other's type."""
        if self.dtype is not DType.BOOL:
            raise ShapeError(f"select: needs a bool tensor, not {self.dtype.value}")
        dtype = next((x.dtype for x in (true, false) if isinstance(x, Handle)), DType.F32)
        a, b = (x if isinstance(x, Handle) else self._constant(x, dtype) for x in (true, false))
        shape = max((self.shape, a.shape, b.shape), key=len)
        parts = [x if x.shape else x._broadcast(shape) for x in (self, a, b)]
        if any(x.shape != shape for x in parts) or a.dtype != b.dtype:
            raise ShapeError(
                f"select: {self.shape}, {a.shape} {a.dtype.value} and {b.shape} {b.dtype.value} do not fit"
            )
        return self._new("Select", (), parts, shape, a.dtype)

    def log2(self) -> Self:
        return self._unary("Log2")

    def exp2(self) -> Self:
        return self._unary("Exp2")

    def sin(self) -> Self:
        return self._unary("Sin")

    def sqrt(self) -> Self:
        return self._unary("Sqrt")

    def recip(self) -> Self:
        return self._unary("Recip")

    def cast(self, dtype: DType) -> Self:
        """Converted to another type; to BOOL it is `!= 0`, from float to integer it truncates."""
        return (
            self if dtype == self.dtype else self._new("Cast", (dtype,), [self], self.shape, dtype)
        )

    def copy(self) -> Self:
        """The same values, contiguous in a buffer of their own."""
        if self.dtype is DType.BOOL:
            return self.cast(DType.U8).cast(DType.BOOL)
        return self * 1

    # -- reductions and indexing ---------------------------------------------------------------------------------

    def _reduce(self, op: str, axis: int) -> Self:
        axis = self._axis(axis)
        last = self.permute(*(i for i in range(len(self.shape)) if i != axis), axis)
        return self._new(op, (), [last], last.shape[:-1], self.dtype)

    def gather(self, indexes: Self) -> Self:
        """out[i] = self.flat[indexes[i]] for I32 `indexes` of any shape; the result has their shape."""
        if indexes.dtype is not DType.I32:
            raise ShapeError(f"gather: indexes are i32, not {indexes.dtype.value}")
        return self._new("Gather", (), [indexes, self], indexes.shape, self.dtype)

    def scatter(self, indexes: Self, source: Self) -> Self:
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
