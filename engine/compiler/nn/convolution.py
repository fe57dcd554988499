"""Convolutions, pooling and upsampling: windows are views, so that nothing is copied per window."""

from collections.abc import Sequence

from engine.compiler.shape import ShapeError
from engine.compiler.tensor import Tensor

Each = int | Sequence[int]  # one number for all axes, or one for each


def conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    stride: Each = 1,
    padding: Each = 0,
    dilation: Each = 1,
    groups: int = 1,
) -> Tensor:
    """x [c_in, *size], weight [c_out, c_in / groups, *kernel], bias [c_out] -> [c_out, *windows].

    Cross-correlation as in torch.nn.Conv1d and Conv2d, in as many dimensions as there are sizes.
    """
    kernel = weight.shape[2:]
    if len(x.shape) != len(kernel) + 1 or x.shape[0] != weight.shape[1] * groups:
        raise ShapeError(f"conv: {x.shape} does not fit weights {weight.shape} in {groups} groups")
    out = weight.shape[0]
    windows = _windows(x, kernel, stride, padding, dilation, 0.0)  # [c_in, *windows, *kernel]
    places, taps = windows.shape[1 : len(kernel) + 1], len(kernel)
    # [groups, c_in / groups, *windows, *kernel] -> [groups, *windows, c_in / groups, *kernel]
    grouped = windows.split(0, weight.shape[1])
    order = (0, *range(2, 2 + taps), 1, *range(2 + taps, 2 + 2 * taps))
    columns = grouped.permute(*order)
    filters = weight.split(0, out // groups)  # type: ignore[operator]
    columns = columns.expand(1, out // groups)  # type: ignore[operator]
    for at, size in enumerate(places):
        filters = filters.expand(2 + at, size)
    for _ in range(taps):
        columns, filters = (x.merge(len(x.shape) - 2) for x in (columns, filters))
    y = (columns * filters).sum(-1).merge(0)
    return y if bias is None else y + bias._along(0, y.shape)


def max_pool(x: Tensor, size: Each, stride: Each | None = None, padding: Each = 0) -> Tensor:
    """Largest of each window over the axes after the first: [c, *size] -> [c, *windows]."""
    taps = len(x.shape) - 1
    windows = _windows(x, _each(size, taps), stride or size, padding, 1, float("-inf"))
    return windows.max(*range(1 + taps, 1 + 2 * taps))


def mean_pool(x: Tensor, size: Each, stride: Each | None = None, padding: Each = 0) -> Tensor:
    """Mean of each window, zeros that pad it included."""
    taps = len(x.shape) - 1
    windows = _windows(x, _each(size, taps), stride or size, padding, 1, 0.0)
    return windows.mean(*range(1 + taps, 1 + 2 * taps))


def upsample(x: Tensor, times: int) -> Tensor:
    """Each element of the axes after the first, so many times (nearest neighbour)."""
    for axis in range(1, len(x.shape)):
        x = x.expand(axis + 1, times).merge(axis)
    return x


def _each(value: Each, axes: int) -> tuple[int, ...]:
    return (value,) * axes if isinstance(value, int) else tuple(value)


def _windows(
    x: Tensor, kernel: Sequence[object], stride: Each, padding: Each, dilation: Each, value: float
) -> Tensor:
    """[c, *size] -> [c, *windows, *kernel]."""
    taps = len(kernel)
    rules = zip(*(_each(rule, taps) for rule in (stride, padding, dilation)), strict=True)
    for at, (size, (step, around, apart)) in enumerate(zip(kernel, rules, strict=True)):
        assert isinstance(size, int)
        axis = 1 + 2 * at
        x = x.pad(axis, around, around, value) if around else x
        x = x.unfold(axis, size, step, apart)
    return x.permute(0, *range(1, 1 + 2 * taps, 2), *range(2, 2 + 2 * taps, 2))
