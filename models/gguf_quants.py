"""GGUF's quantised block formats as `QuantizedTensor`s, without loss.

A block's layout is that of ggml's `block_q*` structs. Formats of 5 and 6 bits take 8-bit codes; the K formats'
two-level scales become f32 (a product of an f16 and a 6- or 8-bit integer is exact in f32).
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from engine.ops.base import Array
from engine.quantized import QuantizedTensor


class QuantFormat(NamedTuple):
    """A block format: elements and bytes a block, and what its tensors become."""

    name: str
    block: int
    size: int
    bits: int
    group: int
    scale: type[np.floating]
    has_minimum: bool
    read: Callable[
        [Array], tuple[Array, Array, Array | None]
    ]  # u8 [blocks, size] -> codes, scale, minimum a block


def convert(form: QuantFormat, raw: Array, rows: int) -> QuantizedTensor:
    """Blocks of a whole tensor (u8, any shape) as a tensor of `rows` rows."""
    codes, scale, minimum = form.read(raw.reshape(-1, form.size))
    low = None if minimum is None else np.ascontiguousarray(minimum).reshape(rows, -1)
    return QuantizedTensor(
        form.bits,
        form.group,
        np.ascontiguousarray(codes).reshape(rows, -1),
        np.ascontiguousarray(scale).reshape(rows, -1),
        low,
    )


def _half(blocks: Array, at: int) -> Array:
    return np.ascontiguousarray(blocks[:, at : at + 2]).view(np.float16)


def _nibble_codes(qs: Array) -> Array:
    """Bytes that hold element j low and element j + width high -> bytes that hold two neighbours."""
    pairs = np.ascontiguousarray(qs).view(np.uint16)
    low = (pairs & 0x0F) | (pairs >> 4 & 0xF0)
    high = (pairs >> 4 & 0x0F) | (pairs >> 8 & 0xF0)
    return np.concatenate([low.astype(np.uint8), high.astype(np.uint8)], axis=-1)


def _nibbles(qs: Array) -> Array:
    return np.concatenate([qs & 15, qs >> 4], axis=-1)


def _q4_0(b: Array) -> tuple[Array, Array, Array | None]:
    scale = _half(b, 0)
    return _nibble_codes(b[:, 2:]), scale, scale * np.float16(-8)


def _q4_1(b: Array) -> tuple[Array, Array, Array | None]:
    return _nibble_codes(b[:, 4:]), _half(b, 0), _half(b, 2)


def _fifth_bits(qh: Array) -> Array:
    return np.unpackbits(np.ascontiguousarray(qh), axis=-1, bitorder="little")


def _q5_0(b: Array) -> tuple[Array, Array, Array | None]:
    codes = _nibbles(b[:, 6:]) | _fifth_bits(b[:, 2:6]) << 4
    return codes.view(np.int8) - np.int8(16), _half(b, 0), None


def _q5_1(b: Array) -> tuple[Array, Array, Array | None]:
    codes = _nibbles(b[:, 8:]) | _fifth_bits(b[:, 4:8]) << 4
    return codes.view(np.int8), _half(b, 0), _half(b, 2)


def _q8_0(b: Array) -> tuple[Array, Array, Array | None]:
    return b[:, 2:].view(np.int8), _half(b, 0), None


def _k_scales(b: Array) -> tuple[Array, Array]:
    """f32 scale and minimum of a K block's 8 sub-blocks, from 6-bit numbers in 12 bytes after the two f16."""
    packed = b[:, 4:16]
    low, high, extra = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scale = np.concatenate([low & 63, (extra & 15) | (low >> 6) << 4], axis=1)
    minimum = np.concatenate([high & 63, (extra >> 4) | (high >> 6) << 4], axis=1)
    d, dmin = (_half(b, at).astype(np.float32) for at in (0, 2))
    return d * scale, -(dmin * minimum)


def _q4_k(b: Array) -> tuple[Array, Array, Array | None]:
    scale, minimum = _k_scales(b)
    # 32 bytes hold 64 elements: the first 32 in the low nibbles, the next in the high ones.
    codes = _nibble_codes(b[:, 16:].reshape(len(b), 4, 32))
    return codes, scale, minimum


def _q5_k(b: Array) -> tuple[Array, Array, Array | None]:
    scale, minimum = _k_scales(b)
    low = _nibbles(b[:, 48:].reshape(len(b), 4, 32)).reshape(len(b), 8, 32)
    bits = (b[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None]) & 1
    return (low | bits << 4).view(np.int8), scale, minimum


def _q6_k(b: Array) -> tuple[Array, Array, Array | None]:
    n = len(b)
    ql, qh = b[:, :128].reshape(n, 2, 2, 32), b[:, 128:192].reshape(n, 2, 32)
    low = np.concatenate([ql & 15, ql >> 4], axis=2)  # four runs of 32 a half block
    high = (qh[:, :, None, :] >> np.array([0, 2, 4, 6], np.uint8)[:, None]) & 3
    codes = (low | high << 4).view(np.int8) - np.int8(32)
    d = np.ascontiguousarray(b[:, 208:210]).view(np.float16).astype(np.float32)
    return codes, d * b[:, 192:208].view(np.int8), None


_F16, _F32 = np.float16, np.float32
FORMATS = {
    2: QuantFormat("Q4_0", 32, 18, 4, 32, _F16, True, _q4_0),
    3: QuantFormat("Q4_1", 32, 20, 4, 32, _F16, True, _q4_1),
    6: QuantFormat("Q5_0", 32, 22, 8, 32, _F16, False, _q5_0),
    7: QuantFormat("Q5_1", 32, 24, 8, 32, _F16, True, _q5_1),
    8: QuantFormat("Q8_0", 32, 34, 8, 32, _F16, False, _q8_0),
    12: QuantFormat("Q4_K", 256, 144, 4, 32, _F32, True, _q4_k),
    13: QuantFormat("Q5_K", 256, 176, 8, 32, _F32, True, _q5_k),
    14: QuantFormat("Q6_K", 256, 210, 8, 16, _F32, False, _q6_k),
}
