"""Llama and the models that share its layer (Llama 2 and 3, SmolLM2): Touvron et al. 2023."""

from engine.compiler import nn
from engine.compiler.graph import Graph
from engine.model import StepGraph, StepInputs
from models.architecture import Architecture
from models.step import Step
from models.weights import WeightLoader


def build(
    graph: Graph, inputs: StepInputs, weights: WeightLoader, *, head_norms: bool = False
) -> StepGraph:
    """The forward pass of one step, on request with norms of each head of q and k."""
    step = Step(graph, inputs, weights)
    c = step.config
    cos, sin = step.rotary_tables(c.rope)
    x = step.embed()
    for layer in range(c.num_layers):
        step.prefix = f"model.layers.{layer}"
        h = step.norm("input_layernorm", x)
        q = step.heads("self_attn.q_proj", h, c.num_heads, c.qkv_bias)
        k = step.heads("self_attn.k_proj", h, c.num_kv_heads, c.qkv_bias)
        v = step.heads("self_attn.v_proj", h, c.num_kv_heads, c.qkv_bias)
        if head_norms:
            q, k = step.norm("self_attn.q_norm", q), step.norm("self_attn.k_norm", k)
        q, k = nn.rotary(q, cos, sin), nn.rotary(k, cos, sin)
        attended = step.attend(q, k, v, c.head_dim**-0.5, c.window(layer))
        x = x + step.project("self_attn.o_proj", attended, c.hidden_size)
        h = step.norm("post_attention_layernorm", x)
        gate = step.project("mlp.gate_proj", h, c.intermediate_size)
        up = step.project("mlp.up_proj", h, c.intermediate_size)
        x = x + step.project("mlp.down_proj", nn.swiglu(gate, up), c.hidden_size)
    return step.finish(x)


ARCHITECTURE = Architecture(build)
