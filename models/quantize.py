"""Float weights rounded to 8 or 4 bits as they are loaded (`--quantize`).

8 bits: scale = largest magnitude / 127 in a group of columns, no minimum. 4 bits: scale and minimum span the group's
range in 15 steps. Scales and minima are f16 and codes are rounded with the rounded numbers, so no weight moves by more
than half a step and the rounding of its minimum. Below 6e-5, where f16 are 2**-24 apart, steps grow by as much.
"""

import re
from typing import Literal

import numpy as np

from engine.ops.base import Array
from engine.quantized import QuantizedTensor
from models.checkpoint import Checkpoint
from models.errors import ModelFileError
from models.tensor_info import Quantization, TensorInfo

Precision = Literal["int8", "int4"]
BITS: dict[Precision, int] = {"int8": 8, "int4": 4}

_GROUPS = (32, 16, 8)
"""Columns that share a scale: the first that divides a row."""
_LAYER_MATRIX = re.compile(r".*\.\d+\..*\.weight")
_ROUTER = re.compile(r".*\.(gate|router|router\.proj)\.weight")
_TABLES = ("embed_tokens.weight", "lm_head.weight")
_TOO_LARGE = 6e4  # the largest f16 is 65504
_BLOCK_WEIGHTS = 1 << 22
"""Weights that are rounded at a time: what is between them and their codes takes no more memory than these."""


class QuantizedAtLoad:
    """A checkpoint whose float matrices are rounded when they are read.

    The layers' matrices get the bits of `precision`; embedding and output head get 8, since their rounding reaches
    every logit. Vectors, the routers of experts, what the file holds quantised already, and rows that no group of 8
    divides stay as they are.
    """

    def __init__(self, checkpoint: Checkpoint, precision: Precision) -> None:
        self._inner, self._bits = checkpoint, BITS[precision]
        self.path, self.config = checkpoint.path, checkpoint.config
        self.size_bytes = sum(self.info(name).size_bytes for name in checkpoint.names())

    def names(self) -> list[str]:
        return self._inner.names()

    def info(self, name: str) -> TensorInfo:
        found = self._inner.info(name)
        bits = self._bits_of(name)
        if bits is None or len(found.shape) != 2 or found.quantization is not None:
            return found
        group = next((g for g in _GROUPS if found.shape[1] % g == 0), None)
        if group is None:
            return found
        form = Quantization(bits, group, np.dtype(np.float16), has_minimum=bits == 4)
        return TensorInfo(found.shape, np.dtype(np.float32), form)

    def tensor(self, name: str) -> Array | QuantizedTensor:
        form, value = self.info(name).quantization, self._inner.tensor(name)
        if form is None or isinstance(value, QuantizedTensor):
            return value
        try:
            return quantize(value, form.bits, form.group)
        except ValueError as error:
            raise ModelFileError(self.path, f"tensor {name!r}: {error}") from None

    def close(self) -> None:
        self._inner.close()

    def _bits_of(self, name: str) -> int | None:
        if name.endswith(_TABLES):
            return 8
        if _LAYER_MATRIX.fullmatch(name) and not _ROUTER.fullmatch(name):
            return self._bits
        return None


def quantize(weights: Array, bits: int, group: int) -> QuantizedTensor:
    """Float weights [n, k] in 8 bits without or 4 bits with a minimum, in groups of `group` columns of k.

    Raises `ValueError` for weights that are not finite, or of more than f16 holds.
    """
    n, k = weights.shape
    rows = max(1, _BLOCK_WEIGHTS // k)
    codes = np.empty((n, k * bits // 8), np.int8 if bits == 8 else np.uint8)
    scale = np.empty((n, k // group), np.float16)
    minimum = np.empty_like(scale) if bits == 4 else None
    for at in range(0, n, rows):
        part = slice(at, min(at + rows, n))
        block = weights[part].astype(np.float32).reshape(-1, k // group, group)
        if not np.abs(block).max(initial=0) < _TOO_LARGE:
            raise ValueError("its weights are not finite, or too large to be quantised")
        if minimum is None:
            codes[part], scale[part] = _in_8_bits(block)
        else:
            codes[part], scale[part], minimum[part] = _in_4_bits(block)
    return QuantizedTensor(bits, group, codes, scale, minimum)


def _in_8_bits(block: Array) -> tuple[Array, Array]:
    scale = _rounded_up(np.abs(block).max(-1) / 127)
    codes = np.rint(block * _inverse(scale)[..., None])
    return codes.astype(np.int8).reshape(len(block), -1), scale


def _in_4_bits(block: Array) -> tuple[Array, Array, Array]:
    minimum = -_rounded_up(-block.min(-1))
    low = minimum.astype(np.float32)
    scale = _rounded_up((block.max(-1) - low) / 15)
    codes = np.rint((block - low[..., None]) * _inverse(scale)[..., None])
    nibbles = np.clip(codes, 0, 15).astype(np.uint8).reshape(len(block), -1)
    return nibbles[:, ::2] | nibbles[:, 1::2] << 4, scale, minimum


def _rounded_up(x: Array) -> Array:
    """The smallest f16 that is no smaller, so that the codes reach the group's ends."""
    half = x.astype(np.float16)
    up: Array = np.where(half < x, np.nextafter(half, np.float16(np.inf)), half)
    return up


def _inverse(scale: Array) -> Array:
    wide = scale.astype(np.float32)
    return np.divide(1, wide, out=np.zeros_like(wide), where=wide > 0)
