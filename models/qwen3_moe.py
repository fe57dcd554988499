"""Qwen3 with experts: in most layers each token goes to a few of many gated units (Yang et al. 2025)."""

from dataclasses import dataclass
from functools import partial

from engine.compiler import nn
from engine.compiler.tensor import Tensor
from models import llama
from models.architecture import Architecture
from models.config import ModelConfig
from models.fields import Fields
from models.step import Step


@dataclass(frozen=True)
class Qwen3MoeConfig(ModelConfig):
    """`expert_size` is the width of an expert's gated unit; `dense_layers` have an ordinary one."""

    num_experts: int = 0
    experts_per_token: int = 0
    expert_size: int = 0
    normalises_weights: bool = False
    dense_layers: frozenset[int] = frozenset()


def _feed_forward(step: Step, x: Tensor, layer: int) -> Tensor:
    c = step.config
    assert isinstance(c, Qwen3MoeConfig)
    if layer in c.dense_layers:
        return llama.gated_unit(step, x, layer)
    logits = step.project("mlp.gate", x, c.num_experts)
    weights, experts = nn.route(logits, c.experts_per_token, normalise=c.normalises_weights)
    wide, narrow = (c.expert_size, c.hidden_size), (c.hidden_size, c.expert_size)
    gate, up, down = (
        step.weights.experts(step.graph, f"{step.prefix}.mlp.experts", part, c.num_experts, *shape)
        for part, shape in (("gate_proj", wide), ("up_proj", wide), ("down_proj", narrow))
    )
    return nn.experts_glu(x, weights, experts, gate, up, down)


def _read(fields: Fields, common: ModelConfig) -> Qwen3MoeConfig:
    count = fields.size("num_local_experts" if fields.value("num_local_experts") else "num_experts")
    per_token = fields.size("num_experts_per_tok")
    if per_token > count:
        raise fields.wrong("num_experts_per_tok", f"one of up to {count} experts")
    every, dense = fields.size("decoder_sparse_step", 1), fields.value("mlp_only_layers", [])
    if not isinstance(dense, list):
        raise fields.wrong("mlp_only_layers", "a list of layers")
    layers = range(common.num_layers)
    return Qwen3MoeConfig(
        **vars(common),
        num_experts=count,
        experts_per_token=per_token,
        expert_size=fields.size("moe_intermediate_size"),
        # GGUF does not say it: all that were published do so, and llama.cpp takes it for granted.
        normalises_weights=fields.is_gguf or bool(fields.value("norm_topk_prob")),
        dense_layers=frozenset(i for i in layers if i in dense or (i + 1) % every),
    )


ARCHITECTURE = Architecture(
    partial(llama.build, head_norms=True, feed_forward=_feed_forward),
    has_experts=True,
    read=_read,
)
