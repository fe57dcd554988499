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
    """Sizes and constants of a decoder; `rope_scaling` keeps Hugging Face's keys."""

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


class _Fields:
    """Numbers of a mapping, checked. Raises `ModelFileError`, naming the key."""

    def __init__(self, path: Path, raw: Mapping[str, Any], prefix: str = "") -> None:
        self._path, self._raw, self._prefix = path, raw, prefix

    def size(self, key: str, default: int | None = None) -> int:
        """A whole number from 1 on."""
        value = self._find(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self._wrong(key, value, "a positive number")
        return value

    def constant(self, key: str, default: float | None = None) -> float:
        """A finite number above 0."""
        value = self._find(key, default)
        if not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
            raise self._wrong(key, value, "a positive number")
        return float(value)

    def mapping(self, key: str) -> Mapping[str, Any]:
        """An object, empty if it is not there."""
        value = self._find(key, {})
        if not isinstance(value, Mapping):
            raise self._wrong(key, value, "an object")
        return value

    def _find(self, key: str, default: Any) -> Any:
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
    bias = [key for key in ("attention_bias", "mlp_bias") if raw.get(key)]
    if bias:
        raise ModelFileError(path, f"{bias[0]} is set, and {architecture} with it is not supported")
    fields = _Fields(path, raw)
    rope, scaling = fields.mapping("rope_parameters"), fields.mapping("rope_scaling")
    if not scaling and rope.get("rope_type", "default") != "default":
        scaling = rope
    theta = _Fields(path, rope).constant("rope_theta", 10000.0)
    heads, hidden = fields.size("num_attention_heads"), fields.size("hidden_size")
    vocab = fields.size("vocab_size")
    bos = _ids(raw.get("bos_token_id"), vocab)
    return ModelConfig(
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
        rope_theta=fields.constant("rope_theta", theta),
        rope_scaling=scaling or None,
        tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
        eos_token_ids=_ids(generation.get("eos_token_id", raw.get("eos_token_id")), vocab),
        bos_token_id=bos[0] if bos else None,
        hidden_act=str(raw.get("hidden_act", "silu")),
    )


def from_gguf(path: Path, metadata: Mapping[str, Any], has_head: bool) -> ModelConfig:
    """Config of a GGUF file. Raises `ModelFileError`."""
    architecture = _supported(path, metadata.get("general.architecture"))
    fields = _Fields(path, metadata, f"{architecture}.")
    tokens = metadata.get("tokenizer.ggml.tokens")
    vocab = fields.size("vocab_size", len(tokens) if isinstance(tokens, list) else None)
    heads, hidden = fields.size("attention.head_count"), fields.size("embedding_length")
    ends = [metadata.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot")]
    bos = _ids(metadata.get("tokenizer.ggml.bos_token_id"), vocab)
    return ModelConfig(
        architecture=architecture,
        vocab_size=vocab,
        hidden_size=hidden,
        num_layers=fields.size("block_count"),
        num_heads=heads,
        num_kv_heads=fields.size("attention.head_count_kv", heads),
        head_dim=fields.size("attention.key_length", hidden // heads),
        intermediate_size=fields.size("feed_forward_length"),
        context_length=fields.size("context_length"),
        rms_norm_eps=fields.constant("attention.layer_norm_rms_epsilon"),
        rope_theta=fields.constant("rope.freq_base", 10000.0),
        rope_scaling=_gguf_scaling(path, fields, metadata.get(f"{architecture}.rope.scaling.type")),
        tie_word_embeddings=not has_head,
        eos_token_ids=_ids(ends, vocab),
        bos_token_id=bos[0] if bos else None,
    )


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
