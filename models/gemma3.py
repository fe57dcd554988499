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
from models.rope_config import read_local_rope
from models.step import Step
from models.weights import WeightLoader
from models.windows import but_each

GGUF_NAMES = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


def build(
    graph: Graph, inputs: StepInputs, weights: WeightLoader, *, head_norms: bool = True
) -> StepGraph:
    """The forward pass of one step; Gemma 2 has no norms of each head of q and k."""
    step = Step(graph, inputs, weights)
    c = step.config
    everywhere = step.rotary_tables(c.rope)
    nearby = step.rotary_tables(c.local_rope, "local_rope") if c.local_rope else everywhere
    x = step.embed() * c.hidden_size**0.5
    for layer in range(c.num_layers):
        step.prefix = f"model.layers.{layer}"
        window = c.window(layer)
        cos, sin = everywhere if window is None else nearby
        h = step.norm("input_layernorm", x)
        q = step.heads("self_attn.q_proj", h, c.num_heads, c.qkv_bias)
        k = step.heads("self_attn.k_proj", h, c.num_kv_heads, c.qkv_bias)
        v = step.heads("self_attn.v_proj", h, c.num_kv_heads, c.qkv_bias)
        if head_norms:
            q, k = step.norm("self_attn.q_norm", q), step.norm("self_attn.k_norm", k)
        q, k = nn.rotary(q, cos, sin), nn.rotary(k, cos, sin)
        attended = step.attend(q, k, v, c.query_scale or c.head_dim**-0.5, window)
        h = step.project("self_attn.o_proj", attended, c.hidden_size, c.output_bias)
        x = x + step.norm("post_attention_layernorm", h)
        h = step.norm("pre_feedforward_layernorm", x)
        gate = step.project("mlp.gate_proj", h, c.intermediate_size)
        up = step.project("mlp.up_proj", h, c.intermediate_size)
        h = step.project("mlp.down_proj", nn.geglu(gate, up), c.hidden_size)
        x = x + step.norm("post_feedforward_layernorm", h)
    return step.finish(x)


def query_scale(fields: Fields, common: ModelConfig, size_27b: int) -> float:
    """What scores are multiplied with. GGUF does not say it; only the 27B models, which have `size_27b` layers, do not
    scale by the size of their heads.
    """
    if not fields.is_gguf:
        return float(fields.constant("query_pre_attn_scalar", 256) ** -0.5)
    width = common.hidden_size // common.num_heads
    return float((width if common.num_layers == size_27b else common.head_dim) ** -0.5)


def _read(fields: Fields, common: ModelConfig) -> ModelConfig:
    return replace(
        common,
        local_rope=read_local_rope(fields, common.head_dim),
        norm_offset=0.0 if fields.is_gguf else 1.0,  # GGUF's weights of norms have it in them
        query_scale=query_scale(fields, common, size_27b=62),
    )


ARCHITECTURE = Architecture(
    build,
    windows=but_each(6, default=4096),
    tied=True,
    rope_theta=1e6,
    activations=("gelu_pytorch_tanh",),
    read=_read,
    gguf_names=GGUF_NAMES,
)
