"""Views, and reading and writing at places: the values themselves are copied, in the type that they have."""

from collections.abc import Sequence
from typing import Any

from engine.compiler.backends.aten.site import Site, Table, broadcast
from engine.compiler.dtype import DType
from engine.compiler.shape import Dim, Shape, product
from engine.compiler.tensor import Tensor, concat

Size = int | Dim


def _reshape(at: Site, x: Tensor, *_: object) -> Tensor:
    return x.reshape(*at.shape)


def _expand(at: Site, x: Tensor, size: object, implicit: bool = False) -> Tensor:
    return broadcast(x, at.shape)


def _same(at: Site, x: Tensor) -> Tensor:
    return x


def _permute(at: Site, x: Tensor, dims: Sequence[int]) -> Tensor:
    return x.permute(*dims)


def _unsqueeze(at: Site, x: Tensor, dim: int) -> Tensor:
    return x.expand(dim % (len(x.shape) + 1), 1)


def _squeeze(at: Site, x: Tensor, dims: Sequence[int]) -> Tensor:
    for axis in sorted({at.axis(d, len(x.shape)) for d in dims}, reverse=True):
        x = x.squeeze(axis) if x.shape and x.shape[axis] == 1 else x
    return x


def _bound(size: Size, value: Size | None, default: Size) -> Size:
    """An end of a slice: from the back where it is negative, and inside the axis."""
    if value is None:
        return default
    if isinstance(value, Dim):
        return value
    if isinstance(size, Dim):
        return size + value if value < 0 else size if value >= 2**62 else value
    return min(max(value + size if value < 0 else value, 0), size)


def _sliced(x: Tensor, axis: int, start: Size, stop: Size, step: int = 1) -> Tensor:
    x = x if len(x.view.axes[axis]) < 2 else x.copy()
    x = x.slice(axis, start, stop)
    return x if step == 1 else x.unfold(axis, 1, step).squeeze(axis + 1)


def _slice(
    at: Site,
    x: Tensor,
    dim: int = 0,
    start: Size | None = None,
    end: Size | None = None,
    step: int = 1,
) -> Tensor:
    axis = at.axis(dim, len(x.shape))
    size = x.shape[axis]
    return _sliced(x, axis, _bound(size, start, 0), _bound(size, end, size), step)


def _select(at: Site, x: Tensor, dim: int, index: Size) -> Tensor:
    axis = at.axis(dim, len(x.shape))
    start = _from_start(index, x.shape[axis])
    return _sliced(x, axis, start, start + 1).squeeze(axis)


def _from_start(index: Size, size: Size) -> Size:
    return size + index if isinstance(index, int) and index < 0 else index


def _split(at: Site, x: Tensor, sizes: Sequence[Size], dim: int = 0) -> tuple[Tensor, ...]:
    parts, start, axis = [], 0, at.axis(dim, len(x.shape))
    for size in sizes:
        parts.append(_sliced(x, axis, start, start + size))
        start = start + size  # type: ignore[assignment]
    return tuple(parts)


