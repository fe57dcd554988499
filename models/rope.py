"""Frequencies of rotary embeddings, with the scalings that stretch a model's context."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from engine.ops.base import Array


def inverse_frequencies(d: int, theta: float, scaling: Mapping[str, Any] | None) -> Array:
    """theta^(-2i/d), scaled as `ModelConfig.rope_scaling` says: f64 [d / 2]."""
    plain = theta ** -(np.arange(0, d, 2, dtype=np.float64) / d)
    if scaling is None:
        return plain
    match scaling["rope_type"]:
        case "linear":
            return plain / float(scaling["factor"])
        case "llama3":
            return _llama3(plain, scaling)
        case "factors":
            return plain / np.asarray(scaling["factors"], np.float64)
        case kind:
            raise ValueError(f"rope scaling {kind!r} is not known")


def _llama3(plain: Array, scaling: Mapping[str, Any]) -> Array:
    """Llama 3.1's: long waves are divided by `factor`, short ones kept, and those between are blended."""
    factor = float(scaling["factor"])
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    context = float(scaling["original_max_position_embeddings"])
    turns = context * plain / (2 * math.pi)  # full turns within the original context
    share = np.clip((turns - low) / (high - low), 0, 1)
    return plain * (share + (1 - share) / factor)
