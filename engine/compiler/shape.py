"""Dimensions and views.

A dimension is an `int` or a `Dim`: a polynomial over named symbols with integer coefficients, kept in one normal form,
so that equal dimensions are equal objects and print the same text.

A `View` says how a logical tensor reads a flat buffer. Each logical axis is a row-major list of (size, stride) factors,
as in CuTe's layouts: merging axes concatenates their factors, so permute, expand, split, merge, slice and flip never
copy.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path

Size = "int | Dim"
_COMPILER = Path(__file__).parent


class ShapeError(ValueError):
    """An operation was given shapes that it cannot work with; the message ends with the caller's file and line."""

    def __init__(self, message: str) -> None:
        frame = sys._getframe(1)
        while frame.f_back and Path(frame.f_code.co_filename).is_relative_to(_COMPILER):
            frame = frame.f_back
        super().__init__(f"{message} ({Path(frame.f_code.co_filename).name}:{frame.f_lineno})")


@dataclass(frozen=True)
class Dim:
    """A non-constant integer polynomial: terms of (sorted symbol names, coefficient), sorted, none zero."""

    terms: tuple[tuple[tuple[str, ...], int], ...]

    def __add__(self, other: "int | Dim") -> "int | Dim":
        return _normal([*self.terms, *_terms(other)])

    def __mul__(self, other: "int | Dim") -> "int | Dim":
        return _normal(
            (tuple(sorted(a + b)), x * y) for a, x in self.terms for b, y in _terms(other)
        )

    def __sub__(self, other: "int | Dim") -> "int | Dim":
        return self + (other * -1)

    def __rsub__(self, other: int) -> "int | Dim":
        return self * -1 + other

    def __neg__(self) -> "int | Dim":
        return self * -1

    __radd__ = __add__
    __rmul__ = __mul__

    def __str__(self) -> str:
        return self.code({})

    __repr__ = __str__

    def code(self, names: Mapping[str, str]) -> str:
        """Text of the polynomial (also valid C), with symbols replaced by `names`."""
        return "+".join(
            "*".join([*([str(c)] if c != 1 or not m else []), *(names.get(s, s) for s in m)])
            for m, c in self.terms
        )

    def at(self, dims: Mapping[str, int]) -> int:
        """Value for given symbols; raises `KeyError` for one that is missing."""
        return sum(c * prod(dims[s] for s in m) for m, c in self.terms)

    @property
    def symbols(self) -> frozenset[str]:
        return frozenset(s for m, _ in self.terms for s in m)


def symbol(name: str) -> Dim:
    """The dimension that is a named symbol."""
    if not name.isidentifier():
        raise ShapeError(f"a symbol's name must be an identifier, not {name!r}")
    return Dim((((name,), 1),))


def _terms(d: int | Dim) -> Sequence[tuple[tuple[str, ...], int]]:
    return d.terms if isinstance(d, Dim) else [((), d)]


def _normal(terms: Iterable[tuple[tuple[str, ...], int]]) -> int | Dim:
    total: dict[tuple[str, ...], int] = {}
    for monomial, coefficient in terms:
        total[monomial] = total.get(monomial, 0) + coefficient
    kept = tuple(sorted((m, c) for m, c in total.items() if c))
    if not kept or (len(kept) == 1 and not kept[0][0]):
        return kept[0][1] if kept else 0
    # Constants last reads better: "r+1", not "1+r".
    return Dim(tuple(t for t in kept if t[0]) + tuple(t for t in kept if not t[0]))


def evaluate(d: int | Dim, dims: Mapping[str, int]) -> int:
    """Value of a dimension for given symbols."""
    return d.at(dims) if isinstance(d, Dim) else d


def substitute(d: int | Dim, dims: Mapping[str, int]) -> int | Dim:
    """The dimension with some symbols replaced by numbers."""
    if isinstance(d, int):
        return d
    return _normal(
        (tuple(s for s in m if s not in dims), c * prod(dims[s] for s in m if s in dims))
        for m, c in d.terms
    )


def product(sizes: Iterable[int | Dim]) -> int | Dim:
    """Product of dimensions; 1 for none."""
    total: int | Dim = 1
    for size in sizes:
        total = size if total == 1 else total * size
    return total


