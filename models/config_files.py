"""Configs from `config.json` or from GGUF metadata."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from models.architecture import Architecture
from models.architectures import find
from models.config import ModelConfig
from models.errors import ModelFileError
from models.fields import Fields
from models.json_files import read_object
from models.rope_config import read_rope, stretched_context
from models.windows import by_layer_types

_NOT_BUILT = ("use_bidirectional_attention",)
"""What would change the graph, and does not."""

_GGUF_KEYS = {
    "vocab_size": "vocab_size",
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "intermediate_size": "feed_forward_length",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "sliding_window": "attention.sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "rotary_dim": "rope.dimension_count",
    "rope_theta": "rope.freq_base",
    "rope_local_base_freq": "rope.freq_base_swa",
    "rope_scaling.rope_type": "rope.scaling.type",
    "rope_scaling.factor": "rope.scaling.factor",
    "rope_scaling.original_max_position_embeddings": "rope.scaling.original_context_length",
}
"""Hugging Face's keys, and what GGUF calls them after the architecture's name."""


def from_json(directory: Path) -> ModelConfig:
    """Config of a Hugging Face directory; keys in their old and new spellings.

    Raises `ModelFileError`.
    """
    path = directory / "config.json"
    raw = read_object(path)
    generation_path = directory / "generation_config.json"
    generation = read_object(generation_path) if generation_path.exists() else {}
    name = raw.get("model_type")
    architecture, fields = find(path, name), Fields(path, raw)
    if "text_config" in raw:
        raise ModelFileError(
            path, "a model of text and images is not supported, only its text part"
        )
    for key in _NOT_BUILT:
        if raw.get(key):
            raise fields.unsupported(f"{name} with {key}")
    return _read(
        str(name),
        architecture,
        fields,
        ends=generation.get("eos_token_id", raw.get("eos_token_id")),
        start=raw.get("bos_token_id"),
        tied=bool(raw.get("tie_word_embeddings", architecture.tied)),
        qkv_bias=bool(raw.get("attention_bias")),
        output_bias=bool(raw.get("attention_bias")),
        mlp_bias=bool(raw.get("mlp_bias")),
    )


def from_gguf(path: Path, metadata: Mapping[str, Any], tensors: Collection[str]) -> ModelConfig:
    """Config of a GGUF file with these tensors, by Hugging Face's names. Raises `ModelFileError`."""
    if metadata.get("split.count", 1) not in (0, 1):
        raise ModelFileError(path, "it is one part of several: merge them with llama-gguf-split")
    name = metadata.get("general.architecture")
    architecture = find(path, name)
    names = {ours: f"{name}.{theirs}" for ours, theirs in _GGUF_KEYS.items()}
    fields = Fields(path, _nested(names, metadata), is_gguf=True, names=names)
    return _read(
        str(name),
        architecture,
        fields,
        ends=[metadata.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot")],
        start=metadata.get("tokenizer.ggml.bos_token_id"),
        tied="lm_head.weight" not in tensors,
        qkv_bias=all(f"model.layers.0.self_attn.{part}_proj.bias" in tensors for part in "qkv"),
        output_bias="model.layers.0.self_attn.o_proj.bias" in tensors,
        mlp_bias="model.layers.0.mlp.down_proj.bias" in tensors,
    )


def _nested(names: Mapping[str, str], metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata under Hugging Face's keys, in which a dot is an object."""
    raw: dict[str, Any] = {}
    for ours, theirs in names.items():
        if theirs in metadata:
            *outer, last = ours.split(".")
            (raw.setdefault(outer[0], {}) if outer else raw)[last] = metadata[theirs]
    tokens = metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, list):
        raw.setdefault("vocab_size", len(tokens))
    return raw


def _read(
    name: str,
    architecture: Architecture,
    fields: Fields,
    *,
    ends: object,
    start: object,
    tied: bool,
    qkv_bias: bool,
    output_bias: bool,
    mlp_bias: bool,
) -> ModelConfig:
    heads, hidden = fields.size("num_attention_heads"), fields.size("hidden_size")
    head_dim, vocab = fields.size("head_dim", hidden // heads), fields.size("vocab_size")
    first, named = _ids(start, vocab), by_layer_types(fields)
    rope = read_rope(fields, head_dim, architecture.rope_theta)
    config = ModelConfig(
        architecture=name,
        vocab_size=vocab,
        hidden_size=hidden,
        num_layers=fields.size("num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=fields.size("num_key_value_heads", heads),
        head_dim=head_dim,
        intermediate_size=fields.size("intermediate_size"),
        context_length=stretched_context(fields, rope),
        rms_norm_eps=fields.constant("rms_norm_eps", None if fields.is_gguf else 1e-6),
        rope=rope,
        tie_word_embeddings=tied,
        eos_token_ids=_ids(ends, vocab),
        bos_token_id=first[0] if first else None,
        hidden_act=str(
            fields.value("hidden_activation")
            or fields.value("hidden_act", architecture.activations[0])
        ),
        windows=architecture.windows(fields) if named is None else named,
        attention_cap=fields.optional("attn_logit_softcapping"),
        logit_cap=fields.optional("final_logit_softcapping"),
        qkv_bias=qkv_bias,
        output_bias=output_bias,
        mlp_bias=mlp_bias,
    )
    if config.num_heads % config.num_kv_heads:
        problem = f"{config.num_heads} heads cannot share {config.num_kv_heads} KV heads evenly"
        raise ModelFileError(fields.path, problem)
    if config.hidden_act not in architecture.activations:
        raise fields.unsupported(f"activation {config.hidden_act!r}", architecture.activations[0])
    if fields.value("num_experts") and not architecture.has_experts:
        raise fields.unsupported(f"{name} with experts")
    return architecture.read(fields, config)


def _ids(value: object, vocab_size: int) -> tuple[int, ...]:
    """Token ids, one or several, without those that no token has."""
    values = value if isinstance(value, list) else [value]
    return tuple(dict.fromkeys(v for v in values if isinstance(v, int) and 0 <= v < vocab_size))
