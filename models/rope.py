"""Frequencies of rotary embeddings (Su et al. 2021), with the scalings that stretch a model's context."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.ops.base import Array


@dataclass(frozen=True)
class Rope:
    """The rotary embedding of some layers, which turns the first `dim` elements of each head.

    `scaling` has Hugging Face's keys, all that its `rope_type` needs (see `models.rope_config`, or `factors`: what each
    frequency is divided by, [dim / 2]); None leaves the frequencies alone.
    """

    theta: float
    dim: int
    scaling: Mapping[str, Any] | None = None

    def frequencies(self, length: int) -> Array:
        """theta^(-2i/dim), scaled for texts of up to `length` tokens: f64 [dim / 2]."""
        plain = self.theta ** -(np.arange(0, self.dim, 2, dtype=np.float64) / self.dim)
        scaling = self.scaling
        if scaling is None:
            return plain
        match scaling["rope_type"]:
            case "linear":
                return plain / float(scaling["factor"])
            case "dynamic":
                return plain  # it changes past the model's context, where nothing is served
            case "llama3":
                return _llama3(plain, scaling)
            case "yarn":
                return _yarn(plain, scaling, self.theta)
            case "longrope":
                is_long = length > scaling["original_max_position_embeddings"]
                factors = scaling["long_factor" if is_long else "short_factor"]
                return plain / np.asarray(factors, np.float64)
            case "proportional":
                turning = int(scaling["partial_rotary_factor"] * self.dim // 2)
                slow: Array = plain / float(scaling["factor"])
                slow[turning:] = 0
                return slow
            case "factors":
                return plain / np.asarray(scaling["factors"], np.float64)
            case kind:
                raise ValueError(f"rope scaling {kind!r} is not known")

    @property
    def amplitude(self) -> float:
        """What cosines and sines are multiplied with."""
        return float((self.scaling or {}).get("attention_factor", 1.0))


def _llama3(plain: Array, scaling: Mapping[str, Any]) -> Array:
    """Llama 3.1's: long waves are divided by `factor`, short ones kept, and those between are blended."""
    factor = float(scaling["factor"])
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    context = float(scaling["original_max_position_embeddings"])
    turns = context * plain / (2 * math.pi)  # full turns within the original context
    share = np.clip((turns - low) / (high - low), 0, 1)
    return plain * (share + (1 - share) / factor)


def _yarn(plain: Array, scaling: Mapping[str, Any], theta: float) -> Array:
    """YaRN (Peng et al. 2023): the same, blended along the index between those of `beta_fast` and `beta_slow` turns."""
    dim, context = 2 * len(plain), float(scaling["original_max_position_embeddings"])
    ends = [
        dim * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(theta))
        for turns in (scaling["beta_fast"], scaling["beta_slow"])
    ]
    if scaling["truncate"]:
        ends = [math.floor(ends[0]), math.ceil(ends[1])]
    low, high = max(ends[0], 0), min(ends[1], dim - 1)
    high = high + 0.001 if low == high else high
    share = 1 - np.clip((np.arange(len(plain)) - low) / (high - low), 0, 1)
    blended: Array = plain * (share + (1 - share) / float(scaling["factor"]))
    return blended
