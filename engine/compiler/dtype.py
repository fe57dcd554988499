"""Element types of tensors and how NumPy and C hold them."""

from enum import Enum
from typing import Any

import ml_dtypes
import numpy as np


class DType(Enum):
    """An element type. The value is its name in egglog terms and reports."""

    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    F8E4M3 = "f8e4m3"
    F8E5M2 = "f8e5m2"
    I32 = "i32"
    I64 = "i64"
    I8 = "i8"
    U8 = "u8"
    U4 = "u4"
    BOOL = "bool"

    @property
    def bits(self) -> int:
        """Bits that one element takes in memory; U4 packs two elements a byte, the low nibble first."""
        return int(_BITS[self])

    @property
    def is_float(self) -> bool:
        return self.value[0] in "fb" and self is not DType.BOOL

    @property
    def numpy(self) -> "np.dtype[Any]":
        """The NumPy type that holds it in memory (U4: bytes of two elements)."""
        held: np.dtype[Any] = np.dtype(_NUMPY[self])
        return held

    @property
    def c_type(self) -> str:
        """The C type that holds it in memory."""
        return _C[self]

    @classmethod
    def of(cls, dtype: "np.dtype[Any]") -> "DType":
        """The element type of a NumPy array; raises `TypeError` for a type that the compiler does not have."""
        for candidate, held in _NUMPY.items():
            if candidate is not DType.U4 and np.dtype(held) == dtype:
                return candidate
        raise TypeError(f"no element type for NumPy's {dtype}")


_NUMPY = {
    DType.F32: np.float32,
    DType.F16: np.float16,
    DType.BF16: ml_dtypes.bfloat16,
    DType.F8E4M3: ml_dtypes.float8_e4m3fn,
    DType.F8E5M2: ml_dtypes.float8_e5m2,
    DType.I32: np.int32,
    DType.I64: np.int64,
    DType.I8: np.int8,
    DType.U8: np.uint8,
    DType.U4: np.uint8,
    DType.BOOL: np.bool_,
}
_BITS = {dtype: 8 * np.dtype(held).itemsize for dtype, held in _NUMPY.items()} | {DType.U4: 4}
_C = {
    DType.F32: "float",
    DType.F16: "uint16_t",
    DType.BF16: "uint16_t",
    DType.F8E4M3: "uint8_t",
    DType.F8E5M2: "uint8_t",
    DType.I32: "int32_t",
    DType.I64: "int64_t",
    DType.I8: "int8_t",
    DType.U8: "uint8_t",
    DType.U4: "uint8_t",
    DType.BOOL: "uint8_t",
}
