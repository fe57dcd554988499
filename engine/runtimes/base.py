"""What every runtime does: hold the data of inputs, choose the program for the dims, give outputs back."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from engine.compiler.dtype import DType
from engine.compiler.graph import Graph, Node
from engine.compiler.options import CompileOptions
from engine.compiler.program import CompiledPrograms, Program
from engine.compiler.shape import Shape, evaluate
from engine.compiler.tensor import Tensor
from engine.ops.base import Array, Spec

if TYPE_CHECKING:
    from engine.compiler.report import BucketReport
    from engine.compiler.search import Profiler

Loader = Callable[[], Array]


class DataError(ValueError):
    """An input's data is missing, or does not fit its tensor."""


class Roofline(NamedTuple):
    """A machine's limits: bytes/s from memory, operations/s, and seconds to start one op."""

    bandwidth: float
    rate: float
    launch: float


class Runtime(ABC):
    """Holds data and runs programs.

    Inputs that are not persisted are consumed by `execute`: a second execution without new data is a `DataError`.
    """

    kernels: ClassVar[frozenset[str]]
    roofline: ClassVar[Roofline] = Roofline(2e10, 1e11, 1e-6)

    def __init__(self) -> None:
        self._data: dict[Node, Array | Loader] = {}
        self._graph: Graph | None = None
        self._programs: CompiledPrograms | None = None
        self._symbols: frozenset[str] = frozenset()
        self._consumed: list[Node] = []
        self.reports: list[BucketReport] = []

    def profiler(self, graph: Graph, options: CompileOptions) -> "Profiler | None":
        """How to time candidates on this runtime; None where there is nothing to choose by time."""
        del graph, options
        return None

    @property
    def programs(self) -> CompiledPrograms:
        if self._programs is None:
            raise RuntimeError("nothing is compiled for this runtime yet")
        return self._programs

    def load(self, graph: Graph, programs: CompiledPrograms) -> None:
        """Take programs over; called by `Graph.search`."""
        self._graph, self._programs, self._symbols = graph, programs, graph.symbols
        read = {
            n
            for phase in programs.programs[0].phases
            for nodes in phase.space.region.inputs.values()
            for n in nodes
        }
        self._consumed = [n for n in graph.inputs if n in read and n not in graph.persisted]
        self._prepare()

    # -- data ----------------------------------------------------------------------------------------------------

    def set_data(self, tensor: Tensor, data: Any) -> None:
        """Give an input its data: an array, nested lists, or (for a persisted input) a function that loads it,
        which may be called several times. Raises `DataError` where the number of elements cannot fit."""
        node = tensor.node
        if node.op != "Input":
            raise DataError("set_data: only inputs take data")
        if callable(data):
            if node not in tensor.graph.persisted:
                raise DataError(
                    f"input {node.attrs[0]!r}: only persisted inputs are loaded by a function"
                )
            self._data[node] = data
        else:
            self._data[node] = conform(node, data)
        self._changed(node)

    def set_zeros(self, tensor: Tensor, dims: Mapping[str, int] | None = None) -> None:
        """Fill an input with zeros; `dims` gives the values of symbols in its shape."""
        known = tensor.graph.resolve(dims)
        shape = [evaluate(d, known) for d in stored_shape(tensor.node.shape, tensor.dtype)]
        self.set_data(tensor, np.zeros(shape, tensor.dtype.numpy))

    def zeros(self, shape: tuple[int, ...], dtype: DType) -> Array:
        """A zeroed array in the memory that this runtime reads fastest."""
        return np.zeros(shape, dtype.numpy)

    def load_safetensors(self, graph: Graph, path: Path | str) -> None:
        """Data of every input whose name is a key of the file, converted between float types where they differ."""
        from safetensors import safe_open

        named = {node.attrs[0]: node for node in graph.inputs}
        with safe_open(str(path), framework="numpy") as file:
            for key in set(file.keys()) & set(named):
                node = named[key]
                self._data[node] = conform(node, file.get_tensor(key))
                self._changed(node)

    def data(self, node: Node) -> Array:
        """An input's array; raises `DataError` when it has none."""
        found = self._data.get(node)
        if found is None:
            raise DataError(
                f"input {node.attrs[0]!r} has no data (inputs that are not persisted are consumed by execute)"
            )
        return conform(node, found()) if callable(found) else found

    def settle(self) -> None:  # noqa: B027 - a runtime may have nothing to do
        """Do now all that depends on weights alone, so that their loaders are needed no more."""

    # -- running -------------------------------------------------------------------------------------------------

    def execute(self, dims: Mapping[str, int] | None = None) -> None:
        """Run the program of the bucket that holds `dims` (symbols not given keep `Graph.set_dim`'s values)."""
        assert self._graph is not None
        known = self._graph.resolve(dims)
        if missing := self._symbols - known.keys():
            raise DataError(f"execute: dims {', '.join(sorted(missing))} have no value")
        program = self.programs.programs[self.programs.find(known)]
        for node in self._consumed:
            self._check_size(node, known)
        self._run(program, known)
        for node in self._consumed:
            self._data.pop(node, None)

    def _check_size(self, node: Node, dims: Mapping[str, int]) -> None:
        want = tuple(evaluate(d, dims) for d in stored_shape(node.shape, node.dtype))
        if (found := self.data(node).shape) != want:
            raise DataError(
                f"input {node.attrs[0]!r} has shape {found}, and {want} for dims {dict(dims)}"
            )

    def _changed(self, node: Node) -> None:  # noqa: B027 - the same
        """An input has new data."""

    @abstractmethod
    def _prepare(self) -> None:
        """Make ready to run `self.programs`."""

    @abstractmethod
    def _run(self, program: Program, dims: Mapping[str, int]) -> None:
        """Run a program on the data."""

    def view(self, tensor: Tensor) -> Array:
        """An output's memory, valid until the next execution."""
        return self.get(tensor)

    @abstractmethod
    def get(self, tensor: Tensor) -> Array:
        """An output of the last execution, or a persisted input's present data."""


def stored_shape(shape: Shape, dtype: DType) -> Shape:
    """Shape of the array that holds a tensor: U4 halves the last axis."""
    if dtype is not DType.U4:
        return shape
    last = shape[-1]
    assert isinstance(last, int)
    return (*shape[:-1], last // 2)


def conform(node: Node, data: Any) -> Array:
    """Data as a dense array of an input's type and rank."""
    want = node.dtype.numpy
    array = np.asarray(data)
    if array.dtype != want:
        if array.dtype.kind == "f" and not node.dtype.is_float:
            raise DataError(f"input {node.attrs[0]!r} is {node.dtype.value}, not {array.dtype}")
        array = array.astype(want)
    array = np.ascontiguousarray(array)
    shape = stored_shape(node.shape, node.dtype)
    known = [d for d in shape if isinstance(d, int)]
    fixed = len(known) == len(shape)
    if (array.size != int(np.prod(known))) if fixed else (array.ndim != len(shape)):
        raise DataError(f"input {node.attrs[0]!r} has shape {node.shape}, its data {array.shape}")
    return array.reshape(known) if fixed else array


def spec_of(node: Node) -> Spec:
    return Spec(node.shape, node.dtype)
