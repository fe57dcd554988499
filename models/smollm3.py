"""SmolLM3: Llama's layer, of which every fourth has no rotary embedding (NoPE, Yang et al. 2025)."""

from dataclasses import replace

from models import llama
from models.architecture import Architecture
from models.config import ModelConfig
from models.fields import Fields
from models.windows import Windows


def _rotated(fields: Fields) -> tuple[bool, ...]:
    layers = fields.size("num_hidden_layers")
    named = fields.value(
        "no_rope_layers"
    )  # in spite of its name, what is true in it has rotary embeddings
    if named is None:
        every = fields.size("no_rope_layer_interval", 4)
        return tuple((layer + 1) % every != 0 for layer in range(layers))
    if not isinstance(named, list) or len(named) < layers or set(named) - {0, 1}:
        raise fields.wrong("no_rope_layers", f"a list of 0 and 1 for {layers} layers")
    return tuple(bool(rotates) for rotates in named[:layers])


def _windows(fields: Fields) -> Windows:
    if fields.value("sliding_window") is None or not fields.value("use_sliding_window"):
        return ()
    window = fields.size("sliding_window")
    return tuple(None if rotates else window for rotates in _rotated(fields))


def _read(fields: Fields, common: ModelConfig) -> ModelConfig:
    windows = common.windows if fields.value("use_sliding_window") else ()
    return replace(common, rotated=_rotated(fields), windows=windows)


ARCHITECTURE = Architecture(llama.build, windows=_windows, tied=True, rope_theta=2e6, read=_read)
