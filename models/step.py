"""What the forward passes of models have in common: weights by name, norms, and attention over the layers' caches."""

import numpy as np

from engine.compiler import nn
from engine.compiler.dtype import DType
from engine.compiler.graph import Graph
from engine.compiler.tensor import Tensor
from engine.model import StepGraph, StepInputs
from models.config import ModelConfig
from models.rope import Rope
from models.weights import WeightLoader

Tables = tuple[Tensor, Tensor]


class Step:
    """The graph of one step as it is built. `prefix` names the layer at hand; each layer has one cache."""

    def __init__(self, graph: Graph, inputs: StepInputs, weights: WeightLoader) -> None:
        self.graph, self.inputs, self.weights = graph, inputs, weights
        self.prefix = "model"
        self._cache: list[Tensor] = []

    @property
    def config(self) -> ModelConfig:
        return self.weights.config

    def rotary_tables(self, rope: Rope, name: str = "rope") -> Tables:
        """cos and sin of every token's position, as large as its rope wants them."""
        length = self.inputs.max_model_len
        frequencies = self.graph.named_tensor(
            f"{name}.inverse_frequencies", (rope.dim // 2,)
        ).persist()
        self.weights.give(frequencies, lambda: np.asarray(rope.frequencies(length), np.float32))
        cos, sin = nn.rotary_tables(self.inputs.positions, frequencies)
        return (cos, sin) if rope.amplitude == 1 else (cos * rope.amplitude, sin * rope.amplitude)

    def embed(self) -> Tensor:
        """The tokens' rows of the embedding, f32 [t, hidden]."""
        return nn.gather_rows(self._embedding(), self.inputs.token_ids)

    def _embedding(self) -> Tensor:
        c = self.config
        return self.weights.matrix(self.graph, "model.embed_tokens", c.vocab_size, c.hidden_size)

    def norm(self, name: str, x: Tensor) -> Tensor:
        """RMSNorm over the last axis."""
        weight = self.weights.vector(self.graph, f"{self.prefix}.{name}", nn.width(x))
        offset = self.config.norm_offset
        return nn.rms_norm(x, weight + offset if offset else weight, self.config.rms_norm_eps)

    def layer_norm(self, name: str, x: Tensor) -> Tensor:
        """LayerNorm over the last axis, with a bias."""
        weight, bias = (
            self.weights.vector(self.graph, f"{self.prefix}.{name}", nn.width(x), kind)
            for kind in ("weight", "bias")
        )
        return nn.layer_norm(x, weight, bias, self.config.rms_norm_eps)

    def project(self, name: str, x: Tensor, size: int, bias: bool = False) -> Tensor:
        """x [t, k] -> [t, size]."""
        key = f"{self.prefix}.{name}"
        weight = self.weights.matrix(self.graph, key, size, nn.width(x))
        added = self.weights.vector(self.graph, key, size, "bias") if bias else None
        return nn.linear(x, weight, added)

    def heads(self, name: str, x: Tensor, count: int, bias: bool = False) -> Tensor:
        """x [t, k] -> [t, count, head_dim]."""
        d = self.config.head_dim
        return self.project(name, x, count * d, bias).split(1, d)

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        scale: float,
        window: int | None = None,
        causal: bool = True,
    ) -> Tensor:
        """Attention of q [t, heads, d] to the layer's cache, after k and v [t, kv_heads, d] are added to it.

        The result is [t, heads * d].
        """
        layer = len(self._cache) // 2
        attention = nn.paged_attention(
            q,
            self._stored(f"cache.{layer}.k", k),
            self._stored(f"cache.{layer}.v", v),
            self.inputs.page_table,
            self.inputs.query_start,
            self.inputs.positions,
            page_size=self.inputs.page_size,
            scale=scale,
            window=window,
            cap=self.config.attention_cap,
            causal=causal,
        )
        return attention.merge(1)

    def _stored(self, name: str, heads: Tensor) -> Tensor:
        rows = heads.merge(1)
        pool = self.graph.named_tensor(name, ("slots", rows.shape[1]), DType.F16).persist()
        self._cache.append(pool)
        filled = nn.scatter_rows(pool, self.inputs.slots, rows.cast(DType.F16))
        pool.assign(filled)
        return filled.split(1, nn.width(heads))

    def states(self, x: Tensor) -> StepGraph:
        """Hidden states of the rows that the step asks for, for embeddings."""
        rows = nn.gather_rows(x, self.inputs.out_rows)
        return StepGraph(rows.output(), tuple(self._cache), self.weights.loaders)

    def finish(self, x: Tensor) -> StepGraph:
        """Logits of the rows that the step asks for."""
        c, self.prefix = self.config, "model"
        last = self.norm("norm", nn.gather_rows(x, self.inputs.out_rows))
        head = (
            self._embedding()
            if c.tie_word_embeddings
            else self.weights.matrix(self.graph, "lm_head", c.vocab_size, c.hidden_size)
        )
        logits = nn.linear(last, head)
        if c.logit_cap is not None:
            logits = (logits * (1.0 / c.logit_cap)).tanh() * c.logit_cap
        return StepGraph(logits.output(), tuple(self._cache), self.weights.loaders)
