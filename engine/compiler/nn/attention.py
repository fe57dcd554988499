"""Attention: over tensors, and over a paged cache."""

from engine.compiler.dtype import DType
from engine.compiler.graph import Graph
from engine.compiler.nn.layers import gather_rows
from engine.compiler.shape import Dim, ShapeError, View, product
from engine.compiler.tensor import Tensor

_HIDDEN = -1e30


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """q [heads, t, d], k and v [kv_heads, s, d], mask f32 [t, s] that is added to the scores -> [heads, t, d].

    Each KV head is shared by heads / kv_heads query heads that follow one another.
    """
    shared = q.shape[0] // k.shape[0]  # type: ignore[operator]
    k, v = (x.expand(1, shared).merge(0) for x in (k, v))
    scores = q.matmul(k.transpose(1, 2)) * scale
    if mask is not None:
        scores = scores + mask.expand(0, q.shape[0])
    return scores.softmax(2).matmul(v)


def causal_mask(
    graph: Graph, t: "int | Dim | str", s: "int | Dim | str", window: int | None = None
) -> Tensor:
    """f32 [t, s] for `attention`: the t queries are the last of s positions, and see those up to their own.

    Of these they see only the last `window` if it is given.
    """
    queries, keys = graph.iota(t), graph.iota(s)
    t, s = queries.shape[0], keys.shape[0]
    position = (queries + (s - t)).expand(1, s)
    key = keys.expand(0, t)
    visible = key <= position
    if window is not None:
        visible = visible & (position < key + window)
    return visible.select(0.0, _HIDDEN)


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
    window: int | None = None,
    cap: float | None = None,
    causal: bool = True,
) -> Tensor:
    """Attention of a ragged batch over a paged cache.

    q [t, heads, d] f32; pools [slots, kv_heads, d]; page_table [r, p] i32; query_start [r+1] i32 (request i owns tokens
    query_start[i]..query_start[i+1]); positions [t] i32 -> [t, heads, d] f32. Key position c of request i lies in slot
    page_table[i, c // page_size] * page_size + c % page_size; a token sees the positions up to its own, of which only
    the last `window` if it is given. Where it is not `causal` it sees those up to its request's last. A `cap` bends
    scores to cap * tanh(score / cap) (Gemma 2). Raises `ShapeError` for a window that is not causal.
    """
    if window and not causal:
        raise ShapeError("paged_attention: a window sees backwards, so it has to be causal")
    graph = q.graph
    places = positions if causal else _last_positions(query_start, positions)
    expansion = _attention_of_primitives(
        q, k_pool, v_pool, page_table, query_start, places, page_size, scale, window, cap
    )
    dense = [x if x.is_dense else x.copy() for x in (q, k_pool, v_pool)]
    inputs = [*dense, page_table, query_start, positions]
    attrs = (k_pool.shape[1], page_size, scale, window or 0, cap or 0.0, int(causal))
    node = graph.add("PagedAttention", attrs, inputs, q.shape, DType.F32, expansion)
    return Tensor(graph, node, View.contiguous(q.shape))


def _request_of(query_start: Tensor, t: "int | Dim") -> Tensor:
    """The request of each of t tokens, i32: the one that has as many query ends at or before it."""
    graph, (starts,) = query_start.graph, query_start.shape
    ends = query_start.slice(0, 1, starts).expand(0, t)
    return (ends < (graph.iota(t) + 1).expand(1, starts - 1)).cast(DType.I32).sum(1)


def _last_positions(query_start: Tensor, positions: Tensor) -> Tensor:
    """For each token the position of its request's last, i32 [t]."""
    ends = query_start.gather(_request_of(query_start, positions.shape[0]) + 1)
    return positions.gather(ends + -1)


def _attention_of_primitives(
    q: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    page_table: Tensor,
    query_start: Tensor,
    positions: Tensor,
    page_size: int,
    scale: float,
    window: int | None,
    cap: float | None,
) -> Tensor:
    graph = q.graph
    (t, heads, d), kv_heads = q.shape, k_pool.shape[1]
    pages = page_table.shape[1]
    context = pages * page_size
    table = gather_rows(page_table, _request_of(query_start, t))  # [t, pages]
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
    if cap:
        scores = (scores * (1.0 / cap)).tanh() * cap
    key, own = graph.iota(context).expand(0, t), positions.expand(1, context)
    visible = key < own + 1
    if window:
        visible = visible & (own < key + window)
    weights = (scores + visible.select(0.0, _HIDDEN).expand(1, heads)).softmax(2)
    return (weights.expand(2, d) * values.permute(0, 2, 3, 1)).sum(3)
