"""Group-quantised weights in the one form that the engine knows."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engine.ops.base import Array


@dataclass(frozen=True)
class QuantizedTensor:
    """Weights [n, k] with value = codes * scale + minimum, scale and minimum shared by `group` columns of a row.

    codes: u8 [n, k/2] for 4 bits (0..15, the low nibble is the even column) or i8 [n, k] for 8 bits.
    scale, minimum: f16 or f32 [n, k/group]; minimum may be None.
    """

    bits: int
    group: int
    codes: Array
    scale: Array
    minimum: Array | None = None

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.shape[0], self.codes.shape[1] * (8 // self.bits)

    def rows(self, order: Array | slice) -> "QuantizedTensor":
        """Some of the rows, or all in another order."""
        low = None if self.minimum is None else self.minimum[order]
        return QuantizedTensor(self.bits, self.group, self.codes[order], self.scale[order], low)

    @staticmethod
    def concatenate(parts: "Sequence[QuantizedTensor]") -> "QuantizedTensor":
        """The rows of tensors in the same form, one after another."""
        lows = [part.minimum for part in parts if part.minimum is not None]
        return QuantizedTensor(
            parts[0].bits,
            parts[0].group,
            np.concatenate([part.codes for part in parts]),
            np.concatenate([part.scale for part in parts]),
            np.concatenate(lows) if lows else None,
        )

    def dequantize(self) -> Array:
        """f32 [n, k]."""
        codes = self.codes
        if self.bits == 4:
            codes = np.stack([codes & 15, codes >> 4], axis=-1)
        n, k = self.shape
        value = codes.reshape(n, -1, self.group).astype(np.float32) * self.scale[..., None].astype(
            np.float32
        )
        if self.minimum is not None:
            value = value + self.minimum[..., None].astype(np.float32)
        return value.reshape(n, k)
