"""Building blocks composed of primitives: what a model file is written in.

Nothing here is an operation of its own, except `paged_attention`: the compiler's rules find normalisations, matmuls,
rotary embeddings and gated units in the primitives.
"""

import numpy as np

from engine.compiler.dtype import DType
from engine.compiler.shape import Dim, View, product
from engine.compiler.tensor import Tensor


def width(x: Tensor) -> int:
    """Size of the last axis, which has to be a number."""
    size = x.shape[-1]
    assert isinstance(size, int)
    return size


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """x [t, k], weight [n, k] -> x @ weight.T [t, n] (torch.nn.Linear's layout)."""
    return x.matmul(weight.cast(DType.F32).transpose(0, 1))


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [t, k] / sqrt(mean(x^2) + eps) * weight [k] (Zhang and Sennrich 2019)."""
    t, k = x.shape
    scale = ((x * x).mean(1) + eps).sqrt().recip()
    return x * scale.expand(1, k) * weight.cast(DType.F32).expand(0, t)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up (Shazeer 2020)."""
    return gate.silu() * up


def rotary_tables(positions: Tensor, inverse_frequencies: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin of position * frequency: positions [t] i32, frequencies [d/2] -> two of [t, d/2]."""
    t, half = positions.shape[0], inverse_frequencies.shape[0]
    angle = positions.cast(DType.F32).expand(1, half) * inverse_frequencies.expand(0, t)
    return angle.cos(), angle.sin()


def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding with split halves (as in GPT-NeoX): x [t, heads, d]; cos, sin [t, d/2] -> [t, heads, d].

    The pair (i, i + d/2) turns by its angle. With the head seen as [2, d/2], the partner of each half is the flipped
    first axis, and the first half takes it with a minus sign.
    """
    t, heads, d = x.shape
    assert isinstance(d, int)
    halves = x.split(2, d // 2)
    sign = x.graph.iota(2).cast(DType.F32) * 2.0 + -1.0
    cos, sin = (table.expand(1, heads).expand(2, 2) for table in (cos, sin))
    signs = sign.expand(0, t).expand(1, heads).expand(3, d // 2)
    return (halves * cos + halves.flip(2) * signs * sin).merge(2)


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


def paged_attention(
    q: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    page_table: Tensor,
    query_start: Tensor,
    positions: Tensor,
    *,
    page_size: int,
    scale: float,
) -> Tensor:
    """Causal attention of a ragged batch over a paged cache.

    q [t, heads, d] f32; pools [slots, kv_heads, d]; page_table [r, p] i32; query_start [r+1] i32 (request i owns tokens
    query_start[i]..query_start[i+1]); positions [t] i32 -> [t, heads, d] f32. Key position c of request i lies in slot
    page_table[i, c // page_size] * page_size + c % page_size; a token sees the positions up to its own.
    """
    graph = q.graph
    expansion = _attention_of_primitives(
        q, k_pool, v_pool, page_table, query_start, positions, page_size, scale
    )
    dense = [x if x.view == View.contiguous(x.shape) else x.copy() for x in (q, k_pool, v_pool)]
    inputs = [*dense, page_table, query_start, positions]
    attrs = (k_pool.shape[1], page_size, scale)
    node = graph.add("PagedAttention", attrs, inputs, q.shape, DType.F32, expansion)
    return Tensor(graph, node, View.contiguous(q.shape))


def _attention_of_primitives(
    q: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    page_table: Tensor,
    query_start: Tensor,
    positions: Tensor,
    page_size: int,
    scale: float,
) -> Tensor:
    graph = q.graph
    (t, heads, d), kv_heads = q.shape, k_pool.shape[1]
    r, pages = page_table.shape
    context = pages * page_size
    # A token belongs to the request that has as many query ends at or before it.
    ends = query_start.slice(0, 1, r + 1).expand(0, t)
    ended = (ends < (graph.iota(t) + 1).expand(1, r)).cast(DType.I32)
    table = gather_rows(page_table, ended.sum(1))  # [t, pages]
    offsets = graph.iota(page_size).expand(0, pages).expand(0, t)
    slots = ((table * page_size).expand(2, page_size) + offsets).merge(1)  # [t, context]

    def cached(pool: Tensor) -> Tensor:  # [t, context, heads, d]
        width = product(pool.shape[1:])
        indexes = (slots * width).expand(2, width) + graph.iota(width).expand(0, context).expand(
            0, t
        )
        rows = pool.gather(indexes).cast(DType.F32).split(2, d)
        shared = heads // kv_heads  # type: ignore[operator]
        return rows.expand(3, shared).merge(2)

    keys, values = cached(k_pool), cached(v_pool)
    scores = (q.expand(2, context) * keys.permute(0, 2, 1, 3)).sum(3) * scale  # [t, heads, context]
    visible = graph.iota(context).expand(0, t) < (positions + 1).expand(1, context)
    hidden = (visible.cast(DType.F32) + -1.0) * 1e30
    weights = (scores + hidden.expand(1, heads)).softmax(2)
    return (weights.expand(2, d) * values.permute(0, 2, 3, 1)).sum(3)


def inverse_frequencies(head_dim: int, theta: float) -> np.ndarray:
    """theta^(-2i/d) for i in 0..d/2 (Su et al. 2021), f32 [d/2]."""
    return (1.0 / theta ** (np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)).astype(
        np.float32
    )
