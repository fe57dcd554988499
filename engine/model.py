"""What the engine asks of a model. Model packages implement this; the engine imports none of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from engine.compiler.graph import Graph
from engine.compiler.tensor import Tensor
from engine.ops.base import Array
from engine.pooling import Pooling


@dataclass(frozen=True)
class ModelLimits:
    """What sizes the engine. `kv_bytes_per_token` counts keys and values of all layers; `pooling` is of a model that
    makes embeddings."""

    name: str
    vocab_size: int
    context_length: int
    kv_bytes_per_token: int
    weight_bytes: int
    pooling: Pooling | None = None


@dataclass(frozen=True)
class StepInputs:
    """Inputs of one step's graph, all i32: a flat batch of t tokens of r requests, of which o rows get logits.

    token_ids, positions, slots [t]; query_start [r+1]; page_table [r, p]; out_rows [o].
    """

    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    query_start: Tensor
    page_table: Tensor
    out_rows: Tensor
    page_size: int
    max_model_len: int
    """Tokens of the longest text that will be served."""


@dataclass(frozen=True)
class StepGraph:
    """A model's graph: `logits` [o, vocab] f32 (of a model that makes embeddings, the hidden states [o, hidden]), the
    `cache` states [slots, ...] of all layers, and for each weight the function that loads it."""

    logits: Tensor
    cache: tuple[Tensor, ...]
    weights: Mapping[Tensor, Callable[[], Array]]


class Model(Protocol):
    """A model that is ready to be compiled."""

    @property
    def limits(self) -> ModelLimits: ...

    def build(self, graph: Graph, inputs: StepInputs) -> StepGraph:
        """Add the model's forward pass to a graph."""
        ...

    def close(self) -> None:
        """Let go of the files that weights are loaded from."""
        ...
