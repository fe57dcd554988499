"""Llama and the models that share its layer (Llama 2/3, SmolLM2): Touvron et al. 2023."""

import numpy as np

from engine.compiler import nn
from engine.compiler.dtype import DType
from engine.compiler.graph import Graph
from engine.compiler.tensor import Tensor
from engine.model import StepGraph, StepInputs
from models.rope import inverse_frequencies
from models.weights import WeightLoader


def build(graph: Graph, inputs: StepInputs, weights: WeightLoader) -> StepGraph:
    """The forward pass of one step."""
    c = weights.config
    cache: list[Tensor] = []
    frequencies = graph.named_tensor("rope.inverse_frequencies", (c.head_dim // 2,)).persist()
    weights.give(frequencies, lambda: np.asarray(inverse_frequencies(c), np.float32))
    cos, sin = nn.rotary_tables(inputs.positions, frequencies)

    embedding = weights.matrix(graph, "model.embed_tokens", c.vocab_size, c.hidden_size)
    x = nn.gather_rows(embedding, inputs.token_ids)
    for layer in range(c.num_layers):
        prefix = f"model.layers.{layer}"

        def norm(name: str, x: Tensor, prefix: str = prefix) -> Tensor:
            weight = weights.vector(graph, f"{prefix}.{name}", c.hidden_size)
            return nn.rms_norm(x, weight, c.rms_norm_eps)

        def project(name: str, x: Tensor, size: int, prefix: str = prefix) -> Tensor:
            return nn.linear(x, weights.matrix(graph, f"{prefix}.{name}", size, nn.width(x)))

        def stored(kind: str, rows: Tensor, layer: int = layer) -> Tensor:
            pool = graph.named_tensor(f"cache.{layer}.{kind}", ("slots", rows.shape[1]), DType.F16)
            cache.append(pool.persist())
            filled = nn.scatter_rows(pool, inputs.slots, rows.cast(DType.F16))
            pool.assign(filled)
            return filled.split(1, c.head_dim)

        h = norm("input_layernorm", x)
        q = project("self_attn.q_proj", h, c.num_heads * c.head_dim).split(1, c.head_dim)
        k = project("self_attn.k_proj", h, c.num_kv_heads * c.head_dim).split(1, c.head_dim)
        v = project("self_attn.v_proj", h, c.num_kv_heads * c.head_dim)
        attention = nn.paged_attention(
            nn.rotary(q, cos, sin),
            stored("k", nn.rotary(k, cos, sin).merge(1)),
            stored("v", v),
            inputs.page_table,
            inputs.query_start,
            inputs.positions,
            page_size=inputs.page_size,
            scale=c.head_dim**-0.5,
        )
        x = x + project("self_attn.o_proj", attention.merge(1), c.hidden_size)
        h = norm("post_attention_layernorm", x)
        gate = project("mlp.gate_proj", h, c.intermediate_size)
        up = project("mlp.up_proj", h, c.intermediate_size)
        x = x + project("mlp.down_proj", nn.swiglu(gate, up), c.hidden_size)

    last = nn.gather_rows(x, inputs.out_rows)
    last = nn.rms_norm(last, weights.vector(graph, "model.norm", c.hidden_size), c.rms_norm_eps)
    head = "model.embed_tokens" if c.tie_word_embeddings else "lm_head"
    logits = nn.linear(last, weights.matrix(graph, head, c.vocab_size, c.hidden_size)).output()
    return StepGraph(logits, tuple(cache), weights.loaders)
