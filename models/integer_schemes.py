"""AWQ and GPTQ: matrices [in, out] of codes in 32-bit words, with a zero point for each scale."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from engine.ops.base import Array
from engine.quantized import QuantizedTensor
from models.quantized_matrix import Codes, Matrix, unpacked
from models.tensor_info import TensorInfo

_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where in a word the neighbours of a row lie, which AutoAWQ's GEMM kernels read the even ones of first."""


class Awq:
    """AutoAWQ's "gemm" files: 4 bits, words of eight neighbouring outputs.

    qweight i32 [in, out/8]; qzeros i32 [groups, out/8]; scales [groups, out]. value = (code - zero) * scale.
    """

    marks: ClassVar[tuple[str, ...]] = ("qweight",)

    def info(self, matrix: Matrix) -> TensorInfo:
        return self._codes(matrix).info

    def tensor(self, matrix: Matrix) -> Array | QuantizedTensor:
        form = self._codes(matrix)
        columns, words = matrix.plane("qweight")
        packed = matrix.read("qweight", (columns, words), np.int32)
        codes = unpacked(packed, 4, _AWQ_ORDER)
        pairs = codes[::2] | codes[1::2] << 4
        zeros = unpacked(matrix.read("qzeros", (form.groups, words), np.int32), 4, _AWQ_ORDER)
        scale = matrix.numbers("scales", (form.groups, form.rows))
        return form.tensor(np.ascontiguousarray(pairs.T), scale.T, zeros.T)

    @staticmethod
    def _codes(matrix: Matrix) -> Codes:
        columns, words = matrix.plane("qweight")
        groups = _groups(matrix, columns)
        return Codes(words * 8, columns, groups, 4, has_minimum=True)


@dataclass(frozen=True)
class Gptq:
    """AutoGPTQ's files: 4 or 8 bits, words of neighbouring inputs.

    qweight i32 [in*bits/32, out]; qzeros i32 [groups, out*bits/32], each less `zero_offset`; scales [groups, out];
    g_idx i32 [in], each input's group, which is in order unless the quantiser went by activations (`desc_act`).
    """

    bits: int
    zero_offset: int
    marks: ClassVar[tuple[str, ...]] = ("qweight",)

    def info(self, matrix: Matrix) -> TensorInfo:
        form = self._codes(matrix)
        if self._order(matrix, form) is None:
            return form.info
        return TensorInfo((form.rows, form.columns), np.dtype(np.float16))

    def tensor(self, matrix: Matrix) -> Array | QuantizedTensor:
        form = self._codes(matrix)
        per_word = 32 // self.bits
        words = matrix.read("qweight", (form.columns // per_word, form.rows), np.int32)
        codes = np.ascontiguousarray(words.T).view(np.uint8)
        scale = matrix.numbers("scales", (form.groups, form.rows)).T
        packed = matrix.read("qzeros", (form.groups, form.rows // per_word), np.int32)
        zeros = unpacked(packed, self.bits).T.astype(np.int32) + self.zero_offset
        if self.bits == 8:
            codes, zeros = (codes ^ 128).view(np.int8), zeros - 128
        order = self._order(matrix, form)
        if order is None:
            return form.tensor(codes, scale, zeros)
        one = QuantizedTensor(
            self.bits, form.columns, codes, np.ones((form.rows, 1), np.float32)
        ).dequantize()
        return ((one - zeros[:, order]) * scale[:, order]).astype(np.float16)

    def _codes(self, matrix: Matrix) -> Codes:
        words, rows = matrix.plane("qweight")
        columns = words * 32 // self.bits
        return Codes(rows, columns, _groups(matrix, columns), self.bits, has_minimum=True)

    @staticmethod
    def _order(matrix: Matrix, form: Codes) -> Array | None:
        """Each input's group, or None where they are in order."""
        if not matrix.has("g_idx"):
            return None
        order = matrix.read("g_idx", (form.columns,), np.int32)
        if order.min() < 0 or order.max() >= form.groups:
            raise matrix.wrong("g_idx", f"names a group other than 0 to {form.groups - 1}")
        in_order = np.arange(form.columns) // (form.columns // form.groups)
        return None if (order == in_order).all() else order


def _groups(matrix: Matrix, columns: int) -> int:
    groups, _ = matrix.plane("scales")
    if columns % groups:
        raise matrix.wrong(
            "scales", f"has {groups} groups, which {columns} inputs do not divide into"
        )
    return groups
