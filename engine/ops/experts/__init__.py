"""Mixtures of experts: each token's gated units with the weights of its own experts.

`(ExpertsGlu kind t k f d x weights experts gate up down)` is the sum over j of weights[t, j] * down[e] @ unit(gate[e] @
x[t], up[e] @ x[t]) with e = experts[t, j]: x [t, d], weights and experts [t, k], gate and up [experts, f, d], down
[experts, d, f]. It runs as products over the pairs (t, j), put together by expert so that an expert's weights are read
once for all of its tokens:

    groups = GroupPairs(order of the pairs by expert)      which pairs each expert has, and where each pair went
    rows   = PairRows(x, groups)                           a row of x for every pair
    y      = products of `expert_matmul` over rows         the experts' results, still in this order
    out    = CombinePairs(y, weights, groups)              every token's sum
"""

from collections.abc import Callable, Iterator

import numpy as np

from engine.compiler.dtype import DType
from engine.compiler.shape import Dim, exact_quotient, parse_dim, product
from engine.ops.base import Array, Call, Counts, Dims, Kernel, Op, Source, Spec, template
from engine.ops.gated_units import gated
from engine.ops.views import sizes

Groups = tuple[Array, Array, Iterator[tuple[int, int, int]]]


def groups_of(array: Array) -> Groups:
    """(pair at each place, place of each pair, (first place, end, expert) of each expert that has pairs)."""
    pairs = (len(array) - 2) // 4
    order, place, rest = array[:pairs], array[pairs : 2 * pairs], array[2 * pairs :]
    starts, experts, count = rest[: pairs + 1], rest[pairs + 1 : -1], rest[-1]
    runs = ((int(starts[i]), int(starts[i + 1]), int(experts[i])) for i in range(count))
    return order, place, runs


def _dims(call: Call, dims: Dims) -> tuple[int, ...]:
    return sizes(tuple(parse_dim(p) for p in call.params), dims)


def _glu_spec(call: Call) -> Spec:
    return Spec((parse_dim(call.params[1]), parse_dim(call.params[4])), DType.F32)


def _glu(call: Call, dims: Dims, x: Array, weights: Array, experts: Array, *stacks: Array) -> Array:
    t, k, f, d = sizes(tuple(parse_dim(p) for p in call.params[1:]), dims)
    gate, up = (w.reshape(-1, f, d) for w in stacks[:2])
    down = stacks[2].reshape(-1, d, f)
    e = np.clip(experts.reshape(t, k), 0, len(gate) - 1)
    rows = x.reshape(t, 1, d, 1)
    hidden = gated(call.params[0], gate[e] @ rows, up[e] @ rows)
    y: Array = ((down[e] @ hidden)[..., 0] * weights.reshape(t, k, 1)).sum(1)
    return y


# -- pairs by expert -------------------------------------------------------------------------------------------------


def _groups_spec(call: Call) -> Spec:
    return Spec((4 * parse_dim(call.params[0]) + 2,), DType.I32)


def _groups(call: Call, dims: Dims, order: Array, experts: Array) -> Array:
    (pairs,) = _dims(call, dims)
    order, ordered = order.reshape(-1), experts.reshape(-1)[order.reshape(-1)]
    starts = np.flatnonzero(np.r_[pairs > 0, ordered[1:] != ordered[:-1]])
    blank = np.zeros(pairs, np.int32)
    found = blank.copy()
    found[: len(starts)] = ordered[starts]
    bounds = np.r_[blank, 0]
    bounds[: len(starts)], bounds[len(starts)] = starts, pairs
    parts = (order, order.argsort(), bounds, found, [len(starts)])
    return np.concatenate(parts).astype(np.int32)


def _groups_counts(call: Call, dims: Dims) -> Counts:
    (pairs,) = _dims(call, dims)
    return Counts(8.0 * pairs, 16.0 * pairs, 4.0 * pairs)


def _groups_source(call: Call, code: Callable[["int | Dim"], str]) -> Source:
    macros = (("PAIRS", code(parse_dim(call.params[0]))),)
    return Source(template(__file__, "group_pairs.c"), macros)


# -- rows of the pairs -----------------------------------------------------------------------------------------------


def _rows_spec(call: Call) -> Spec:
    t, k = (parse_dim(p) for p in call.params)
    rows = call.inputs[0]
    width = exact_quotient(product(rows.shape), t)
    assert width is not None
    return Spec((t * k, width), rows.dtype, rows.layout)


def _rows(call: Call, dims: Dims, rows: Array, groups: Array) -> Array:
    t, k = _dims(call, dims)
    taken: Array = rows.reshape(t, -1)[groups_of(groups)[0] // k]
    return taken


def _rows_counts(call: Call, dims: Dims) -> Counts:
    size = _rows_spec(call).bytes(dims)
    return Counts(size, size, 0)


def _rows_source(call: Call, code: Callable[["int | Dim"], str]) -> Source:
    spec = _rows_spec(call)
    width = spec.shape[1] * (spec.dtype.bits // 8)
    pairs, k = code(spec.shape[0]), code(parse_dim(call.params[1]))
    macros = (("PAIRS", pairs), ("SHARED", k), ("ROW_BYTES", code(width)))
    return Source(template(__file__, "pair_rows.c"), macros)


# -- the experts' results together -----------------------------------------------------------------------------------


def _combined_spec(call: Call) -> Spec:
    return Spec((parse_dim(call.params[0]), parse_dim(call.params[2])), DType.F32)


def _combined(call: Call, dims: Dims, y: Array, weights: Array, groups: Array) -> Array:
    t, k, d = _dims(call, dims)
    own = y.reshape(-1, d)[groups_of(groups)[1]].reshape(t, k, d)
    total: Array = (own * weights.reshape(t, k, 1)).sum(1)
    return total


def _combined_counts(call: Call, dims: Dims) -> Counts:
    read = call.inputs[0].bytes(dims)
    return Counts(read, _combined_spec(call).bytes(dims), read / 2)


def _combined_source(call: Call, code: Callable[["int | Dim"], str]) -> Source:
    t, k, d = (code(parse_dim(p)) for p in call.params)
    macros = (("TOKENS", t), ("SHARED", k), ("WIDTH", d))
    return Source(template(__file__, "combine_pairs.c"), macros)


OPS = (
    Op("ExpertsGlu", ("String",) * 5, 6, _glu_spec, _glu),
    Kernel(
        "GroupPairs",
        ("String",),
        2,
        _groups_spec,
        _groups,
        source=_groups_source,
        counts=_groups_counts,
    ),
    Kernel(
        "PairRows", ("String",) * 2, 2, _rows_spec, _rows, source=_rows_source, counts=_rows_counts
    ),
    Kernel(
        "CombinePairs",
        ("String",) * 3,
        3,
        _combined_spec,
        _combined,
        source=_combined_source,
        counts=_combined_counts,
        supersedes=frozenset({"Reduce"}),
    ),
)
