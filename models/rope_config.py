"""What configs say of rotary embeddings: in the old spelling (`rope_theta`, `rope_scaling`) or the new one
(`rope_parameters`)."""

import math
from collections.abc import Callable
from typing import Any

from models.fields import Fields
from models.rope import Rope

Scaling = dict[str, Any]


def read_rope(fields: Fields, head_dim: int, theta: float = 10000.0) -> Rope:
    """Of the new spelling, what is said of `full_attention` counts if there are several kinds of layers. `theta` is for
    a config that does not name it. Raises `ModelFileError`.
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


def stretched_context(fields: Fields, rope: Rope) -> int:
    """Tokens of the longest text: what the config says, or more where YaRN stretches a shorter one that it names."""
    context, scaling = fields.size("max_position_embeddings"), rope.scaling
    if scaling is None or scaling["rope_type"] != "yarn":
        return context
    return max(context, int(scaling["factor"] * scaling["original_max_position_embeddings"]))


def _rope(fields: Fields, parameters: Fields, scaling: Fields, head_dim: int, theta: float) -> Rope:
    kind = scaling.value("rope_type", scaling.value("type", "default"))
    share = fields.constant(
        "partial_rotary_factor", parameters.constant("partial_rotary_factor", 1.0)
    )
    if kind == "proportional":
        held = {"partial_rotary_factor": share, "factor": scaling.constant("factor", 1.0)}
        return Rope(theta, head_dim, {"rope_type": kind, **held})
    dim = fields.size("rotary_dim", int(head_dim * share))
    if dim % 2 or dim > head_dim:
        raise fields.unsupported(f"a rotary embedding of {dim} elements in heads of {head_dim}")
    if kind in ("default", "none") or (kind == "longrope" and fields.is_gguf):
        return Rope(theta, dim)  # GGUF has the factors in tensors
    if not isinstance(kind, str) or kind not in _READERS:
        raise fields.unsupported(f"rope scaling {kind!r}", *_READERS, "proportional")
    kind = "longrope" if kind == "su" else kind
    return Rope(theta, dim, {"rope_type": kind, **_READERS[kind](fields, scaling, dim)})


def _original(fields: Fields, scaling: Fields) -> int:
    key = "original_max_position_embeddings"
    if fields.value(key) is not None:  # Phi-3 has it outside
        return fields.size(key)
    return scaling.size(key, fields.size("max_position_embeddings"))


def _factor(fields: Fields, scaling: Fields, dim: int) -> Scaling:
    return {"factor": scaling.constant("factor")}


def _llama3(fields: Fields, scaling: Fields, dim: int) -> Scaling:
    read = {k: scaling.constant(k) for k in ("factor", "low_freq_factor", "high_freq_factor")}
    return {**read, "original_max_position_embeddings": _original(fields, scaling)}


def _stretch(fields: Fields, scaling: Fields) -> float:
    """How much longer texts may be than they were in training."""
    return scaling.constant(
        "factor", fields.size("max_position_embeddings") / _original(fields, scaling)
    )


def _yarn(fields: Fields, scaling: Fields, dim: int) -> Scaling:
    factor = _stretch(fields, scaling)
    scales = [scaling.value(key) and scaling.constant(key) for key in ("mscale", "mscale_all_dim")]
    if all(scales):
        amplitude = _yarn_amplitude(factor, scales[0]) / _yarn_amplitude(factor, scales[1])
    else:
        amplitude = _yarn_amplitude(factor, 1.0)
    return {
        "factor": factor,
        "original_max_position_embeddings": _original(fields, scaling),
        "attention_factor": scaling.constant("attention_factor", amplitude),
        "beta_fast": scaling.constant("beta_fast", 32.0),
        "beta_slow": scaling.constant("beta_slow", 1.0),
        "truncate": bool(scaling.value("truncate", True)),
    }


def _yarn_amplitude(factor: float, scale: float) -> float:
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0


def _longrope(fields: Fields, scaling: Fields, dim: int) -> Scaling:
    factor, original = _stretch(fields, scaling), _original(fields, scaling)
    amplitude = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return {
        "long_factor": scaling.constants("long_factor", dim // 2),
        "short_factor": scaling.constants("short_factor", dim // 2),
        "original_max_position_embeddings": original,
        "attention_factor": scaling.constant("attention_factor", amplitude),
    }


_READERS: dict[str, Callable[[Fields, Fields, int], Scaling]] = {
    "dynamic": _factor,
    "linear": _factor,
    "llama3": _llama3,
    "longrope": _longrope,
    "su": _longrope,
    "yarn": _yarn,
}
