"""What a checkpoint says of its model, from `config.json` or from GGUF metadata."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.errors import ModelFileError


@dataclass(frozen=True)
class ModelConfig:
    """Sizes and constants of a decoder. `rope_scaling` keeps Hugging Face's keys; `rope_factors` divide the frequencies
    one by one (GGUF's `rope_freqs`)."""

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


def from_json(directory: Path) -> ModelConfig:
    """Config of a Hugging Face directory; keys in their old and new spellings. Raises `ModelFileError`."""
    path = directory / "config.json"
    raw = _read_json(path)
    generation_path = directory / "generation_config.json"
    generation = _read_json(generation_path) if generation_path.exists() else {}

    def need(key: str) -> int:
        value = raw.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ModelFileError(path, f"{key} is {value!r}, not a positive number")
        return value

    rope = raw.get("rope_parameters") or {}
    scaling = raw.get("rope_scaling") or (
        rope if rope.get("rope_type", "default") != "default" else None
    )
    heads = need("num_attention_heads")
    eos = generation.get("eos_token_id", raw.get("eos_token_id"))
    bias = [key for key in ("attention_bias", "mlp_bias") if raw.get(key)]
    if bias:
        raise ModelFileError(
            path, f"{bias[0]} is set, and {raw.get('model_type')} with biases is not supported"
        )
    return ModelConfig(
        architecture=str(raw.get("model_type")),
        vocab_size=need("vocab_size"),
        hidden_size=need("hidden_size"),
        num_layers=need("num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=raw.get("num_key_value_heads") or heads,
        head_dim=raw.get("head_dim") or need("hidden_size") // heads,
        intermediate_size=need("intermediate_size"),
        context_length=need("max_position_embeddings"),
        rms_norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
        rope_theta=float(raw.get("rope_theta") or rope.get("rope_theta") or 10000.0),
        rope_scaling=scaling,
        tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
        eos_token_ids=_ids(eos),
        bos_token_id=(_ids(raw.get("bos_token_id")) or (None,))[0],
        hidden_act=str(raw.get("hidden_act", "silu")),
    )


def from_gguf(path: Path, metadata: Mapping[str, Any], has_head: bool) -> ModelConfig:
    """Config of a GGUF file. Raises `ModelFileError`."""
    architecture = str(metadata.get("general.architecture"))

    def find(key: str, default: Any = None) -> Any:
        value = metadata.get(f"{architecture}.{key}", default)
        if value is None:
            raise ModelFileError(path, f"its metadata has no {architecture}.{key}")
        return value

    tokens = metadata.get("tokenizer.ggml.tokens", [])
    vocab = int(metadata.get(f"{architecture}.vocab_size", len(tokens)))
    heads, hidden = int(find("attention.head_count")), int(find("embedding_length"))
    ends = [metadata.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot")]
    begin = metadata.get("tokenizer.ggml.bos_token_id")
    return ModelConfig(
        architecture=architecture,
        vocab_size=vocab,
        hidden_size=hidden,
        num_layers=int(find("block_count")),
        num_heads=heads,
        num_kv_heads=int(find("attention.head_count_kv", heads)),
        head_dim=int(find("attention.key_length", hidden // heads)),
        intermediate_size=int(find("feed_forward_length")),
        context_length=int(find("context_length")),
        rms_norm_eps=float(find("attention.layer_norm_rms_epsilon")),
        rope_theta=float(find("rope.freq_base", 10000.0)),
        rope_scaling=_gguf_scaling(path, architecture, metadata),
        tie_word_embeddings=not has_head,
        eos_token_ids=tuple(dict.fromkeys(e for e in ends if e is not None and 0 <= e < vocab)),
        bos_token_id=begin if begin is not None and 0 <= begin < vocab else None,
    )


def _gguf_scaling(
    path: Path, architecture: str, metadata: Mapping[str, Any]
) -> dict[str, Any] | None:
    kind = metadata.get(f"{architecture}.rope.scaling.type", "none")
    if kind == "none":
        return None
    if kind == "linear":
        return {
            "rope_type": "linear",
            "factor": metadata.get(f"{architecture}.rope.scaling.factor", 1.0),
        }
    raise ModelFileError(path, f"rope scaling {kind!r} is not supported")


def _ids(value: Any) -> tuple[int, ...]:
    values = value if isinstance(value, list) else [value]
    return tuple(v for v in values if isinstance(v, int))


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
