"""The packed format of quantised weights; `quantized.h` describes it to the kernels.

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
    code_bytes, width = form.group * form.bits, LANES * form.scale_bits // 8
    out = np.empty((b, groups, form.bytes // (b * groups)), np.uint8)
    words = _pad(_in_lanes(codes.view(np.uint32), form.bits), b)
    place = out[..., :code_bytes].view(np.uint32).reshape(b, groups, -1, LANES)
    place[...] = words.reshape(b, LANES, groups, -1).transpose(0, 2, 3, 1)
    for at, numbers in enumerate((scale, minimum)[: 1 + form.has_minimum]):
        assert numbers is not None
        start = code_bytes + at * width
        columns = out[..., start : start + width].view(numbers.dtype)
        columns[...] = _pad(numbers, b).reshape(b, LANES, groups).transpose(0, 2, 1)
    return out.reshape(-1)


def _pad(rows: Array, blocks: int) -> Array:
    """Rows of zeros after `rows`, up to whole blocks."""
    if len(rows) == blocks * LANES:
        return rows
    padded = np.zeros((blocks * LANES, rows.shape[1]), rows.dtype)
    padded[: len(rows)] = rows
    return padded


def _in_lanes(words: Array, bits: int) -> Array:
    """Codes in 32-bit words, columns from the low end up: even ones go to the low half, odd to the high.

    The halves are the 16-bit lanes that the kernels read.
    """
    if bits == 4:
        words = _swapped(words, 4, 0x00F000F0)
    return _swapped(words, 8, 0x0000FF00)


def _swapped(words: Array, distance: int, mask: int) -> Array:
    """The bits in `mask` change places with those `distance` higher."""
    moved = (words >> np.uint32(distance) ^ words) & np.uint32(mask)
    swapped: Array = words ^ moved ^ moved << np.uint32(distance)
    return swapped


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
