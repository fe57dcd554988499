"""What a checkpoint says of its model, from `config.json` or from GGUF metadata."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.architectures import MODULES
from models.errors import ModelFileError


@dataclass(frozen=True)
class ModelConfig:
    """Sizes and constants of a decoder.

    `rope_scaling` has Hugging Face's keys, all that its `rope_type` needs (`ROPE_SCALINGS`, or `factors`: what each
    frequency is divided by, [head_dim / 2]); None leaves the frequencies alone. `windows` says for each layer how many
    positions it sees, None for all. `norm_offset` is added to the weights of norms. `query_scale` is what scores are
    multiplied with, where that is not head_dim^-0.5.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    context_length: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: Mapping[str, Any] | None
    tie_word_embeddings: bool
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    hidden_act: str = "silu"
    windows: tuple[int | None, ...] = ()
    local_rope_theta: float | None = None
    norm_offset: float = 0.0
    query_scale: float | None = None

    def window(self, layer: int) -> int | None:
        """Positions that a layer sees, its own included; None for all."""
        return self.windows[layer] if self.windows else None


ROPE_SCALINGS = {
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}
"""Kinds of rope scaling, and the numbers that each needs."""

_GATES = {"gemma3": ("gelu_pytorch_tanh",), "gemma3_text": ("gelu_pytorch_tanh",)}
_DEFAULT_GATES = ("silu", "swish")
_GEMMA_PATTERN = 6  # every so many layers one sees all
_GEMMA_27B_LAYERS = 62


