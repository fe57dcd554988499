"""Mixtures of experts: routers, and gated units of which each token has its own."""

from collections.abc import Callable

from engine.compiler.nn.layers import swiglu
from engine.compiler.shape import product
from engine.compiler.tensor import Tensor


def route(logits: Tensor, k: int, *, normalise: bool = True) -> tuple[Tensor, Tensor]:
    """logits [t, experts] -> (weights f32 [t, k], experts i32 [t, k]): the k most probable of each token.

    Their weights add up to 1 if `normalise` (Qwen3, Gemma), and else are their probabilities (Qwen2).
    """
    weights, experts = logits.softmax(1).topk(k)
    if normalise:
        weights = weights * weights.sum(1).recip().expand(1, k)
    return weights, experts


def expert_weights(weights: Tensor, experts: Tensor) -> Tensor:
    """weights [e, ...], experts i32 [t, k] -> [t, k, ...]."""
    shape = weights.shape[1:]
    size = product(shape)
    rows = (experts * size).expand(2, size)
    return weights.gather(rows + weights.graph.iota(size)._along(2, rows.shape)).reshape(
        *experts.shape, *shape
    )


def experts_glu(
    x: Tensor,
    weights: Tensor,
    experts: Tensor,
    gate: Tensor,
    up: Tensor,
    down: Tensor,
    unit: Callable[[Tensor, Tensor], Tensor] = swiglu,
) -> Tensor:
    """Weighted sum of each token's experts: x [t, d], weights and experts [t, k], gate and up [e, f, d], down [e, d, f]
    -> [t, d]."""
    k, f, d = experts.shape[1], gate.shape[1], x.shape[1]
    tokens = x.expand(1, k).expand(2, f)  # [t, k, f, d]
    hidden = unit(
        (tokens * expert_weights(gate, experts)).sum(3),
        (tokens * expert_weights(up, experts)).sum(3),
    )
    y = (hidden.expand(2, d) * expert_weights(down, experts)).sum(3)  # [t, k, d]
    return (y * weights.expand(2, d)).sum(1)
