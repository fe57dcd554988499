"""The packed format of quantised weights; `prelude.h` describes it to the kernels.

The same bits as the model's, in another order: blocks of 8 rows, so that a vector's lanes are output rows and no sum
runs across lanes. Rows are padded with zeros to a multiple of 8.
"""

from typing import NamedTuple, Self

import numpy as np

from engine.ops.base import Array

LANES = 8


class Format(NamedTuple):
    """Weights [n, k] in groups of `group` columns, codes of `bits`, scales (and minima) of `scale_bits`."""

    n: int
    k: int
    group: int
    bits: int
    scale_bits: int
    has_minimum: bool

    @property
    def bytes(self) -> int:
        per_group = self.group * self.bits + self.scale_bits * (1 + self.has_minimum)
        return self.blocks * (self.k // self.group) * per_group

    @property
    def blocks(self) -> int:
        return -(-self.n // LANES)

    def __str__(self) -> str:
        return " ".join(["packed", *(str(int(field)) for field in self)])

    @classmethod
    def parse(cls, text: str) -> Self:
        """The format that prints as `text`."""
        n, k, group, bits, scale_bits, has_minimum = (int(word) for word in text.split()[1:])
        return cls(n, k, group, bits, scale_bits, bool(has_minimum))

    @property
    def macros(self) -> tuple[tuple[str, str], ...]:
        return (
            ("G", str(self.group)),
            ("BITS", str(self.bits)),
            ("SCALE_BITS", str(self.scale_bits)),
            ("HAS_MIN", str(int(self.has_minimum))),
        )


def pack(form: Format, codes: Array, scale: Array, minimum: Array | None) -> Array:
    """u8 [bytes] of codes (u8 [n, k/2], low nibble first, or i8 [n, k]), scale and minimum [n, k/group]."""
    b, groups = form.blocks, form.k // form.group
    padded = np.zeros((b * LANES, codes.shape[1]), np.uint8)
    padded[: form.n] = codes.view(np.uint8)
    if form.bits == 4:
        # A byte holds columns 2j and 2j + 1 of a row; a 16-bit lane wants columns 2j + e of j = 0..3, so the four bytes
        # of 8 columns become two lanes, one of their low nibbles and one of their high ones.
        four = padded.reshape(b, LANES, groups, form.group // 8, 4).astype(np.uint16)
        shifts = np.arange(0, 16, 4, dtype=np.uint16)
        low = ((four & 15) << shifts).sum(-1, dtype=np.uint16)
        high = ((four >> 4) << shifts).sum(-1, dtype=np.uint16)
        lanes = np.stack([low, high], axis=-1)  # [b, row, group, i, e]
    else:
        two = padded.reshape(b, LANES, groups, form.group // 4, 2, 2).astype(np.uint16)
        lanes = two[..., 0, :] | two[..., 1, :] << 8
    vectors = np.ascontiguousarray(lanes.transpose(0, 2, 3, 1, 4)).view(np.uint8)
    parts = [vectors.reshape(b, groups, -1)]
    for numbers in (scale, minimum):
        if numbers is not None:
            full = np.zeros((b * LANES, groups), numbers.dtype)
            full[: form.n] = numbers
            rows = np.ascontiguousarray(full.reshape(b, LANES, groups).transpose(0, 2, 1))
            parts.append(rows.view(np.uint8).reshape(b, groups, -1))
    return np.concatenate(parts, axis=-1).reshape(-1)


def unpack(form: Format, packed: Array) -> tuple[Array, Array, Array | None]:
    """(codes i16 [n, k], scale [n, k/group], minimum or None) of packed bytes."""
    b, groups = form.blocks, form.k // form.group
    blocks = packed.reshape(b, groups, -1)
    code_bytes = form.group * form.bits
    lanes = np.ascontiguousarray(blocks[..., :code_bytes]).view(np.uint16)
    lanes = lanes.reshape(b, groups, -1, LANES, 2)
    shifts = np.arange(0, 16, form.bits, dtype=np.uint16)
    codes = (lanes[..., None, :] >> shifts[:, None]) & ((1 << form.bits) - 1)
    codes = codes.transpose(0, 3, 1, 2, 4, 5).reshape(b * LANES, form.k)
    signed = codes.astype(np.uint8).view(np.int8) if form.bits == 8 else codes
    numbers = []
    width = LANES * form.scale_bits // 8
    for at in range(1 + form.has_minimum):
        raw = blocks[..., code_bytes + at * width : code_bytes + (at + 1) * width]
        kind = np.float16 if form.scale_bits == 16 else np.float32
        values = np.ascontiguousarray(raw).view(kind).transpose(0, 2, 1).reshape(b * LANES, groups)
        numbers.append(values[: form.n])
    return signed[: form.n].astype(np.int16), numbers[0], numbers[1] if form.has_minimum else None


def dequantize(form: Format, packed: Array) -> Array:
    """f32 [n, k] of packed weights."""
    codes, scale, minimum = unpack(form, packed)
    value = codes.reshape(form.n, -1, form.group) * scale.astype(np.float32)[..., None]
    if minimum is not None:
        value = value + minimum.astype(np.float32)[..., None]
    return value.reshape(form.n, form.k).astype(np.float32)
