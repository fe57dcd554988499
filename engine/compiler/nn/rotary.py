"""Rotary position embeddings (Su et al. 2021)."""

import numpy as np

from engine.compiler.dtype import DType
from engine.compiler.tensor import Tensor, stack


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


def rotary_interleaved(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The same with neighbours as pairs (as in GPT-J): (2i, 2i + 1) turns by its angle."""
    heads, d = x.shape[1:]
    assert isinstance(d, int)
    pairs = x.split(2, 2)
    even, odd = (pairs.slice(3, at, at + 1).squeeze(3) for at in (0, 1))
    cos, sin = (table.expand(1, heads) for table in (cos, sin))
    return stack([even * cos - odd * sin, odd * cos + even * sin], 3).merge(2)