def _cat(at: Site, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    # An empty vector is allowed beside tensors of any rank.
    parts = [t.cast(at.dtype) for t in tensors if t.shape != (0,) or at.shape == (0,)]
    return concat(parts, at.axis(dim, len(at.shape)))


def _flip(at: Site, x: Tensor, dims: Sequence[int]) -> Tensor:
    for dim in dims:
        x = x.flip(dim)
    return x


def _repeat(at: Site, x: Tensor, repeats: Sequence[Size]) -> Tensor:
    for _ in range(len(repeats) - len(x.shape)):
        x = x.expand(0, 1)
    for axis, times in enumerate(repeats):
        x = x if times == 1 else x.repeat(axis, times)
    return x


def _pad(at: Site, x: Tensor, pad: Sequence[int], value: float = 0) -> Tensor:
    """`pad` has the numbers before and after the last axis, then those of the one before it, and so on."""
    for i in range(0, len(pad), 2):
        axis = len(x.shape) - 1 - i // 2
        before, after = pad[i], pad[i + 1]
        if min(before, after) < 0:
            size = x.shape[axis]
            x = _sliced(x, axis, max(-before, 0), size - max(-after, 0))
        if max(before, after) > 0:
            x = x.pad(axis, max(before, 0), max(after, 0), value)
    return x


# -- places ----------------------------------------------------------------------------------------------------------


def _i32(places: Tensor) -> Tensor:
    return places.cast(DType.I32)


def _embedding(at: Site, table: Tensor, ids: Tensor, *_: object) -> Tensor:
    return _rows(table, _i32(ids))


def _rows(table: Tensor, ids: Tensor) -> Tensor:
    """table [n, k] at ids [...]: [..., k]."""
    rank, k = len(ids.shape), table.shape[1]
    columns = ids.graph.iota(k)._along(rank, (*ids.shape, k))
    return table.gather((ids * k).expand(rank, k) + columns)


def _index_select(at: Site, x: Tensor, dim: int, index: Tensor) -> Tensor:
    return x.take(dim, _i32(index))


def _fitted(x: Tensor, axis: int, like: Tensor) -> Tensor:
    """The part of x that places shaped like `like` can reach along an axis."""
    for other, size in enumerate(like.shape):
        if other != axis and x.shape[other] != size:
            x = _sliced(x, other, 0, size)
    return x


def _gather(at: Site, x: Tensor, dim: int, index: Tensor, sparse_grad: bool = False) -> Tensor:
    axis = at.axis(dim, len(x.shape))
    return _fitted(x, axis, index).take_along(axis, _i32(index))


def _places(x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    """Flat places in x of x[indices], where None takes a whole axis.

    The indexes' common shape stands where they stand if they are neighbours, and first if they are not.
    """
    whole: list[Tensor | None] = [*indices, *[None] * (len(x.shape) - len(indices))]
    given = [axis for axis, index in enumerate(whole) if index is not None]
    rank = max(len(whole[axis].shape) for axis in given)  # type: ignore[union-attr]
    shape = tuple(
        next(
            (
                i.shape[at - rank + len(i.shape)]
                for i in whole
                if i is not None
                and at - rank + len(i.shape) >= 0
                and i.shape[at - rank + len(i.shape)] != 1
            ),
            1,
        )
        for at in range(rank)
    )
    adjacent = given == list(range(given[0], given[-1] + 1))
    front = given[0] if adjacent else 0
    rest = [axis for axis in range(len(whole)) if axis not in given]
    before, after = rest[:front], rest[front:]
    out = (*(x.shape[a] for a in before), *shape, *(x.shape[a] for a in after))
    at_axis = {axis: n for n, axis in enumerate(before)}
    at_axis |= {axis: len(before) + rank + n for n, axis in enumerate(after)}
    flat: Tensor | None = None
    for axis, index in enumerate(whole):
        if index is None:
            part = x.graph.iota(x.shape[axis])._along(at_axis[axis], out)
        else:
            index = _i32(index)
            index = (index < 0).select(index + x.shape[axis], index)
            part = broadcast(index, shape)
            for n in range(len(before)):
                part = part.expand(n, out[n])
            for n in range(len(before) + rank, len(out)):
                part = part.expand(n, out[n])
        part = part * product(x.shape[axis + 1 :])
        flat = part if flat is None else flat + part
    assert flat is not None
    return flat


def _checked(at: Site, indices: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    if any(i is not None and i.dtype is DType.BOOL for i in indices):
        raise at.refuse("a mask as an index, whose result has no fixed size,")
    return indices


def _index(at: Site, x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    return x.gather(_places(x, _checked(at, indices)))


def _index_put(
    at: Site,
    x: Tensor,
    indices: Sequence[Tensor | None],
    values: Tensor,
    accumulate: bool = False,
) -> Tensor:
    if accumulate:
        raise at.refuse("accumulate=True")
    places = _places(x, _checked(at, indices))
    return x.scatter(places, broadcast(values, places.shape))


def _flat(data: Shape, axis: int, places: Tensor) -> Tensor:
    """Flat places in a tensor of shape `data`: along `axis` those given, along the others each element's own."""
    flat = places * product(data[axis + 1 :])
    for other, size in enumerate(places.shape):
        if other != axis:
            own = places.graph.iota(size) * product(data[other + 1 :])
            flat = flat + own._along(other, places.shape)
    return flat


def _scatter(at: Site, x: Tensor, dim: int, index: Tensor, source: Any) -> Tensor:
    axis = at.axis(dim, len(x.shape))
    index = _i32(index)
    if not isinstance(source, Tensor):
        source = at.graph.constant(source, x.dtype)._broadcast(index.shape)
    return x.scatter(_flat(x.shape, axis, index), _fitted(source, -1, index))


def _slice_scatter(
    at: Site,
    x: Tensor,
    source: Tensor,
    dim: int = 0,
    start: Size | None = None,
    end: Size | None = None,
    step: int = 1,
) -> Tensor:
    axis = at.axis(dim, len(x.shape))
    places = at.graph.iota(source.shape[axis]) * step + _bound(x.shape[axis], start, 0)
    return x.scatter(_flat(x.shape, axis, places._along(axis, source.shape)), source)


MOVEMENT: Table = {
    "aten.view.default": _reshape,
    "aten.expand.default": _expand,
    "aten.clone.default": _same,
    "aten.alias.default": _same,
    "aten.permute.default": _permute,
    "aten.unsqueeze.default": _unsqueeze,
    "aten.squeeze.dims": _squeeze,
    "aten.slice.Tensor": _slice,
    "aten.select.int": _select,
    "aten.split_with_sizes.default": _split,
    "aten.cat.default": _cat,
    "aten.flip.default": _flip,
    "aten.repeat.default": _repeat,
    "aten.constant_pad_nd.default": _pad,
    "aten.embedding.default": _embedding,
    "aten.index_select.default": _index_select,
    "aten.gather.default": _gather,
    "aten.index.Tensor": _index,
    "aten.index_put.default": _index_put,
    "aten.scatter.src": _scatter,
    "aten.scatter.value": _scatter,
    "aten.slice_scatter.default": _slice_scatter,
}
