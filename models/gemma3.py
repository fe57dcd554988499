"""Gemma 3, text (Gemma Team 2025).

Most layers see a window and rotate by a base frequency of their own; every sixth sees all. Both halves of a layer are
normalised before and after, q and k are normalised head by head, the unit is GELU's, and embeddings are scaled.
"""

from dataclasses import replace

from engine.compiler import nn
from engine.compiler.graph import Graph
from engine.model import StepGraph, StepInputs
from models.architecture import Architecture
from models.config import ModelConfig
from models.fields import Fields
from models.rope import read_local_rope, read_rope
from models.step import Step
from models.weights import WeightLoader
from models.windows import but_each

_27B_LAYERS = 62


def build(graph: Graph, inputs: StepInputs, weights: WeightLoader) -> StepGraph:
    """The forward pass of one step."""
    step = Step(graph, inputs, weights)
    c = step.config
    everywhere = step.rotary_tables(c.rope)
    nearby = step.rotary_tables(c.local_rope or c.rope, "local_rope")
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


def _read(fields: Fields, common: ModelConfig) -> ModelConfig:
    if not fields.is_gguf:
        query_scale = fields.constant("query_pre_attn_scalar", 256) ** -0.5
    else:  # it does not say how scores are scaled; only one size scales them by another number than its heads'
        width = common.hidden_size // common.num_heads
        query_scale = (width if common.num_layers == _27B_LAYERS else common.head_dim) ** -0.5
    return replace(
        common,
        rope=read_rope(fields, common.head_dim, theta=1e6),
        local_rope=read_local_rope(fields, common.head_dim),
        norm_offset=0.0 if fields.is_gguf else 1.0,  # GGUF's weights of norms have it in them
        query_scale=query_scale,
    )


ARCHITECTURE = Architecture(
    build,
    windows=but_each(6, default=4096),
    tied=True,
    activations=("gelu_pytorch_tanh",),
    read=_read,
    gguf_names={
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    },
)
