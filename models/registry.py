"""Checkpoints on disk as models that the engine can build."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from engine.compiler.graph import Graph
from engine.model import ModelLimits, StepGraph, StepInputs
from models.architecture import Architecture
from models.architectures import find
from models.checkpoint import Checkpoint, open_checkpoint
from models.config import ModelConfig
from models.quantize import Precision, QuantizedAtLoad
from models.weights import WeightLoader


class CheckpointModel:
    """A checkpoint on disk as the engine's `Model`."""

    def __init__(self, name: str, checkpoint: Checkpoint, architecture: Architecture) -> None:
        self._name, self._checkpoint, self._architecture = name, checkpoint, architecture

    @property
    def config(self) -> ModelConfig:
        return self._checkpoint.config

    @property
    def limits(self) -> ModelLimits:
        c = self.config
        return ModelLimits(
            name=self._name,
            vocab_size=c.vocab_size,
            context_length=c.context_length,
            kv_bytes_per_token=2 * c.cached_per_token,
            weight_bytes=self._checkpoint.size_bytes,
            pooling=c.pooling,
        )

    def build(self, graph: Graph, inputs: StepInputs) -> StepGraph:
        weights = WeightLoader(self._checkpoint)
        step = self._architecture.build(graph, inputs, weights)
        weights.refuse_unread(self._architecture.ignored)
        return step

    def close(self) -> None:
        self._checkpoint.close()


def load(path: Path | str, quantize: Precision | None = None) -> CheckpointModel:
    """The model in a directory or GGUF file, its float matrices rounded to `quantize`.

    Raises `ModelFileError` for one that cannot be served.
    """
    checkpoint = open_checkpoint(Path(path))
    if quantize is not None:
        checkpoint = QuantizedAtLoad(checkpoint, quantize)
    architecture = find(checkpoint.path, checkpoint.config.architecture)
    return CheckpointModel(Path(path).stem, checkpoint, architecture)


def loader(path: Path | str, quantize: Precision | None = None) -> Callable[[], CheckpointModel]:
    """`load` with these arguments, as something that can be sent to another process."""
    return partial(load, path, quantize)
