"""Attention of a ragged batch over a paged KV cache; `engine.compiler.nn.paged_attention` has its definition.

`(PagedAttention [t, heads, d] kv_heads page_size scale window cap causal q k_pool v_pool page_table query_start
positions)`. A window or cap of 0 is none; `causal` is 1, or 0 where tokens also see those after them.
"""

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from engine.compiler.dtype import DType
from engine.compiler.shape import Dim, parse_dim
from engine.ops.base import Array, Call, Counts, Dims, Kernel, Op, Source, Spec, template
from engine.ops.views import as_shape, sizes

_SORTS = ("Dims",) + ("String",) * 6


def _spec(call: Call) -> Spec:
    return Spec(as_shape(call.params[0]), DType.F32)


def _meaning(
    call: Call,
    dims: Dims,
    q: Array,
    k_pool: Array,
    v_pool: Array,
    page_table: Array,
    query_start: Array,
    positions: Array,
) -> Array:
    t, heads, d = sizes(as_shape(call.params[0]), dims)
    kv_heads, page, scale = int(call.params[1]), int(call.params[2]), np.float32(call.params[3])
    window, cap, causal = int(call.params[4]), np.float32(call.params[5]), call.params[6] == "1"
    queries = q.reshape(t, kv_heads, heads // kv_heads, d)
    out = np.zeros_like(queries)
    pools = [pool.reshape(-1, page, kv_heads, d) for pool in (k_pool, v_pool)]
    for i, (start, stop) in enumerate(pairwise(query_start)):
        if start == stop:
            continue
        context = int(positions[stop - 1]) + 1
        pages = page_table.reshape(len(query_start) - 1, -1)[i, : -(-context // page)]
        keys, values = (
            pool[pages].reshape(-1, kv_heads, d)[:context].astype(np.float32) for pool in pools
        )
        scores = np.einsum("qhgd,chd->hgqc", queries[start:stop], keys, optimize=True) * scale
        if cap:
            scores = np.tanh(scores / cap) * cap
        keys_at, own = np.arange(context)[None, :], positions[start:stop, None]
        hidden = keys_at > (own if causal else context)
        if window:
            hidden = hidden | (keys_at <= own - window)
        scores = np.where(hidden, np.float32(-1e30), scores)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        out[start:stop] = np.einsum("hgqc,chd->qhgd", weights, values, optimize=True)
    return out.reshape(t, heads, d)


def _counts(call: Call, dims: Dims) -> Counts:
    t, heads, d = sizes(as_shape(call.params[0]), dims)
    r, pages = sizes(call.inputs[3].shape, dims)
    context, kv_heads = pages * int(call.params[2]), int(call.params[1])
    context = min(context, int(call.params[4]) or context)
    pool_bytes = 2 * r * context * kv_heads * d * call.inputs[1].dtype.bits / 8
    rows = 4 * t * heads * d
    return Counts(pool_bytes + rows, rows, 4.0 * t * heads * d * context)


def _source(call: Call, code: Callable[["int | Dim"], str]) -> Source:
    t, heads, d = (code(x) for x in as_shape(call.params[0]))
    r, pages = (code(x) for x in call.inputs[3].shape)
    macros = (
        ("T", t),
        ("R", r),
        ("P", pages),
        ("H", heads),
        ("KVH", code(parse_dim(call.params[1]))),
        ("D", d),
        ("PAGE", call.params[2]),
        ("SCALE", f"{float(call.params[3])!r}f"),
        ("WINDOW", call.params[4]),
        ("CAP", f"{float(call.params[5])!r}f"),
        ("CAUSAL", call.params[6]),
    )
    return Source(template(__file__), macros)


# Query tokens a claim, how many of the query heads that share a KV head, and how many KV heads: fewer heads for more
# claims, all for a page's memory in order.
VARIANTS = tuple(
    (("QUERIES", queries), ("GROUP", group), ("HEADS", heads))
    for queries, group, heads in (
        ("8", "SHARED", "1"),
        ("8", "SHARED", "KVH"),
        ("8", "1", "1"),
        ("32", "SHARED", "1"),
    )
)
OPS = (
    Op("PagedAttention", _SORTS, 6, _spec, _meaning),
    Kernel(
        "PagedFlash",
        _SORTS,
        6,
        _spec,
        _meaning,
        source=_source,
        counts=_counts,
        variants=VARIANTS,
        supersedes=frozenset({"Reduce"}),
    ),
)
