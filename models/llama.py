"""Llama and the models that share its layer (Llama 2 and 3, SmolLM2): Touvron et al. 2023."""

from collections.abc import Callable

from engine.compiler import nn
from engine.compiler.graph import Graph
from engine.compiler.tensor import Tensor
from engine.model import StepGraph, StepInputs
from models.architecture import Architecture
from models.step import Step
from models.weights import WeightLoader

FeedForward = Callable[[Step, Tensor, int], Tensor]


def build(
    graph: Graph,
    inputs: StepInputs,
    weights: WeightLoader,
    *,
    head_norms: bool = False,
    feed_forward: FeedForward | None = None,
) -> StepGraph:
    """The forward pass of one step, on request with norms of each head of q and k, or another second half of layers.

    `feed_forward` makes that half of the step, the normalised [t, hidden] and the layer's number.
    """
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
        if c.rotates(layer):
            q, k = nn.rotary(q, cos, sin), nn.rotary(k, cos, sin)
        attended = step.attend(q, k, v, c.head_dim**-0.5, c.window(layer))
        x = x + step.project("self_attn.o_proj", attended, c.hidden_size, c.output_bias)
        h = step.norm("post_attention_layernorm", x)
        x = x + (feed_forward or gated_unit)(step, h, layer)
    return step.finish(x)


def gated_unit(step: Step, x: Tensor, layer: int) -> Tensor:
    """SwiGLU, down to [t, hidden] again."""
    c = step.config
    gate = step.project("mlp.gate_proj", x, c.intermediate_size, c.mlp_bias)
    up = step.project("mlp.up_proj", x, c.intermediate_size, c.mlp_bias)
    return step.project("mlp.down_proj", nn.swiglu(gate, up), c.hidden_size, c.mlp_bias)


ARCHITECTURE = Architecture(build)