def exact_quotient(a: int | Dim, b: int | Dim) -> int | Dim | None:
    """a / b where b divides every term of a, else None. b is an int or a single term."""
    if a == b:
        return 1
    divisor = _terms(b)
    if len(divisor) != 1:
        return None
    (symbols, factor), quotient = divisor[0], []
    for monomial, coefficient in _terms(a):
        rest = list(monomial)
        for s in symbols:
            if s not in rest:
                return None
            rest.remove(s)
        if factor == 0 or coefficient % factor:
            return None
        quotient.append((tuple(rest), coefficient // factor))
    return _normal(quotient)


def parse_dim(text: str) -> int | Dim:
    """The dimension that prints as `text`."""
    terms = []
    for term in text.split("+"):
        factors = term.split("*")
        numbers = [f for f in factors if not f.isidentifier()]
        names = tuple(sorted(f for f in factors if f.isidentifier()))
        terms.append((names, int(numbers[0]) if numbers else 1))
    return _normal(terms)


Factor = tuple["int | Dim", "int | Dim"]  # (size, stride in elements)
Axis = tuple[Factor, ...]
Shape = tuple["int | Dim", ...]


def _coalesce(factors: Iterable[Factor]) -> Axis:
    """Merge neighbours that one stride can walk; drop factors of size 1."""
    out: list[Factor] = []
    for size, stride in factors:
        if size == 1:
            continue
        if out and out[-1][1] == size * stride:
            out[-1] = (out[-1][0] * size, stride)
        else:
            out.append((size, stride))
    return tuple(out)


@dataclass(frozen=True)
class View:
    """Logical axes over a flat buffer: element (i0, i1, ...) sits at offset + the factors' strided sums."""

    axes: tuple[Axis, ...]
    offset: "int | Dim" = 0

    @staticmethod
    def contiguous(shape: Shape) -> "View":
        axes: list[Axis] = []
        stride: int | Dim = 1
        for size in reversed(shape):
            axes.append(_coalesce([(size, stride)]))
            stride = stride * size
        return View(tuple(reversed(axes)))

    @cached_property
    def shape(self) -> Shape:
        return tuple(product(size for size, _ in axis) for axis in self.axes)

    @property
    def factors(self) -> Axis:
        """All axes as one."""
        return _coalesce(factor for axis in self.axes for factor in axis)

    @cached_property
    def is_contiguous(self) -> bool:
        return self == View.contiguous(self.shape)

    def is_first_part(self, buffer: Shape) -> bool:
        """Whether it reads the first elements of a buffer without a gap, but not all: only the buffer's shape tells it
        from a view of a whole, smaller one."""
        steps = [(size, stride) for axis in self.axes for size, stride in axis if stride != 0]
        count = product(size for size, _ in steps)
        end = sum(((size - 1) * stride for size, stride in steps), start=1)
        return self.offset == 0 and end == count != product(buffer)

    def permute(self, order: Sequence[int]) -> "View":
        if sorted(order) != list(range(len(self.axes))):
            raise ShapeError(f"permute: {tuple(order)} is no order of {len(self.axes)} axes")
        return View(tuple(self.axes[i] for i in order), self.offset)

    def insert(self, axis: int, size: int | Dim) -> "View":
        """A new axis of `size` that repeats the tensor (stride 0)."""
        if not 0 <= axis <= len(self.axes):
            raise ShapeError(f"expand: no place for axis {axis} in {len(self.axes)} axes")
        return View((*self.axes[:axis], _coalesce([(size, 0)]), *self.axes[axis:]), self.offset)

    def drop(self, axis: int) -> "View":
        """Without an axis of size 1."""
        if self.shape[axis] != 1:
            raise ShapeError(f"squeeze: axis {axis} of {self.shape} is not of size 1")
        return View((*self.axes[:axis], *self.axes[axis + 1 :]), self.offset)

    def merge(self, axis: int) -> "View":
        """Axes `axis` and `axis + 1` as one."""
        if not 0 <= axis < len(self.axes) - 1:
            raise ShapeError(f"merge: {self.shape} has no axes {axis} and {axis + 1}")
        merged = _coalesce((*self.axes[axis], *self.axes[axis + 1]))
        return View((*self.axes[:axis], merged, *self.axes[axis + 2 :]), self.offset)

    def split(self, axis: int, inner: int | Dim) -> "View":
        """Axis `axis` of size n as two of sizes (n / inner, inner); inner must divide n where a factor is cut."""
        outer_factors: list[Factor] = []
        inner_factors: list[Factor] = []
        need = inner
        for size, stride in reversed(self.axes[axis]):
            if need == 1:
                outer_factors.append((size, stride))
            elif (rest := exact_quotient(need, size)) is not None:
                inner_factors.append((size, stride))
                need = rest
            elif (rest := exact_quotient(size, need)) is not None:
                inner_factors.append((need, stride))
                outer_factors.append((rest, stride * need))
                need = 1
            else:
                break
        if need != 1:
            raise ShapeError(f"split: {inner} does not divide axis {axis} of {self.shape}")
        pair = (_coalesce(reversed(outer_factors)), _coalesce(reversed(inner_factors)))
        return View((*self.axes[:axis], *pair, *self.axes[axis + 1 :]), self.offset)

    def slice(self, axis: int, start: int | Dim, stop: int | Dim) -> "View":
        """Elements start..stop of an axis that one stride walks."""
        factors = self.axes[axis] or ((1, 0),)
        size = self.shape[axis]
        if all(isinstance(x, int) for x in (start, stop, size)) and not 0 <= start <= stop <= size:  # type: ignore[operator]
            raise ShapeError(f"slice: {start}..{stop} is not inside axis {axis} of {self.shape}")
        if len(factors) > 1:
            raise ShapeError(f"slice: axis {axis} of {self.shape} is merged from strided axes")
        stride = factors[0][1]
        axes = (*self.axes[:axis], _coalesce([(stop - start, stride)]), *self.axes[axis + 1 :])
        return View(axes, self.offset + start * stride)

    def unfold(self, axis: int, size: int, step: int, dilation: int) -> "View":
        """An axis that one stride walks as two: its windows, and the `size` elements of each."""
        length, reach = self.shape[axis], dilation * (size - 1) + 1
        if min(size, step, dilation) < 1:
            raise ShapeError(
                f"unfold: size, step and dilation are at least 1, not {size}, {step}, {dilation}"
            )
        if len(self.axes[axis]) > 1:
            raise ShapeError(f"unfold: axis {axis} of {self.shape} is merged from strided axes")
        if isinstance(length, Dim) and step > 1:
            raise ShapeError(
                f"unfold: axis {axis} of {self.shape} has no fixed size, so steps are of 1"
            )
        if isinstance(length, int) and length < reach:
            raise ShapeError(
                f"unfold: windows of {reach} do not fit into axis {axis} of {self.shape}"
            )
        windows = length - reach + 1 if isinstance(length, Dim) else (length - reach) // step + 1
        stride = self.axes[axis][0][1] if self.axes[axis] else 0
        pair = (_coalesce([(windows, stride * step)]), _coalesce([(size, stride * dilation)]))
        return View((*self.axes[:axis], *pair, *self.axes[axis + 1 :]), self.offset)

    def flip(self, axis: int) -> "View":
        """An axis in reverse order."""
        offset = self.offset
        flipped: list[Factor] = []
        for size, stride in self.axes[axis]:
            offset = offset + (size - 1) * stride
            flipped.append((size, stride * -1))
        return View((*self.axes[:axis], tuple(flipped), *self.axes[axis + 1 :]), offset)


# Loops of (size, how each view walks it): by a stride, or by factors that are no loops of their own.
Nest = list[tuple["int | Dim", tuple["int | Dim | Axis", ...]]]


def common_factors(views: Sequence[View], axis: int) -> Nest:
    """One loop nest for an axis that several views walk: rows of (size, a stride for each view), outermost first.

    Where the views cut the axis at places that no common nest has (6 as 2 x 3 and as 3 x 2), it is one loop, along
    which those views have all their factors. Raises `ShapeError` when the views' sizes differ.
    """
    stacks = [list(view.axes[axis]) for view in views]
    rows: Nest = []
    while any(stacks):
        tails = [stack[-1][0] for stack in stacks if stack]
        size = tails[0]
        for tail in tails[1:]:
            if exact_quotient(tail, size) is None:
                size = tail
        strides: list[int | Dim] = []
        for stack in stacks:
            if not stack:
                raise ShapeError("views of one axis have different sizes")
            tail, stride = stack.pop()
            rest = exact_quotient(tail, size)
            if rest is None:
                factors = [view.axes[axis] for view in views]
                whole = product(size for size, _ in factors[0])
                return [(whole, tuple(f[0][1] if len(f) == 1 else f for f in factors))]
            if rest != 1:
                stack.append((rest, stride * size))
            strides.append(stride)
        rows.append((size, tuple(strides)))
    return rows[::-1]


def loop_nest(views: Sequence[View]) -> Nest:
    """The fewest nested loops that walk all views together: rows of (size, a stride for each view)."""
    rows: Nest = []
    for axis in range(len(views[0].axes)):
        for size, strides in common_factors(views, axis):
            if rows and all(
                not isinstance(inner, tuple) and outer == size * inner
                for outer, inner in zip(rows[-1][1], strides, strict=True)
            ):
                rows[-1] = (rows[-1][0] * size, strides)
            else:
                rows.append((size, strides))
    return rows
