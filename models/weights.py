"""Weights of a model file as tensors of the graph, whatever type the checkpoint holds them in."""

from collections.abc import Callable

import numpy as np

from engine.compiler import nn
from engine.compiler.dtype import DType
from engine.compiler.graph import Graph
from engine.compiler.tensor import Tensor
from engine.ops.base import Array
from engine.quantized import QuantizedTensor
from models.checkpoint import Checkpoint
from models.config import ModelConfig
from models.errors import ModelFileError

Loader = Callable[[], Array]


class WeightLoader:
    """Makes inputs for weights, and remembers how each is loaded.

    A weight that is used in several places is one input, but its conversion to float is written out for each use, so
    that every region of the graph sees what the weight is made of.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._inputs: dict[str, Tensor] = {}
        self._last: tuple[str, Array | QuantizedTensor] | None = None
        self.loaders: dict[Tensor, Loader] = {}

    @property
    def config(self) -> ModelConfig:
        return self._checkpoint.config

    def give(self, tensor: Tensor, loader: Loader) -> None:
        """Data of an input that the model computes instead of reading it."""
        self.loaders[tensor] = loader

    def vector(self, graph: Graph, name: str, size: int, kind: str = "weight") -> Tensor:
        """`name`.weight (or .bias) as f32 [size]."""
        key = f"{name}.{kind}"
        return self._plain(graph, key, (size,)).cast(DType.F32)

    def matrix(self, graph: Graph, name: str, rows: int, columns: int) -> Tensor:
        """`name`.weight as f32 [rows, columns], dequantised in the graph where it is quantised."""
        key = f"{name}.weight"
        info = self._checkpoint.info(key)
        self._check(key, info.shape, (rows, columns))
        if info.quantization is None:
            return self._plain(graph, key, (rows, columns)).cast(DType.F32)
        q = info.quantization
        groups = (rows, columns // q.group)
        scale_type = DType.of(q.scale_dtype)
        code_type = DType.U4 if q.bits == 4 else DType.I8
        codes = self._part(graph, key, "codes", (rows, columns), code_type)
        scale = self._part(graph, key, "scale", groups, scale_type)
        minimum = self._part(graph, key, "minimum", groups, scale_type) if q.has_minimum else None
        return nn.dequantize(codes, scale, minimum)

    def _plain(self, graph: Graph, key: str, shape: tuple[int, ...]) -> Tensor:
        info = self._checkpoint.info(key)
        self._check(key, info.shape, shape)
        if key not in self._inputs:
            self._inputs[key] = graph.named_tensor(key, shape, DType.of(info.dtype)).persist()
            self.loaders[self._inputs[key]] = lambda: self._array(key)
        return self._inputs[key]

    def _part(
        self, graph: Graph, key: str, part: str, shape: tuple[int, int], dtype: DType
    ) -> Tensor:
        name = f"{key}.{part}"
        if name not in self._inputs:
            self._inputs[name] = graph.named_tensor(name, shape, dtype).persist()
            self.loaders[self._inputs[name]] = lambda: self._quantized(key, part)
        return self._inputs[name]

    def _tensor(self, key: str) -> Array | QuantizedTensor:
        # A quantised weight's parts are asked for one after another: keep the last one read.
        if self._last is None or self._last[0] != key:
            self._last = (key, self._checkpoint.tensor(key))
        return self._last[1]

    def _array(self, key: str) -> Array:
        tensor = self._tensor(key)
        assert isinstance(tensor, np.ndarray)
        return tensor

    def _quantized(self, key: str, part: str) -> Array:
        tensor = self._tensor(key)
        assert isinstance(tensor, QuantizedTensor)
        value: Array = getattr(tensor, part)
        return value

    def _check(self, key: str, found: tuple[int, ...], wanted: tuple[int, ...]) -> None:
        if found != wanted:
            raise ModelFileError(
                self._checkpoint.path, f"tensor {key!r} has shape {found}, its config says {wanted}"
            )
