"""Matrices beside a `weight_scale`: compressed-tensors in int4, int8 and fp8, and the fp8 files of others."""

from dataclasses import dataclass
from typing import ClassVar

import ml_dtypes
import numpy as np

from engine.ops.base import Array
from engine.quantized import QuantizedTensor
from models.quantized_matrix import Codes, Matrix, unpacked
from models.tensor_info import TensorInfo


@dataclass(frozen=True)
class Scaled:
    """`weight` (fp8 or i8 [out, in]) or `weight_packed` (4 or 8 bits, words of neighbouring inputs) times its scale.

    A scale is one number, one a row, one for each part of a row, or, as `weight_scale_inv` of some fp8 files too, one
    for each block of `block` rows and columns. What the files say of rounding activations is left undone: those here
    stay more exact.
    """

    block: tuple[int, int] | None = None
    marks: ClassVar[tuple[str, ...]] = ("weight_scale", "weight_scale_inv")

    def info(self, matrix: Matrix) -> TensorInfo:
        if matrix.has("weight_packed"):
            return self._packed(matrix).info
        if matrix.dtype("weight") == np.int8:
            return self._bytes(matrix).info
        return TensorInfo(matrix.plane("weight"), np.dtype(np.float16))

    def tensor(self, matrix: Matrix) -> Array | QuantizedTensor:
        if matrix.has("weight_packed"):
            return self._from_words(matrix, self._packed(matrix))
        if matrix.dtype("weight") == np.int8:
            return self._from_bytes(matrix, self._bytes(matrix))
        return self._from_floats(matrix)

    def _packed(self, matrix: Matrix) -> Codes:
        """The bits are what the columns leave for each."""
        rows, words = matrix.plane("weight_packed")
        shape = matrix.read("weight_shape", (2,), np.int64)
        columns = int(shape[1])
        bits = next((b for b in (4, 8) if columns > 0 and columns * b == words * 32), None)
        if bits is None or shape[0] != rows:
            raise matrix.wrong("weight_shape", f"is {shape.tolist()}: no shape of 4 or 8 bits")
        groups = self._groups(matrix, rows, columns)
        asymmetric = matrix.has("weight_zero_point")
        return Codes(rows, columns, groups, bits, has_minimum=bits == 4 or asymmetric)

    def _from_words(self, matrix: Matrix, form: Codes) -> Array | QuantizedTensor:
        words = matrix.read("weight_packed", (form.rows, form.columns * form.bits // 32), np.int32)
        codes, scale = np.ascontiguousarray(words).view(np.uint8), self._scale(matrix, form)
        middle = 1 << form.bits - 1
        zero: Array = np.full((1, 1), middle)
        if matrix.has("weight_zero_point"):
            per_word = 32 // form.bits
            shape = (-(-form.rows // per_word), form.groups)
            packed = matrix.read("weight_zero_point", shape, np.int32)
            zero = unpacked(packed.T, form.bits)[:, : form.rows].T.astype(np.int32)
        if matrix.has("weight_g_idx"):
            raise matrix.wrong("weight_g_idx", "orders inputs by activations: not supported")
        if form.bits == 8:
            codes, zero = (codes ^ 128).view(np.int8), zero - 128
        return form.tensor(codes, scale, zero)

    def _bytes(self, matrix: Matrix) -> Codes:
        rows, columns = matrix.plane("weight")
        groups = self._groups(matrix, rows, columns)
        return Codes(rows, columns, groups, 8, has_minimum=matrix.has("weight_zero_point"))

    def _from_bytes(self, matrix: Matrix, form: Codes) -> Array | QuantizedTensor:
        codes = matrix.read("weight", (form.rows, form.columns), np.int8)
        scale, zero = self._scale(matrix, form), np.zeros((1, 1), np.int8)
        if form.has_minimum:
            zero = matrix.read("weight_zero_point", matrix.shape("weight_scale"), np.int8)
            zero = zero.reshape(-1, form.groups)
        return form.tensor(codes, scale, zero)

    def _from_floats(self, matrix: Matrix) -> Array:
        rows, columns = matrix.plane("weight")
        value = matrix.read("weight", (rows, columns), ml_dtypes.float8_e4m3fn).astype(np.float32)
        name = next(mark for mark in self.marks if matrix.has(mark))
        shape = matrix.shape(name)
        scale = matrix.numbers(name, shape)
        if shape in ((rows,), (rows, 1)) or scale.size == 1:
            value *= scale.reshape(-1, 1)
        elif self.block is not None and shape == tuple(
            -(-size // width) for size, width in zip((rows, columns), self.block, strict=True)
        ):
            down, across = self.block
            value *= scale.repeat(down, axis=0)[:rows].repeat(across, axis=1)[:, :columns]
        else:
            raise matrix.wrong(name, f"has shape {shape}, which is no scale of {rows} by {columns}")
        found = value.astype(np.float16)
        if not np.isfinite(found).all():
            raise matrix.wrong("weight", "has numbers that are not finite, or too large for f16")
        return found

    @staticmethod
    def _groups(matrix: Matrix, rows: int, columns: int) -> int:
        shape = matrix.shape("weight_scale")
        if shape in ((), (1,), (rows,)):
            return 1
        if len(shape) != 2 or shape[0] != rows or not shape[1] or columns % shape[1]:
            problem = f"has shape {shape}, which is no scale of {rows} by {columns}"
            raise matrix.wrong("weight_scale", problem)
        return shape[1]

    @staticmethod
    def _scale(matrix: Matrix, form: Codes) -> Array:
        """f32 [rows, groups]."""
        found = matrix.numbers("weight_scale", matrix.shape("weight_scale"))
        return np.broadcast_to(found.reshape(-1, form.groups), (form.rows, form.groups))
