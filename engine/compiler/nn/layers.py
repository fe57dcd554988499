"""Linear layers, tables, norms and gates."""

from engine.compiler.dtype import DType
from engine.compiler.shape import Dim, product
from engine.compiler.tensor import Tensor


def width(x: Tensor) -> int:
    """Size of the last axis, which has to be a number."""
    size = x.shape[-1]
    assert isinstance(size, int)
    return size


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [t, k], weight [n, k], bias [n] -> x @ weight.T + bias [t, n] (torch.nn.Linear's layout)."""
    y = x.matmul(weight.cast(DType.F32).transpose(0, 1))
    return y if bias is None else y + bias.cast(DType.F32).expand(0, x.shape[0])


def embedding(table: Tensor, ids: Tensor) -> Tensor:
    """table [n, k], ids [...] i32 -> [..., k]."""
    rank, k = len(ids.shape), table.shape[1]
    columns = ids.graph.iota(k)._along(rank, (*ids.shape, k))
    return table.gather((ids * k).expand(rank, k) + columns)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..., k] / sqrt(mean(x^2) + eps) * weight [k] (Zhang and Sennrich 2019)."""
    rows, k = product(x.shape[:-1]), x.shape[-1]
    flat = x.reshape(rows, k)
    scale = ((flat * flat).mean(1) + eps).sqrt().recip()
    y = flat * scale.expand(1, k) * weight.cast(DType.F32).expand(0, rows)
    return y.reshape(*x.shape)


def layer_norm(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """(x - mean) / sqrt(var + eps) (* weight + bias [k]) over the last axis of x [..., k] (Ba et al. 2016)."""
    rows, k = product(x.shape[:-1]), x.shape[-1]
    flat = x.reshape(rows, k)
    centred = flat + (-flat.mean(1)).expand(1, k)
    y = centred * ((centred * centred).mean(1) + eps).sqrt().recip().expand(1, k)
    y = y if weight is None else y * weight.cast(DType.F32).expand(0, rows)
    y = y if bias is None else y + bias.cast(DType.F32).expand(0, rows)
    return y.reshape(*x.shape)


def group_norm(x: Tensor, groups: int, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """x [channels, ...] with each of `groups` equal runs of channels normalised as one, then * weight + bias [channels]
    (Wu and He 2018)."""
    size = x.numel()
    assert isinstance(size, int)
    y = layer_norm(x.reshape(groups, size // groups), eps=eps).reshape(*x.shape)
    return y * weight._along(0, x.shape) + bias._along(0, x.shape)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up (Shazeer 2020)."""
    return gate.silu() * up


def geglu(gate: Tensor, up: Tensor) -> Tensor:
    """gelu_tanh(gate) * up (Shazeer 2020)."""
    return gate.gelu_tanh() * up


def gather_rows(data: Tensor, rows: Tensor) -> Tensor:
    """data [n, width], rows [t] i32 -> [t, width]."""
    return data.gather(row_indexes(rows, data.shape[1]))


def scatter_rows(data: Tensor, rows: Tensor, source: Tensor) -> Tensor:
    """data [n, width] with row rows[i] replaced by source [t, width][i]."""
    return data.scatter(row_indexes(rows, data.shape[1]), source)


def row_indexes(rows: Tensor, width: "int | Dim") -> Tensor:
    """Flat indexes of whole rows: rows [t] -> [t, width]."""
    return (rows * width).expand(1, width) + rows.graph.iota(width).expand(0, rows.shape[0])


def dequantize(codes: Tensor, scale: Tensor, minimum: Tensor | None) -> Tensor:
    """codes [n, k] * scale [n, k/group] (+ minimum [n, k/group]) -> f32 [n, k]."""
    group = codes.shape[1] // scale.shape[1]  # type: ignore[operator]
    value = codes.split(1, group).cast(DType.F32) * scale.cast(DType.F32).expand(2, group)
    if minimum is not None:
        value = value + minimum.cast(DType.F32).expand(2, group)
    return value.merge(1)