class _Fields:
    """Numbers of a mapping, checked. Raises `ModelFileError`, naming the key."""

    def __init__(self, path: Path, raw: Mapping[str, Any], prefix: str = "") -> None:
        self._path, self._raw, self._prefix = path, raw, prefix

    def size(self, key: str, default: int | None = None) -> int:
        """A whole number from 1 on."""
        value = self.value(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self._wrong(key, value, "a positive number")
        return value

    def constant(self, key: str, default: float | None = None) -> float:
        """A finite number above 0."""
        value = self.value(key, default)
        if not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
            raise self._wrong(key, value, "a positive number")
        return float(value)

    def inside(self, key: str) -> "_Fields":
        """Those of an object in the mapping, none if it is not there."""
        value = self.value(key, {})
        if not isinstance(value, Mapping):
            raise self._wrong(key, value, "an object")
        prefix = f"{self._prefix}{key}."
        return _Fields(
            self._path, {f"{prefix}{name}": part for name, part in value.items()}, prefix
        )

    def value(self, key: str, default: Any = None) -> Any:
        """As it is; a null stands for a key that is not there."""
        value = self._raw.get(self._prefix + key)
        return default if value is None else value

    def _wrong(self, key: str, value: object, right: str) -> ModelFileError:
        return ModelFileError(self._path, f"{self._prefix}{key} is {value!r}, not {right}")


def from_json(directory: Path) -> ModelConfig:
    """Config of a Hugging Face directory; keys in their old and new spellings.

    Raises `ModelFileError`.
    """
    path = directory / "config.json"
    raw = _read_json(path)
    generation_path = directory / "generation_config.json"
    generation = _read_json(generation_path) if generation_path.exists() else {}
    architecture = _supported(path, raw.get("model_type"))
    gemma = architecture == "gemma3_text"
    if "text_config" in raw:
        raise ModelFileError(
            path, "a model of text and images is not supported, only its text part"
        )
    for key in (
        "attention_bias",
        "mlp_bias",
        "quantization_config",
        "attn_logit_softcapping",
        "final_logit_softcapping",
        "use_bidirectional_attention",
    ):
        if raw.get(key):
            raise ModelFileError(path, f"{architecture} with {key} is not supported")
    fields = _Fields(path, raw)
    rope = fields.inside("rope_parameters")
    local = rope.inside("sliding_attention")
    rope = rope.inside("full_attention") if gemma and rope.value("full_attention") else rope
    theta = fields.constant("rope_theta", rope.constant("rope_theta", 1e6 if gemma else 10000.0))
    scaling = fields.inside("rope_scaling") if raw.get("rope_scaling") else rope
    heads, hidden = fields.size("num_attention_heads"), fields.size("hidden_size")
    vocab = fields.size("vocab_size")
    bos = _ids(raw.get("bos_token_id"), vocab)
    config = ModelConfig(
        architecture=architecture,
        vocab_size=vocab,
        hidden_size=hidden,
        num_layers=fields.size("num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=fields.size("num_key_value_heads", heads),
        head_dim=fields.size("head_dim", hidden // heads),
        intermediate_size=fields.size("intermediate_size"),
        context_length=fields.size("max_position_embeddings"),
        rms_norm_eps=fields.constant("rms_norm_eps", 1e-6),
        rope_theta=theta,
        rope_scaling=_json_scaling(path, scaling),
        tie_word_embeddings=bool(raw.get("tie_word_embeddings", gemma)),
        eos_token_ids=_ids(generation.get("eos_token_id", raw.get("eos_token_id")), vocab),
        bos_token_id=bos[0] if bos else None,
        hidden_act=str(raw.get("hidden_activation") or raw.get("hidden_act", "silu")),
        windows=_json_windows(path, fields, architecture),
        local_rope_theta=fields.constant("rope_local_base_freq", local.constant("rope_theta", 1e4))
        if gemma
        else None,
        norm_offset=1.0 if gemma else 0.0,
        query_scale=fields.constant("query_pre_attn_scalar", 256) ** -0.5 if gemma else None,
    )
    rotated = fields.constant("partial_rotary_factor", rope.constant("partial_rotary_factor", 1))
    return _checked(path, config, rotated == 1)


def from_gguf(path: Path, metadata: Mapping[str, Any], has_head: bool) -> ModelConfig:
    """Config of a GGUF file. Raises `ModelFileError`."""
    if metadata.get("split.count", 1) not in (0, 1):
        raise ModelFileError(path, "it is one part of several: merge them with llama-gguf-split")
    architecture = _supported(path, metadata.get("general.architecture"))
    if metadata.get(f"{architecture}.expert_count"):
        raise ModelFileError(path, f"{architecture} with experts is not supported")
    fields = _Fields(path, metadata, f"{architecture}.")
    tokens = metadata.get("tokenizer.ggml.tokens")
    vocab = fields.size("vocab_size", len(tokens) if isinstance(tokens, list) else None)
    heads, hidden = fields.size("attention.head_count"), fields.size("embedding_length")
    gemma, layers = architecture == "gemma3", fields.size("block_count")
    windows: tuple[int | None, ...] = ()
    if gemma:
        windows = _every_sixth(fields.size("attention.sliding_window"), layers)
    elif fields.value("attention.sliding_window"):
        windows = (fields.size("attention.sliding_window"),) * layers
    ends = [metadata.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot")]
    bos = _ids(metadata.get("tokenizer.ggml.bos_token_id"), vocab)
    config = ModelConfig(
        architecture=architecture,
        vocab_size=vocab,
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=fields.size("attention.head_count_kv", heads),
        head_dim=fields.size("attention.key_length", hidden // heads),
        intermediate_size=fields.size("feed_forward_length"),
        context_length=fields.size("context_length"),
        rms_norm_eps=fields.constant("attention.layer_norm_rms_epsilon"),
        rope_theta=fields.constant("rope.freq_base", 1e6 if gemma else 10000.0),
        rope_scaling=_gguf_scaling(path, fields, metadata.get(f"{architecture}.rope.scaling.type")),
        tie_word_embeddings=not has_head,
        eos_token_ids=_ids(ends, vocab),
        bos_token_id=bos[0] if bos else None,
        hidden_act="gelu_pytorch_tanh" if gemma else "silu",
        windows=windows,
        local_rope_theta=fields.constant("rope.freq_base_swa", 10000.0) if gemma else None,
        # The file's weights of norms have the offset in them, and it does not say how scores are scaled.
        query_scale=(hidden / heads) ** -0.5 if gemma and layers == _GEMMA_27B_LAYERS else None,
    )
    rotated = fields.size("rope.dimension_count", config.head_dim)
    return _checked(path, config, rotated == config.head_dim)


def _checked(path: Path, config: ModelConfig, rotates_whole_heads: bool) -> ModelConfig:
    """The config, if its sizes go together and the graph of its architecture is the one we build."""
    if config.num_heads % config.num_kv_heads:
        problem = f"{config.num_heads} heads cannot share {config.num_kv_heads} KV heads evenly"
    elif config.head_dim % 2:
        problem = f"heads of {config.head_dim} cannot be rotated in pairs"
    elif not rotates_whole_heads:
        problem = "rotary embeddings of a part of each head are not supported"
    elif config.hidden_act not in (known := _GATES.get(config.architecture, _DEFAULT_GATES)):
        problem = f"activation {config.hidden_act!r} is not supported ({known[0]} is)"
    else:
        return config
    raise ModelFileError(path, problem)


def _json_windows(path: Path, fields: _Fields, architecture: str) -> tuple[int | None, ...]:
    """What each layer sees, by the keys that the architectures have for it."""
    layers, kinds = fields.size("num_hidden_layers"), fields.value("layer_types")
    if kinds is not None:
        if not isinstance(kinds, list) or len(kinds) != layers:
            raise ModelFileError(path, f"layer_types is no list of {layers}")
        if unknown := set(kinds) - {"full_attention", "sliding_attention"}:
            raise ModelFileError(path, f"layers of type {unknown.pop()!r} are not supported")
        if "sliding_attention" not in kinds:
            return ()
        window = fields.size("sliding_window")
        return tuple(window if kind == "sliding_attention" else None for kind in kinds)
    if architecture == "gemma3_text":
        return _every_sixth(fields.size("sliding_window", 4096), layers)
    if fields.value("sliding_window") is None:
        return ()
    if architecture == "mistral":
        return (fields.size("sliding_window"),) * layers
    if not fields.value("use_sliding_window"):
        return ()
    full = fields.value("max_window_layers", layers)
    return tuple(None if layer < full else fields.size("sliding_window") for layer in range(layers))


def _every_sixth(window: int, layers: int) -> tuple[int | None, ...]:
    """Gemma 3's pattern: of six layers the last sees all."""
    return tuple(window if (i + 1) % _GEMMA_PATTERN else None for i in range(layers))


def _json_scaling(path: Path, fields: _Fields) -> dict[str, Any] | None:
    kind = fields.value("rope_type", fields.value("type", "default"))
    if kind == "default":
        return None
    if not isinstance(kind, str) or kind not in ROPE_SCALINGS:
        known = ", ".join(ROPE_SCALINGS)
        raise ModelFileError(path, f"rope scaling {kind!r} is not supported (supported: {known})")
    return {"rope_type": kind, **{key: fields.constant(key) for key in ROPE_SCALINGS[kind]}}


def _gguf_scaling(path: Path, fields: _Fields, kind: object) -> dict[str, Any] | None:
    if kind in (None, "none"):
        return None
    if kind == "linear":
        return {"rope_type": "linear", "factor": fields.constant("rope.scaling.factor", 1.0)}
    raise ModelFileError(path, f"rope scaling {kind!r} is not supported")


def _supported(path: Path, architecture: object) -> str:
    if isinstance(architecture, str) and architecture in MODULES:
        return architecture
    known = ", ".join(sorted(MODULES))
    raise ModelFileError(
        path, f"architecture {architecture!r} is not supported (supported: {known})"
    )


def _ids(value: object, vocab_size: int) -> tuple[int, ...]:
    """Token ids, one or several, without those that no token has."""
    values = value if isinstance(value, list) else [value]
    return tuple(dict.fromkeys(v for v in values if isinstance(v, int) and 0 <= v < vocab_size))


def _read_json(path: Path) -> dict[str, Any]:
    try:
        raw = json.loads(path.read_text())
    except FileNotFoundError:
        raise ModelFileError(path, "there is no such file") from None
    except (OSError, ValueError) as error:
        raise ModelFileError(path, f"it cannot be read as JSON: {error}") from None
    if not isinstance(raw, dict):
        raise ModelFileError(path, "it holds no JSON object")
    return raw
