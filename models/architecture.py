"""What the module of an architecture tells of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from engine.compiler.graph import Graph
from engine.model import StepGraph, StepInputs
from models.config import ModelConfig
from models.fields import Fields
from models.windows import Windows, after_max_window_layers

if TYPE_CHECKING:
    from models.weights import WeightLoader

Builder = Callable[[Graph, StepInputs, "WeightLoader"], StepGraph]
"""Adds the forward pass of one step to a graph."""


def _as_it_is(fields: Fields, common: ModelConfig) -> ModelConfig:
    return common


@dataclass(frozen=True)
class Architecture:
    """How a model is built, and what is peculiar to its checkpoints.

    `windows` reads what each layer sees, where the config does not say it by `layer_types`; `tied` (whether the
    embedding is the head too) and `rope_theta` are for a config that does not say; `activations` are names of the one
    that the graph has. `read` may change what was read in common, or add to it. `gguf_names` are the names of layers'
    tensors that GGUF has besides the usual ones, or for something else. `ignored` matches names of tensors that
    checkpoints hold for another use.
    """

    build: Builder
    windows: Callable[[Fields], Windows] = after_max_window_layers
    tied: bool = False
    rope_theta: float = 10000.0
    has_experts: bool = False
    activations: tuple[str, ...] = ("silu", "swish")
    read: Callable[[Fields, ModelConfig], ModelConfig] = _as_it_is
    gguf_names: Mapping[str, str] = field(default_factory=dict)
    ignored: str = ""
