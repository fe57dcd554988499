"""Products, convolutions, pools and norms. Narrow floats are computed in f32."""

from collections.abc import Sequence

from engine.compiler import nn
from engine.compiler.backends.aten.site import Site, Table, Value, broadcast, widened
from engine.compiler.shape import product
from engine.compiler.tensor import Tensor


def _wide(x: Tensor) -> Tensor:
    return x.cast(widened(x.dtype))


def _matmul(at: Site, a: Tensor, b: Tensor) -> Tensor:
    return _wide(a).matmul(_wide(b))


def _addmm(
    at: Site, bias: Tensor, a: Tensor, b: Tensor, beta: float = 1, alpha: float = 1
) -> Tensor:
    y = _matmul(at, a, b)
    y = y if alpha == 1 else y * alpha
    added = broadcast(_wide(bias), at.shape)
    return y + (added if beta == 1 else added * beta)


def _convolution(
    at: Site,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Tensor:
    """x [n, c_in, *size]: the batch is one more axis, along which windows are of one."""
    if transposed:
        raise at.refuse("a transposed convolution")
    taps = len(weight.shape) - 2
    y = nn.conv(
        _wide(x).transpose(0, 1),
        _wide(weight).expand(2, 1),
        None if bias is None else _wide(bias),
        stride=(1, *_each(stride, taps)),
        padding=(0, *_each(padding, taps)),
        dilation=(1, *_each(dilation, taps)),
        groups=groups,
    )
    return y.transpose(0, 1)


def _each(values: Sequence[int], axes: int) -> tuple[int, ...]:
    return tuple(values) * axes if len(values) == 1 else tuple(values)


def _flat_channels(x: Tensor, taps: int) -> Tensor:
    """All axes before the last ones as one."""
    return x.reshape(product(x.shape[:-taps]), *x.shape[-taps:])


def _max_pool(
    at: Site,
    x: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> Value:
    if ceil_mode:
        raise at.refuse("ceil_mode=True")
    if any(d != 1 for d in dilation):
        raise at.refuse(f"dilation {tuple(dilation)}")
    size = _each(kernel_size, 2)
    y = nn.max_pool(_flat_channels(x, 2), size, _each(stride, 2) or size, _each(padding, 2))
    return y.reshape(*at.shape), None


def _mean_pool(
    at: Site,
    x: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    if ceil_mode or divisor_override:
        raise at.refuse("ceil_mode=True" if ceil_mode else "divisor_override")
    if any(padding) and not count_include_pad:
        raise at.refuse("count_include_pad=False")
    size = _each(kernel_size, 2)
    y = nn.mean_pool(_flat_channels(_wide(x), 2), size, _each(stride, 2) or size, _each(padding, 2))
    return y.reshape(*at.shape)


def _adaptive_mean_pool(at: Site, x: Tensor, output_size: Sequence[int]) -> Tensor:
    sizes = x.shape[-2:]
    if any(n % m for n, m in zip(sizes, output_size, strict=True)):  # type: ignore[operator]
        raise at.refuse(f"an output of {tuple(output_size)}, which does not divide {sizes},")
    size = tuple(n // m for n, m in zip(sizes, output_size, strict=True))  # type: ignore[operator]
    return nn.mean_pool(_flat_channels(_wide(x), 2), size, size).reshape(*at.shape)


def _layer_norm(
    at: Site,
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> Value:
    size = product(normalized_shape)
    rows = _wide(x).reshape(product(x.shape[: len(x.shape) - len(normalized_shape)]), size)
    flat = [None if p is None else _wide(p).reshape(size) for p in (weight, bias)]
    return nn.layer_norm(rows, flat[0], flat[1], eps).reshape(*at.shape), None, None


def _group_norm(
    at: Site,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    n: int,
    channels: int,
    size: int,
    groups: int,
    eps: float,
) -> Value:
    rows = _wide(x).reshape(n * groups, channels // groups * size)
    y = nn.layer_norm(rows, eps=eps).reshape(*x.shape)
    return _scaled(y, weight, bias), None, None


def _batch_norm(
    at: Site,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    var: Tensor,
    momentum: float,
    eps: float,
) -> Value:
    """With running statistics. What depends on them alone is a scale and a shift of each channel."""
    scale = (_wide(var) + eps).sqrt().recip()
    scale = scale if weight is None else scale * _wide(weight)
    shift = -_wide(mean) * scale
    shift = shift if bias is None else shift + _wide(bias)
    return _scaled(_wide(x), scale, shift), None, None


def _scaled(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """x [n, channels, ...] times weight [channels] plus bias [channels]."""
    y = x if weight is None else x * _wide(weight)._along(1, x.shape)
    return y if bias is None else y + _wide(bias)._along(1, x.shape)


def _upsample(
    at: Site,
    x: Tensor,
    output_size: Sequence[int] | None,
    scale_factors: Sequence[float] | None = None,
) -> Tensor:
    for axis in (2, 3):
        times, rest = divmod(at.shape[axis], x.shape[axis])  # type: ignore[operator]
        if rest:
            raise at.refuse(f"{x.shape[axis]} elements as {at.shape[axis]}")
        x = x.expand(axis + 1, times).merge(axis)
    return x


LAYERS: Table = {
    "aten.mm.default": _matmul,
    "aten.bmm.default": _matmul,
    "aten.addmm.default": _addmm,
    "aten.convolution.default": _convolution,
    "aten.max_pool2d_with_indices.default": _max_pool,
    "aten.avg_pool2d.default": _mean_pool,
    "aten._adaptive_avg_pool2d.default": _adaptive_mean_pool,
    "aten.native_layer_norm.default": _layer_norm,
    "aten.native_group_norm.default": _group_norm,
    "aten._native_batch_norm_legit_no_training.default": _batch_norm,
    "aten.upsample_nearest2d.vec": _upsample,
}
