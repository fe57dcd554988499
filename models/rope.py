"""Frequencies of rotary embeddings, with the scalings that stretch a model's context."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.ops.base import Array
from models.fields import Fields

SCALINGS = {
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}
"""Kinds of scaling, and the numbers that each needs."""


@dataclass(frozen=True)
class Rope:
    """The rotary embedding of some layers, for heads of `dim`.

    `scaling` has Hugging Face's keys, all that its `rope_type` needs (`SCALINGS`, or `factors`: what each frequency is
    divided by, [dim / 2]); None leaves the frequencies alone.
    """

    theta: float
    dim: int
    scaling: Mapping[str, Any] | None = None

    def frequencies(self) -> Array:
        """theta^(-2i/dim), scaled: f64 [dim / 2]."""
        plain = self.theta ** -(np.arange(0, self.dim, 2, dtype=np.float64) / self.dim)
        if self.scaling is None:
            return plain
        match self.scaling["rope_type"]:
            case "linear":
                return plain / float(self.scaling["factor"])
            case "llama3":
                return _llama3(plain, self.scaling)
            case "factors":
                return plain / np.asarray(self.scaling["factors"], np.float64)
            case kind:
                raise ValueError(f"rope scaling {kind!r} is not known")


def read_rope(fields: Fields, head_dim: int, theta: float = 10000.0) -> Rope:
    """What a config says, in its old spelling (`rope_theta`, `rope_scaling`) or the new one (`rope_parameters`).

    Of the new one, what is said of `full_attention` counts if there are several kinds of layers. `theta` is for a
    config that does not name it. Raises `ModelFileError`.
    """
    parameters = fields.inside("rope_parameters")
    if parameters.value("full_attention"):
        parameters = parameters.inside("full_attention")
    theta = fields.constant("rope_theta", parameters.constant("rope_theta", theta))
    scaling = fields.inside("rope_scaling")
    if scaling.value("rope_type", scaling.value("type")) is None:
        scaling = parameters
    return _rope(fields, parameters, scaling, head_dim, theta)


def read_local_rope(fields: Fields, head_dim: int, theta: float = 10000.0) -> Rope:
    """The same for the layers that see a window, which have a base frequency of their own (Gemma 3)."""
    parameters = fields.inside("rope_parameters").inside("sliding_attention")
    theta = fields.constant("rope_local_base_freq", parameters.constant("rope_theta", theta))
    return _rope(fields, parameters, parameters, head_dim, theta)


def _rope(fields: Fields, parameters: Fields, scaling: Fields, head_dim: int, theta: float) -> Rope:
    share = fields.constant(
        "partial_rotary_factor", parameters.constant("partial_rotary_factor", 1)
    )
    if fields.size("rotary_dim", int(head_dim * share)) != head_dim:
        raise fields.unsupported("a rotary embedding of a part of each head")
    if head_dim % 2:
        raise fields.unsupported(f"a rotary embedding of heads of {head_dim}")
    return Rope(theta, head_dim, _scaling(scaling))


def _scaling(fields: Fields) -> dict[str, Any] | None:
    kind = fields.value("rope_type", fields.value("type", "default"))
    if kind in ("default", "none"):
        return None
    if not isinstance(kind, str) or kind not in SCALINGS:
        raise fields.unsupported(f"rope scaling {kind!r}", *SCALINGS)
    return {"rope_type": kind, **{key: fields.constant(key) for key in SCALINGS[kind]}}


def _llama3(plain: Array, scaling: Mapping[str, Any]) -> Array:
    """Llama 3.1's: long waves are divided by `factor`, short ones kept, and those between are blended."""
    factor = float(scaling["factor"])
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    context = float(scaling["original_max_position_embeddings"])
    turns = context * plain / (2 * math.pi)  # full turns within the original context
    share = np.clip((turns - low) / (high - low), 0, 1)
    return plain * (share + (1 - share) / factor)
