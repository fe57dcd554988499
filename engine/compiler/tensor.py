"""The tensor that model code holds, with what is composed of indexing: orders, slices at places, padding, joining.

Axes may be negative. Names and results are NumPy's where it has the function, unless a method says otherwise.
"""

from collections.abc import Sequence
from typing import Any

from engine.compiler.arithmetic import Arithmetic
from engine.compiler.dtype import DType
from engine.compiler.handle import Number
from engine.compiler.shape import Dim, Shape, ShapeError, View, product


class Tensor(Arithmetic):
    # -- order ---------------------------------------------------------------------------------------------------

    def argmax(self, axis: int) -> "Tensor":
        """i32; of equal elements the first, and the first NaN where there is one."""
        axis = self._axis(axis)
        size = self.shape[axis]
        is_top = self.eq(self.max(axis).expand(axis, size))
        if self.dtype.is_float:
            is_top = is_top | self.ne(self)
        places = self.graph.iota(size)._along(axis, self.shape)
        return is_top.select(places, size).min(axis)

    def argsort(self, axis: int = -1, descending: bool = False) -> "Tensor":
        """i32 places of the elements in order; equal ones keep theirs, and NaNs come last."""
        axis = self._axis(axis)
        rank = len(self.shape)
        last = self.transpose(axis, rank - 1)
        exact = self.dtype in (DType.F32, DType.I32, DType.I64)
        rows = last if exact else last.cast(DType.F32 if self.dtype.is_float else DType.I32)
        rows = rows if rows.is_dense else rows.copy()
        expansion = rows._order_of_primitives(descending)
        node = self.graph.add(
            "ArgSort", (int(descending),), [rows], rows.shape, DType.I32, expansion
        )
        return Tensor(self.graph, node, View.contiguous(rows.shape)).transpose(axis, rank - 1)

    def _order_of_primitives(self, descending: bool) -> "Tensor":
        """An element's rank is the number of elements before it; its place is written at its rank."""
        n = self.shape[-1]
        rank = len(self.shape)
        mine, other = self.expand(rank, n), self.expand(rank - 1, n)  # [..., i, j]
        before = other > mine if descending else other < mine
        tied = other.eq(mine)
        if self.dtype.is_float:
            before = before | (other.eq(other) & mine.ne(mine))
            tied = tied | (other.ne(other) & mine.ne(mine))
        earlier = self.graph.iota(n)._along(rank, mine.shape) < self.graph.iota(n)._along(
            rank - 1, mine.shape
        )
        ranks = (before | (tied & earlier)).cast(DType.I32).sum(-1)
        places = self.graph.iota(n)._along(rank - 1, self.shape)
        blank = self.graph.constant(0, DType.I32)._broadcast(self.shape)
        return blank.scatter(ranks._flat(self.shape, rank - 1), places)

    def topk(self, k: int, axis: int = -1) -> tuple["Tensor", "Tensor"]:
        """(values, i32 places) of the k largest along an axis, the largest first."""
        axis = self._axis(axis)
        size = self.shape[axis]
        if isinstance(size, int) and not 1 <= k <= size:
            raise ShapeError(f"topk: {k} of axis {axis} of {self.shape}")
        places = self.argsort(axis, descending=True).slice(axis, 0, k).copy()
        return self.take_along(axis, places), places

    def cumsum(self, axis: int) -> "Tensor":
        axis = self._axis(axis)
        rank = len(self.shape)
        rows = self.transpose(axis, rank - 1)
        rows = rows if rows.is_dense else rows.copy()
        n = rows.shape[-1]
        places = self.graph.iota(n)
        square = (*rows.shape, n)  # [..., i, j]
        later = places._along(rank - 1, square) < places._along(rank, square)
        expansion = later.select(0, rows.expand(rank - 1, n)).sum(-1)
        node = self.graph.add("CumSum", (), [rows], rows.shape, self.dtype, expansion)
        return Tensor(self.graph, node, View.contiguous(rows.shape)).transpose(axis, rank - 1)

    # -- indexing ------------------------------------------------------------------------------------------------

    def numel(self) -> "int | Dim":
        return product(self.shape)

    def _along(self, axis: int, shape: Shape) -> "Tensor":
        """A vector laid along one axis of a shape and repeated along the others."""
        result = self
        for at, size in enumerate(shape):
            if at != axis:
                result = result.expand(at, size)
        return result

    def _flat(self, data: Shape, axis: int) -> "Tensor":
        """Flat indexes [as self] into a row-major tensor of shape `data`.

        Along `axis` they are these places, along the other axes the element's own.
        """
        stride = product(data[axis + 1 :])
        flat = self * stride
        for at in range(len(data)):
            if at != axis:
                own = self.graph.iota(data[at]) * product(data[at + 1 :])
                flat = flat + own._along(at, self.shape)
        return flat

    def take(self, axis: int, places: "Tensor") -> "Tensor":
        """Slices at i32 `places` [m] of an axis, which becomes one of size m."""
        axis = self._axis(axis)
        shape = (*self.shape[:axis], places.shape[0], *self.shape[axis + 1 :])
        return self.gather(places._along(axis, shape)._flat(self.shape, axis))

    def take_along(self, axis: int, places: "Tensor") -> "Tensor":
        """out[.., i, ..] = self[.., places[.., i, ..], ..]; the other axes of i32 `places` are those of self."""
        axis = self._axis(axis)
        wanted = (*self.shape[:axis], *self.shape[axis + 1 :])
        if (*places.shape[:axis], *places.shape[axis + 1 :]) != wanted:
            raise ShapeError(
                f"take_along: {places.shape} does not fit {self.shape} along axis {axis}"
            )
        return self.gather(places._flat(self.shape, axis))

    def pad(self, axis: int, before: int, after: int, value: Number = 0) -> "Tensor":
        """`value` so many times before and after an axis."""
        if min(before, after) < 0:
            raise ShapeError(f"pad: {before} and {after} are not both 0 or more")
        axis = self._axis(axis)
        size = self.shape[axis]
        shape = (*self.shape[:axis], size + before + after, *self.shape[axis + 1 :])
        places = self.graph.iota(shape[axis]) - before
        inside = (places < 0).select(self.graph.constant(0, DType.BOOL), places < size)
        kept = self.take(axis, places.clamp(0, size - 1))
        return inside._along(axis, shape).select(kept, value)

    # -- contraction ---------------------------------------------------------------------------------------------

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


