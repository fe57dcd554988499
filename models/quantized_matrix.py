"""A quantised matrix of a safetensors directory: several tensors, whose names differ in their last word."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from engine.ops.base import Array
from engine.quantized import QuantizedTensor
from models.errors import ModelFileError
from models.safetensors_file import SafetensorsFiles
from models.tensor_info import Quantization, TensorInfo

_WIDEST_GROUP = 256
"""Columns that an integer kernel sums before it scales: products of 8 and 16 bits still fit 32."""
_NUMBER = np.dtype(np.float32)
"""Of scales and minima: a zero point times a scale of 16 bits is exact in it."""


class Matrix:
    """The tensors `stem`.`part`. What it raises names the file and the tensor."""

    def __init__(self, files: SafetensorsFiles, names: frozenset[str], stem: str) -> None:
        self._files, self._names, self._stem = files, names, stem

    def has(self, part: str) -> bool:
        return self._name(part) in self._names

    def shape(self, part: str) -> tuple[int, ...]:
        self._require(part)
        return self._files.shape(self._name(part))

    def dtype(self, part: str) -> np.dtype[Any]:
        self._require(part)
        return self._files.dtype(self._name(part))

    def plane(self, part: str) -> tuple[int, int]:
        """The shape of a part that has two axes."""
        shape = self.shape(part)
        if len(shape) != 2 or 0 in shape:
            raise self.wrong(part, f"has shape {shape}, not two axes")
        return shape[0], shape[1]

    def read(self, part: str, shape: tuple[int, ...], dtype: type) -> Array:
        """A part's data, where that is its shape and type."""
        if self.shape(part) != shape or self.dtype(part) != dtype:
            found = f"{self.dtype(part)} {self.shape(part)}"
            raise self.wrong(part, f"is {found}, not {np.dtype(dtype)} {shape}")
        return self._files.tensor(self._name(part))

    def numbers(self, part: str, shape: tuple[int, ...]) -> Array:
        """Float data as f32."""
        if self.shape(part) != shape:
            raise self.wrong(part, f"has shape {self.shape(part)}, not {shape}")
        self._files.weight_dtype(self._name(part))
        found = self._files.tensor(self._name(part)).astype(np.float32)
        if not np.isfinite(found).all():
            raise self.wrong(part, "has numbers that are not finite")
        return found

    def wrong(self, part: str, problem: str) -> ModelFileError:
        return self._files.wrong(self._name(part), problem)

    def _name(self, part: str) -> str:
        return f"{self._stem}.{part}"

    def _require(self, part: str) -> None:
        if not self.has(part):
            some = next(name for name in self._names if name.startswith(f"{self._stem}."))
            raise self._files.wrong(some, f"has no {self._name(part)!r} beside it")


class Scheme(Protocol):
    """How a method of quantisation holds its matrices."""

    @property
    def marks(self) -> tuple[str, ...]:
        """Each quantised matrix has a part of one of these names, and no other has."""
        ...

    def info(self, matrix: Matrix) -> TensorInfo:
        """Of the matrix [rows, columns]."""
        ...

    def tensor(self, matrix: Matrix) -> Array | QuantizedTensor:
        """What `info` describes."""
        ...


@dataclass(frozen=True)
class Codes:
    """A matrix of `rows` by `columns` whose columns share a scale in `groups` equal parts."""

    rows: int
    columns: int
    groups: int
    bits: int
    has_minimum: bool

    @property
    def info(self) -> TensorInfo:
        """As codes where the kernels can read such groups, otherwise as f16."""
        shape, group = (self.rows, self.columns), self._group
        if group is None:
            return TensorInfo(shape, np.dtype(np.float16))
        form = Quantization(self.bits, group, _NUMBER, self.has_minimum)
        return TensorInfo(shape, _NUMBER, form)

    def tensor(self, codes: Array, scale: Array, zero: Array) -> Array | QuantizedTensor:
        """(codes - zero) * scale: codes as `QuantizedTensor` has them, scale f32 and zero [rows, groups]."""
        minimum = -(zero.astype(np.float32) * scale) if self.has_minimum else None
        group = self._group
        if group is None:
            width = self.columns // self.groups
            return (
                QuantizedTensor(self.bits, width, codes, scale, minimum)
                .dequantize()
                .astype(np.float16)
            )
        times = self.columns // self.groups // group
        scale = scale.repeat(times, axis=1)
        minimum = None if minimum is None else minimum.repeat(times, axis=1)
        return QuantizedTensor(self.bits, group, codes, scale, minimum)

    @property
    def _group(self) -> int | None:
        width = self.columns // self.groups
        fitting = range(8, min(width, _WIDEST_GROUP) + 1, 8)
        return max((group for group in fitting if width % group == 0), default=None)


def unpacked(words: Array, bits: int, order: tuple[int, ...] | None = None) -> Array:
    """u8 [..., n * 32 / bits] of i32 [..., n]: from the low end up, or the numbers `order` of each word."""
    places = order or tuple(range(32 // bits))
    unsigned = np.ascontiguousarray(words).view(np.uint32)
    out = np.empty((*words.shape, len(places)), np.uint8)
    for at, place in enumerate(places):
        out[..., at] = unsigned >> np.uint32(bits * place) & np.uint32((1 << bits) - 1)
    return out.reshape(*words.shape[:-1], -1)
