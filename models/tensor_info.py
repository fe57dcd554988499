"""What is known of a checkpoint's tensor before it is read."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Quantization:
    """The form of a quantised tensor's parts, which `QuantizedTensor` describes."""

    bits: int
    group: int
    scale_dtype: np.dtype[Any]
    has_minimum: bool


@dataclass(frozen=True)
class TensorInfo:
    """A tensor before it is read: `quantization` is None for float weights of `dtype`.

    A quantised tensor of more than two axes is read as rows of its last one.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    quantization: Quantization | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes that it takes in memory."""
        count, q = math.prod(self.shape), self.quantization
        if q is None:
            return count * self.dtype.itemsize
        numbers = count // q.group * (1 + q.has_minimum)
        return count * q.bits // 8 + numbers * q.scale_dtype.itemsize