def concat(parts: Sequence[Tensor], axis: int) -> Tensor:
    """Tensors one after another along an axis; their other axes are equal."""
    if len(parts) > 2:
        half = len(parts) // 2
        return concat([concat(parts[:half], axis), concat(parts[half:], axis)], axis)
    if len(parts) == 1:
        return parts[0]
    a, b = parts
    axis = a._axis(axis)
    if len(a.shape) != len(b.shape) or any(
        x != y for at, (x, y) in enumerate(zip(a.shape, b.shape, strict=True)) if at != axis
    ):
        raise ShapeError(f"concat: {a.shape} and {b.shape} differ beside axis {axis}")
    if a.dtype != b.dtype:
        raise ShapeError(f"concat: types {a.dtype.value} and {b.dtype.value} differ (use cast)")
    cut, size = a.shape[axis], a.shape[axis] + b.shape[axis]
    places = a.graph.iota(size)
    first = a.take(axis, places.minimum(cut - 1))
    second = b.take(axis, (places - cut).maximum(0))
    shape: Any = (*a.shape[:axis], size, *a.shape[axis + 1 :])
    return (places < cut)._along(axis, shape).select(first, second)


def stack(parts: Sequence[Tensor], axis: int) -> Tensor:
    """Tensors of one shape along a new axis."""
    return concat([part.expand(axis, 1) for part in parts], axis)
