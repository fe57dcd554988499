"""Gemma 3, text (Gemma Team 2025).

Most layers see a window and rotate by a base frequency of their own; every sixth sees all. Both halves of a layer are
normalised before and after, q and k are normalised head by head, the unit is GELU's, and embeddings are scaled.
"""

from engine.compiler import nn
from engine.compiler.graph import Graph
from engine.model import StepGraph, StepInputs
from models.step import Step
from models.weights import WeightLoader


def build(graph: Graph, inputs: StepInputs, weights: WeightLoader) -> StepGraph:
    """The forward pass of one step."""
    step = Step(graph, inputs, weights)
    c = step.config
    everywhere = step.rotary_tables(c.rope_theta)
    nearby = step.rotary_tables(c.local_rope_theta or c.rope_theta, "local_rope", scaled=False)
    x = step.embed() * c.hidden_size**0.5
    for layer in range(c.num_layers):
        step.prefix = f"model.layers.{layer}"
        window = c.window(layer)
        cos, sin = everywhere if window is None else nearby
        h = step.norm("input_layernorm", x)
        q = step.norm("self_attn.q_norm", step.heads("self_attn.q_proj", h, c.num_heads))
        k = step.norm("self_attn.k_norm", step.heads("self_attn.k_proj", h, c.num_kv_heads))
        v = step.heads("self_attn.v_proj", h, c.num_kv_heads)
        q, k = nn.rotary(q, cos, sin), nn.rotary(k, cos, sin)
        attended = step.attend(q, k, v, c.query_scale or c.head_dim**-0.5, window)
        h = step.project("self_attn.o_proj", attended, c.hidden_size)
        x = x + step.norm("post_attention_layernorm", h)
        h = step.norm("pre_feedforward_layernorm", x)
        gate = step.project("mlp.gate_proj", h, c.intermediate_size)
        up = step.project("mlp.up_proj", h, c.intermediate_size)
        h = step.project("mlp.down_proj", nn.geglu(gate, up), c.hidden_size)
        x = x + step.norm("post_feedforward_layernorm", h)
    return step.finish(x)
