"""Reductions along axes, orders and running sums."""

from collections.abc import Callable, Sequence

from engine.compiler.backends.aten.site import Site, Table, widened
from engine.compiler.dtype import DType
from engine.compiler.tensor import Tensor

Axes = Sequence[int] | int | None


def _axes(at: Site, x: Tensor, dim: Axes) -> list[int]:
    """The axes that are named; none, and none named, are all."""
    rank = len(x.shape)
    named = [dim] if isinstance(dim, int) else list(dim or range(rank))
    return sorted({at.axis(d, rank) for d in named}) if rank else []


def _kept(x: Tensor, axes: Sequence[int], keepdim: bool) -> Tensor:
    for axis in axes if keepdim else ():
        x = x.expand(axis, 1)
    return x


def _over(at: Site, x: Tensor, dim: Axes, keepdim: bool, function: Callable[..., Tensor]) -> Tensor:
    axes = _axes(at, x, dim)
    return _kept(function(x, *axes), axes, keepdim) if axes else x


def _sum(
    at: Site, x: Tensor, dim: Axes = None, keepdim: bool = False, dtype: DType | None = None
) -> Tensor:
    return _over(at, x.cast(at.wide), dim, keepdim, Tensor.sum)


def _mean(
    at: Site, x: Tensor, dim: Axes = None, keepdim: bool = False, dtype: DType | None = None
) -> Tensor:
    return _over(at, x.cast(at.wide), dim, keepdim, Tensor.mean)


def _whole_mean(at: Site, x: Tensor, dtype: DType | None = None) -> Tensor:
    return _mean(at, x)


def _var(
    at: Site, x: Tensor, dim: Axes = None, correction: int | None = None, keepdim: bool = False
) -> Tensor:
    divisor = 1 if correction is None else correction

    def function(x: Tensor, *axes: int) -> Tensor:
        return x.var(*axes, correction=divisor)

    return _over(at, x.cast(at.wide), dim, keepdim, function)


def _amax(at: Site, x: Tensor, dim: Axes = None, keepdim: bool = False) -> Tensor:
    return _over(at, x, dim, keepdim, Tensor.max)


def _amin(at: Site, x: Tensor, dim: Axes = None, keepdim: bool = False) -> Tensor:
    return _over(at, x, dim, keepdim, Tensor.min)


def _any(at: Site, x: Tensor, dim: Axes = None, keepdim: bool = False) -> Tensor:
    return _over(at, x.cast(DType.BOOL), dim, keepdim, Tensor.any)


def _argmax(at: Site, x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    if dim is None:
        found = x.reshape(x.numel()).argmax(0)
        return _kept(found, range(len(x.shape)), keepdim)
    axis = at.axis(dim, len(x.shape))
    return _kept(x.argmax(axis), [axis], keepdim)


def _argmin(at: Site, x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    return _argmax(at, -x, dim, keepdim)


def _max_along(at: Site, x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, ...]:
    return _amax(at, x, dim, keepdim), _argmax(at, x, dim, keepdim)


def _min_along(at: Site, x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, ...]:
    return _amin(at, x, dim, keepdim), _argmin(at, x, dim, keepdim)


def _topk(
    at: Site, x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Tensor, ...]:
    axis = at.axis(dim, len(x.shape))
    places = x.argsort(axis, descending=largest).slice(axis, 0, k).copy()
    return x.take_along(axis, places), places


def _sort(at: Site, x: Tensor, dim: int = -1, descending: bool = False) -> tuple[Tensor, ...]:
    axis = at.axis(dim, len(x.shape))
    places = x.argsort(axis, descending)
    return x.take_along(axis, places), places


def _stable_sort(
    at: Site, x: Tensor, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> tuple[Tensor, ...]:
    return _sort(at, x, dim, descending)


def _cumsum(at: Site, x: Tensor, dim: int, dtype: DType | None = None) -> Tensor:
    return x.cast(at.wide).cumsum(dim)


def _softmax(at: Site, x: Tensor, dim: int, half_to_float: bool = False) -> Tensor:
    return x.cast(widened(x.dtype)).softmax(dim)


def _log_softmax(at: Site, x: Tensor, dim: int, half_to_float: bool = False) -> Tensor:
    return x.cast(widened(x.dtype)).log_softmax(dim)


REDUCTIONS: Table = {
    "aten.sum.dim_IntList": _sum,
    "aten.mean.default": _whole_mean,
    "aten.mean.dim": _mean,
    "aten.var.correction": _var,
    "aten.amax.default": _amax,
    "aten.amin.default": _amin,
    "aten.max.default": _amax,
    "aten.min.default": _amin,
    "aten.max.dim": _max_along,
    "aten.min.dim": _min_along,
    "aten.any.default": _any,
    "aten.any.dim": _any,
    "aten.any.dims": _any,
    "aten.argmax.default": _argmax,
    "aten.argmin.default": _argmin,
    "aten.topk.default": _topk,
    "aten.sort.default": _sort,
    "aten.sort.stable": _stable_sort,
    "aten.cumsum.default": _cumsum,
    "aten._softmax.default": _softmax,
    "aten._log_softmax.default": _log_softmax,
}
