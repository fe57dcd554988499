"""Random views of a shape, each with the places in the buffer that NumPy's own indexing says it reads."""

from math import prod
from typing import NamedTuple

import numpy as np

from engine.compiler.shape import Shape, View, evaluate, symbol
from engine.ops.base import Array
from engine.ops.views import Raw

DIMS = {"t": 5}
"""The value of the one symbol that a random shape may have."""


class Walk(NamedTuple):
    """A view of a buffer of `size` elements, as egglog prints it, and the places that it reads in order."""

    view: View
    places: Array
    shape: Shape

    @property
    def size(self) -> int:
        return prod(evaluate(d, DIMS) for d in self.shape)

    @property
    def raw(self) -> Raw:
        return raw_view(self.view)


def raw_shape(shape: Shape) -> Raw:
    """A shape as extraction decodes it from egglog."""
    return tuple(str(d) for d in shape), ""


def raw_view(view: View) -> Raw:
    """A view as extraction decodes it."""
    axes = [
        str(axis[0][1] if axis else 0)
        if len(axis) < 2
        else "(" + ",".join(f"{size}:{stride}" for size, stride in axis) + ")"
        for axis in view.axes
    ]
    return tuple(axes), str(view.offset)


def random_shape(rng: np.random.Generator, rank: int | None = None) -> Shape:
    rank = int(rng.integers(1, 4)) if rank is None else rank
    return tuple(
        symbol("t") if rng.random() < 0.2 else int(rng.choice([1, 2, 3, 6, 7])) for _ in range(rank)
    )


def random_walk(rng: np.random.Generator, shape: Shape) -> Walk:
    """A view of `shape` whose axes lie in any order, some of them repeated, reversed, cut out of a larger axis or
    merged from two (6 from 2 x 3 or from 3 x 2)."""
    parts: list[tuple[int, str]] = []  # (axis of the result, what is done to it), in order
    for axis, size in enumerate(shape):
        kinds = ["plain", "plain", "repeat", "flip", "slice"]
        if size == 6 and rng.random() < 0.7:
            parts += [(axis, "outer"), (axis, "inner")]
        else:
            parts.append((axis, str(rng.choice(kinds))))
    held = [part for part in parts if part[1] != "repeat"]
    order = [int(i) for i in rng.permutation(len(held))]
    outer = int(rng.integers(2, 4))
    sizes = {"outer": outer, "inner": 6 // outer}
    base = tuple(
        sizes.get(kind, shape[axis] + 2 if kind == "slice" else shape[axis])
        for axis, kind in (held[i] for i in order)
    )
    view = View.contiguous(base)
    numbers = [evaluate(d, DIMS) for d in base]
    array: Array = np.arange(prod(numbers)).reshape(numbers)
    back = [order.index(i) for i in range(len(order))]
    view, array = view.permute(back), array.transpose(back)
    at = 0
    for axis, kind in parts:
        size = shape[axis]
        match kind:
            case "repeat":
                view = view.insert(at, size)
                array = np.repeat(np.expand_dims(array, at), evaluate(size, DIMS), at)
            case "flip":
                view, array = view.flip(at), np.flip(array, at)
            case "slice":
                view = view.slice(at, 1, size + 1)
                array = array.take(range(1, evaluate(size, DIMS) + 1), at)
            case "inner":
                at -= 1
                view = view.merge(at)
                array = array.reshape(*array.shape[:at], 6, *array.shape[at + 2 :])
            case _:
                pass
        at += 1
    return Walk(view, array, base)
