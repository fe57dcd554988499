"""A model's weights under their Hugging Face names, whichever file they come from."""

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from engine.ops.base import Array
from engine.quantized import QuantizedTensor
from models.architectures import find
from models.config import ModelConfig
from models.config_files import from_gguf, from_json
from models.errors import ModelFileError
from models.gguf_file import GgufFile
from models.gguf_quants import QuantFormat, convert
from models.quantized_files import QuantizedFiles
from models.tensor_info import Quantization, TensorInfo


class Checkpoint(Protocol):
    """An open checkpoint. `info` and `tensor` raise `ModelFileError` for a tensor that is not there."""

    path: Path
    config: ModelConfig
    size_bytes: int

    def names(self) -> list[str]: ...
    def info(self, name: str) -> TensorInfo: ...
    def tensor(self, name: str) -> Array | QuantizedTensor: ...
    def close(self) -> None: ...


def open_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint in a Hugging Face directory or a GGUF file."""
    if path.is_dir():
        return DirectoryCheckpoint(path)
    return GgufCheckpoint(path)


class DirectoryCheckpoint:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = from_json(path)
        self._files = QuantizedFiles(path)
        self.size_bytes = self._files.size_bytes

    def names(self) -> list[str]:
        return self._files.names()

    def info(self, name: str) -> TensorInfo:
        _require(self, name)
        return self._files.info(name)

    def tensor(self, name: str) -> Array | QuantizedTensor:
        _require(self, name)
        return self._files.tensor(name)

    def close(self) -> None:
        self._files.close()


_GGUF_NAMES = {
    "token_embd": "model.embed_tokens",
    "output": "lm_head",
    "output_norm": "model.norm",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.gate_proj",
    "ffn_up_exps": "mlp.experts.up_proj",
    "ffn_down_exps": "mlp.experts.down_proj",
}


class GgufCheckpoint:
    """A GGUF file. Llama files keep the rows of q and k in the order of interleaved rotary pairs; they are put back
    into the order of split halves, as in the original checkpoint."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = GgufFile(path)
        architecture = find(path, self._file.metadata.get("general.architecture"))
        names = _GGUF_NAMES | dict(architecture.gguf_names)
        self._names = {_hugging_face_name(name, names): name for name in self._file.tensors}
        config = from_gguf(path, self._file.metadata, self._names)
        scaling = self._rope_scaling(config)
        self.config = replace(config, rope=replace(config.rope, scaling=scaling))
        self.size_bytes = path.stat().st_size

    def names(self) -> list[str]:
        return list(self._names)

    def info(self, name: str) -> TensorInfo:
        _require(self, name)
        entry = self._file.tensors[self._names[name]]
        if not isinstance(entry.kind, QuantFormat):
            return TensorInfo(entry.shape, entry.kind)
        form = entry.kind
        q = Quantization(form.bits, form.group, np.dtype(form.scale), form.has_minimum)
        return TensorInfo(entry.shape, np.dtype(np.float32), q)

    def tensor(self, name: str) -> Array | QuantizedTensor:
        _require(self, name)
        entry, raw = self._file.tensors[self._names[name]], self._file.raw(self._names[name])
        order = self._row_order(name, entry.shape)
        if isinstance(entry.kind, QuantFormat):
            quantized = convert(entry.kind, raw, math.prod(entry.shape[:-1]))
            return quantized if order is None else quantized.rows(order)
        plain = raw.view(entry.kind).reshape(entry.shape)
        return plain if order is None else plain[order]

    def close(self) -> None:
        self._file.close()

    def _rope_scaling(self, config: ModelConfig) -> Mapping[str, Any] | None:
        """That of the metadata, or what tensors say: factors of frequencies, for texts of any length or of two."""
        count, prefix = config.rope.dim // 2, f"{config.architecture}.rope.scaling"
        if "rope_freqs.weight" in self._names:
            factors = self._rope_factors("rope_freqs.weight", count)
            return {"rope_type": "factors", "factors": factors}
        if "rope_factors_long.weight" not in self._names:
            return config.rope.scaling
        original = self._file.metadata.get(f"{prefix}.original_context_length")
        if not isinstance(original, int):
            raise ModelFileError(self.path, f"{prefix}.original_context_length is {original!r}")
        return {
            "rope_type": "longrope",
            "long_factor": self._rope_factors("rope_factors_long.weight", count),
            "short_factor": self._rope_factors("rope_factors_short.weight", count),
            "original_max_position_embeddings": original,
            "attention_factor": float(self._file.metadata.get(f"{prefix}.attn_factor", 1.0)),
        }

    def _rope_factors(self, name: str, count: int) -> list[float]:
        """What a scaling divides each frequency by."""
        _require(self, name)
        entry = self._file.tensors[name]
        factors = self._file.raw(name).view(np.float32) if entry.kind == np.float32 else None
        if factors is None or len(factors) != count or not (factors > 0).all():
            raise ModelFileError(self.path, f"tensor {name!r} does not hold {count} f32 factors")
        return [float(factor) for factor in factors]

    def _row_order(self, name: str, shape: tuple[int, ...]) -> Array | None:
        if self.config.architecture != "llama" or not re.search(
            r"\.self_attn\.[qk]_proj\.weight$", name
        ):
            return None
        head_dim = self.config.head_dim
        if len(shape) != 2 or head_dim % 2 or shape[0] % head_dim:
            raise ModelFileError(
                self.path, f"tensor {name!r} is {list(shape)}, not in heads of {head_dim} rows"
            )
        rows = np.arange(shape[0]).reshape(-1, head_dim // 2, 2)
        return rows.transpose(0, 2, 1).reshape(-1)


def _hugging_face_name(name: str, names: Mapping[str, str]) -> str:
    block = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(\w+)", name)
    if block and block[2] in names:
        return f"model.layers.{block[1]}.{names[block[2]]}.{block[3]}"
    stem, _, kind = name.rpartition(".")
    return f"{names[stem]}.{kind}" if stem in names else name


def _require(checkpoint: Checkpoint, name: str) -> None:
    if name not in checkpoint.names():
        raise ModelFileError(checkpoint.path, f"tensor {name!r} is missing")
