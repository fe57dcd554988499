"""Weights of a model file as tensors of the graph, whatever type the checkpoint holds them in."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

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
from models.finite import is_finite
from models.tensor_info import TensorInfo

Loader = Callable[[], Array]

_HARMLESS = (
    r"rope_(freqs|factors_long|factors_short)\.weight|.*\.(inv_freq|position_ids|[kv]_scale)"
)
"""Tensors that are read elsewhere, computed anew, or scales of a cache in another precision."""


@dataclass(frozen=True)
class Rows:
    """Rows `start` to `stop` of the tensor `key`, which has `shape`; all axes but the last are rows."""

    key: str
    shape: tuple[int, ...]
    start: int
    stop: int


def whole(key: str, *shape: int) -> Rows:
    """All of a tensor."""
    return Rows(key, shape, 0, math.prod(shape[:-1]))


class WeightLoader:
    """Makes inputs for weights, and remembers how each is loaded.

    A weight that is used in several places is one input, but its conversion to float is written out for each use, so
    that every region of the graph sees what the weight is made of.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._inputs: dict[str, Tensor] = {}
        self._split: dict[str, tuple[str, int, int]] = {}
        # What was read last is kept: a quantised weight's parts are asked for one after another, and so are the weights
        # that are rows of the same tensor.
        self._last: tuple[str, Array | QuantizedTensor] | None = None
        self._cut: tuple[str, Array | QuantizedTensor] | None = None
        self._read: set[str] = set()
        self.loaders: dict[Tensor, Loader] = {}

    @property
    def config(self) -> ModelConfig:
        return self._checkpoint.config

    def has(self, key: str) -> bool:
        """Whether the checkpoint has a tensor of this name."""
        return key in self._checkpoint.names()

    def refuse_unread(self, ignored: str) -> None:
        """Raises `ModelFileError` for a tensor that the model did not ask for and whose name `ignored` does not match:
        it would be left out of what is computed."""
        harmless = re.compile("|".join(filter(None, (_HARMLESS, ignored))))
        tied = {"lm_head.weight"} if self.config.tie_word_embeddings else set()
        for name in self._checkpoint.names():
            if name not in self._read | tied and not harmless.fullmatch(name):
                raise ModelFileError(
                    self._checkpoint.path,
                    f"tensor {name!r} has no place in a {self.config.architecture} of this config",
                )

    def give(self, tensor: Tensor, loader: Loader) -> None:
        """Data of an input that the model computes instead of reading it."""
        self.loaders[tensor] = loader

    def vector(self, graph: Graph, name: str, size: int, kind: str = "weight") -> Tensor:
        """`name`.weight (or .bias) as f32 [size]."""
        key = f"{name}.{kind}"
        return self._plain(graph, key, (size,)).cast(DType.F32)

    def matrix(self, graph: Graph, name: str, rows: int, columns: int) -> Tensor:
        """`name`.weight as f32 [rows, columns], dequantised in the graph where it is quantised."""
        part = whole(f"{name}.weight", rows, columns)
        for suffix, (fused, start, total) in self._split.items():
            if name.endswith(suffix):
                key = f"{name.removesuffix(suffix)}{fused}.weight"
                part = Rows(key, (total, columns), start, start + rows)
        return self.joined(graph, f"{name}.weight", [part], columns)

    def split(self, fused: str, parts: Mapping[str, int]) -> None:
        """From now on, matrices whose names end with one of `parts` are rows of the one whose name ends with `fused`,
        which holds so many of each one after another."""
        start, total = 0, sum(parts.values())
        for part, rows in parts.items():
            self._split[f".{part}"] = f".{fused}", start, total
            start += rows

    def experts(
        self, graph: Graph, name: str, part: str, count: int, rows: int, columns: int
    ) -> Tensor:
        """The matrices `name`.0.`part`.weight to those of the last expert as f32 [count, rows, columns].

        They may also lie in one tensor, `name`.`part`.weight.
        """
        key = f"{name}.{part}.weight"
        if self.has(key):
            parts = [whole(key, count, rows, columns)]
        else:
            parts = [whole(f"{name}.{i}.{part}.weight", rows, columns) for i in range(count)]
        return self.joined(graph, key, parts, columns).split(0, rows)

    def joined(self, graph: Graph, name: str, parts: Sequence[Rows], columns: int) -> Tensor:
        """Rows of several tensors one after another, f32 [rows, columns]. `name` is what they are called together.

        Raises `ModelFileError` for tensors of other shapes, or not all in one form.
        """
        infos = [self._info(part.key) for part in parts]
        for part, info in zip(parts, infos, strict=True):
            self._check(part.key, info.shape, part.shape)
            if (info.dtype, info.quantization) != (infos[0].dtype, infos[0].quantization):
                raise ModelFileError(
                    self._checkpoint.path,
                    f"tensors {parts[0].key!r} and {part.key!r} are not of the same type",
                )
        rows = sum(part.stop - part.start for part in parts)
        q = infos[0].quantization

        def held(what: str, width: int, dtype: DType) -> Tensor:
            label = f"{name}.{what}" if what else name
            if label not in self._inputs:
                self._inputs[label] = graph.named_tensor(label, (rows, width), dtype).persist()
                self.loaders[self._inputs[label]] = lambda: self._load(name, parts, what)
            return self._inputs[label]

        if q is None:
            return held("", columns, DType.of(infos[0].dtype)).cast(DType.F32)
        codes = held("codes", columns, DType.U4 if q.bits == 4 else DType.I8)
        groups, numbers = columns // q.group, DType.of(q.scale_dtype)
        scale = held("scale", groups, numbers)
        minimum = held("minimum", groups, numbers) if q.has_minimum else None
        return nn.dequantize(codes, scale, minimum)

    def _plain(self, graph: Graph, key: str, shape: tuple[int, ...]) -> Tensor:
        info = self._info(key)
        self._check(key, info.shape, shape)
        if key not in self._inputs:
            self._inputs[key] = graph.named_tensor(key, shape, DType.of(info.dtype)).persist()
            self.loaders[self._inputs[key]] = lambda: self._array(key)
        return self._inputs[key]

    def _load(self, name: str, parts: Sequence[Rows], what: str) -> Array:
        """Data of an input: codes, scale or minimum, or a float weight itself where `what` is empty."""
        if self._last is None or self._last[0] != name:
            self._last = None
            self._last = name, self._joined(parts)
        value = self._last[1]
        if isinstance(value, QuantizedTensor):
            found: Array = getattr(value, what)
            return found
        self._last = None
        return value

    def _joined(self, parts: Sequence[Rows]) -> Array | QuantizedTensor:
        found = [self._rows(part) for part in parts]
        if len(found) == 1:
            return found[0]
        quantized = [part for part in found if isinstance(part, QuantizedTensor)]
        if quantized:
            return QuantizedTensor.concatenate(quantized)
        return np.concatenate([part for part in found if isinstance(part, np.ndarray)])

    def _rows(self, part: Rows) -> Array | QuantizedTensor:
        if self._cut is None or self._cut[0] != part.key:
            self._cut = None
            self._cut = part.key, self._tensor(part.key)
        tensor = self._cut[1]
        if not isinstance(tensor, QuantizedTensor):
            tensor = tensor.reshape(-1, part.shape[-1])
        if (part.start, part.stop) == (0, tensor.shape[0]):
            self._cut = None
            return tensor
        if isinstance(tensor, QuantizedTensor):
            return tensor.rows(slice(part.start, part.stop))
        return tensor[part.start : part.stop]

    def _array(self, key: str) -> Array:
        tensor = self._tensor(key)
        assert isinstance(tensor, np.ndarray)
        return tensor

    def _info(self, key: str) -> TensorInfo:
        self._read.add(key)
        return self._checkpoint.info(key)

    def _tensor(self, key: str) -> Array | QuantizedTensor:
        tensor = self._checkpoint.tensor(key)
        if isinstance(tensor, QuantizedTensor):
            numbers = (tensor.scale, tensor.minimum)
        else:
            numbers = (tensor, None)
        if not all(part is None or is_finite(part) for part in numbers):
            raise ModelFileError(
                self._checkpoint.path, f"tensor {key!r} has numbers that are not finite"
            )
        return tensor

    def _check(self, key: str, found: tuple[int, ...], wanted: tuple[int, ...]) -> None:
        if found != wanted:
            raise ModelFileError(
                self._checkpoint.path, f"tensor {key!r} has shape {found}, its config says {wanted}"
            )
