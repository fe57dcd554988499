"""Phi-3 and Phi-4: Llama's layer, whose matrices lie in fewer tensors (Abdin et al. 2024)."""

from engine.compiler.graph import Graph
from engine.model import StepGraph, StepInputs
from models import llama
from models.architecture import Architecture
from models.weights import WeightLoader
from models.windows import on_every_layer


def build(graph: Graph, inputs: StepInputs, weights: WeightLoader) -> StepGraph:
    """The forward pass of one step."""
    c = weights.config
    q, kv, f = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim, c.intermediate_size
    parts = {"self_attn.q_proj": q, "self_attn.k_proj": kv, "self_attn.v_proj": kv}
    weights.split("self_attn.qkv_proj", parts)
    weights.split("mlp.gate_up_proj", {"mlp.gate_proj": f, "mlp.up_proj": f})
    return llama.build(graph, inputs, weights)


ARCHITECTURE = Architecture(
    build,
    windows=on_every_layer,
    gguf_names={"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
)
