"""Whether weights are all numbers, faster than NumPy tells of types that it does not know."""

import numpy as np

from engine.ops.base import Array

_EXPONENTS = {"float32": 0x7F800000, "float16": 0x7C00, "bfloat16": 0x7F80}
_BLOCK = 1 << 18
"""Numbers at a time, so that they stay in a cache."""


def is_finite(weights: Array) -> bool:
    """Of f32, f16 or bf16."""
    flat = np.ascontiguousarray(weights).reshape(-1)
    bits = flat.view(f"u{flat.itemsize}")
    mask = bits.dtype.type(_EXPONENTS[flat.dtype.name])
    blocks = (bits[at : at + _BLOCK] for at in range(0, len(bits), _BLOCK))
    return all((block & mask).max() < mask for block in blocks)
