"""Rotary position embeddings (Su et al. 2021)."""

import numpy as np

from engine.compiler.dtype import DType
from engine.compiler.tensor import Tensor, concat


def inverse_frequencies(head_dim: int, theta: float) -> np.ndarray:
    """theta^(-2i/d) for i in 0..d/2 (Su et al. 2021), f32 [d/2]."""
    return (1.0 / theta ** (np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)).astype(
        np.float32
    )


def rotary_tables(positions: Tensor, inverse_frequencies: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin of position * frequency: positions [t] i32, frequencies [d/2] -> two of [t, d/2]."""
    t, half = positions.shape[0], inverse_frequencies.shape[0]
    angle = positions.cast(DType.F32).expand(1, half) * inverse_frequencies.expand(0, t)
    return angle.cos(), angle.sin()


def rotary(x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool = False) -> Tensor:
    """Rotary embedding: x [t, heads, d]; cos, sin [t, r/2] -> [t, heads, d], of which the first r of each head turn.

    Pair i turns by its angle: elements i and i + r/2 (split halves, as in GPT-NeoX), or 2i and 2i + 1 where
    `interleaved` (neighbours, as in GPT-J). With the head seen as two axes, the partner of each element of a pair is
    the flipped axis of two, and the first of them takes it with a minus sign.
    """
    t, heads, d = x.shape
    turning = 2 * cos.shape[1]
    assert isinstance(d, int)
    assert isinstance(turning, int)
    if turning < d:
        turned = rotary(x.slice(2, 0, turning), cos, sin, interleaved=interleaved)
        return concat([turned, x.slice(2, turning, d)], 2)
    pair, place = (3, 2) if interleaved else (2, 3)
    pairs = x.split(2, 2 if interleaved else d // 2)
    sign = x.graph.iota(2).cast(DType.F32) * 2.0 + -1.0
    cos, sin = (table.expand(1, heads).expand(pair, 2) for table in (cos, sin))
    signs = sign.expand(0, t).expand(1, heads).expand(place, d // 2)
    return (pairs * cos + pairs.flip(pair) * signs * sin).merge(2)
