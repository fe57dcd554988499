"""Where an operation stands: what its meaning may ask for, and how its operands are made alike."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from engine.compiler.backends.foreign import Result, UnsupportedError
from engine.compiler.dtype import DType
from engine.compiler.graph import Graph
from engine.compiler.handle import Number
from engine.compiler.shape import Shape
from engine.compiler.tensor import Tensor

Value = Tensor | tuple["Tensor | None", ...]
Meaning = Callable[..., Value]
Table = Mapping[str, Meaning]
_NARROW = (DType.F16, DType.BF16, DType.F8E4M3, DType.F8E5M2)
_ORDER = (
    *(DType.BOOL, DType.U8, DType.I8, DType.I32, DType.I64),
    *(DType.F8E5M2, DType.F8E4M3, DType.F16, DType.BF16, DType.F32),
)


@dataclass(frozen=True)
class Site:
    """One node of a foreign graph; `shape` and `dtype` are of its (first) result."""

    graph: Graph
    name: str
    op: str
    results: tuple[Result, ...]

    @property
    def shape(self) -> Shape:
        return self.results[0].shape

    @property
    def dtype(self) -> DType:
        return self.results[0].dtype

    @property
    def wide(self) -> DType:
        """The type to compute in: narrow floats are computed in f32 and rounded once at the end, as PyTorch does."""
        return widened(self.dtype)

    def operand(self, value: "Tensor | Number", dtype: DType | None = None) -> Tensor:
        """An operand in the result's shape (or a scalar of shape ()), of the type to compute in unless another is
        given."""
        dtype = dtype or self.wide
        if not isinstance(value, Tensor):
            return self.graph.constant(value, dtype)
        value = value.cast(dtype)
        return broadcast(value, self.shape) if value.shape else value

    def axis(self, axis: int, rank: int) -> int:
        """An axis that may be negative; a scalar has one axis to name."""
        return axis % max(rank, 1)

    def refuse(self, what: str) -> UnsupportedError:
        return UnsupportedError(f"{self.op} ({self.name}): {what} is not supported")


def widened(dtype: DType) -> DType:
    return DType.F32 if dtype in _NARROW else dtype


def broadcast(x: Tensor, shape: Shape) -> Tensor:
    """NumPy's rule: axes that are missing or of size 1 repeat."""
    for _ in range(len(shape) - len(x.shape)):
        x = x.expand(0, 1)
    for axis, size in enumerate(shape):
        if x.shape[axis] != size:
            x = x.squeeze(axis).expand(axis, size)
    return x


def promoted(*operands: Any) -> DType:
    """PyTorch's type of an operation on these: numbers give way to scalars, and scalars to tensors, of their kind."""
    ranks = [
        (2 if value.shape else 1, value.dtype)
        if isinstance(value, Tensor)
        else (0, _of_number(value))
        for value in operands
    ]
    kind = max(_kind(dtype) for _, dtype in ranks)
    alike = [(rank, dtype) for rank, dtype in ranks if _kind(dtype) == kind]
    rank = max(rank for rank, _ in alike)
    return max((dtype for r, dtype in alike if r == rank), key=_ORDER.index)


def _of_number(value: object) -> DType:
    if isinstance(value, bool):
        return DType.BOOL
    return DType.F32 if isinstance(value, float) else DType.I64


def _kind(dtype: DType) -> int:
    return 0 if dtype is DType.BOOL else 2 if dtype.is_float else 1
