"""From the hidden states of a prompt's tokens to its embedding."""

from dataclasses import replace
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.config import EngineConfig

Kind = Literal["cls", "last", "max", "mean"]


class Pooling(msgspec.Struct, frozen=True):
    """What of a prompt's rows is its embedding: the first, the last, or their maximum or mean by column."""

    kind: Kind
    normalise: bool
    """Whether an embedding is divided by its length."""

    def embedding(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """f32 [size] of the hidden states [tokens, size] of one prompt."""
        match self.kind:
            case "cls":
                pooled = rows[0]
            case "last":
                pooled = rows[-1]
            case "max":
                pooled = np.max(rows, 0)
            case "mean":
                pooled = np.mean(rows, 0, dtype=np.float32)
        return unit(pooled) if self.normalise else pooled


def unit(vector: NDArray[np.float32]) -> NDArray[np.float32]:
    """Of length 1 in the same direction; zeros stay zeros."""
    length = float(np.sqrt(np.sum(vector * vector, dtype=np.float64)))
    return vector / np.float32(max(length, 1e-12))


def for_embeddings(config: EngineConfig, max_model_len: int) -> EngineConfig:
    """The same for an engine that makes embeddings of prompts of up to so many tokens."""
    return replace(
        config,
        max_batch_tokens=max(config.max_batch_tokens, max_model_len),
        prefix_cache=False,
        whole_prompts=True,
    )
