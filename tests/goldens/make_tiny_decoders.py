"""Makes the folders of `CONFIGS`: random checkpoints with what transformers computes from them, as `make_tiny_llama.py`
does for Llama.

Run with a Python that has torch 2.13.0 and transformers 5.24.0:

    python tests/goldens/make_tiny_decoders.py [NAME ...]

Windows are of 20 tokens, which the 96 tokens go past; Gemma 3 has seven layers, so that the sixth sees all. SmolLM3 has
biases everywhere, and one of its layers no rotary embedding. LongRoPE, on three quarters of each head, has passed its
original context. Caps are low enough to bend most scores and logits.
"""

import sys
from pathlib import Path

import torch
from make_tiny_llama import SIZES, make
from transformers import (
    Gemma2Config,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    Phi3Config,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
    SmolLM3Config,
)

WINDOW = 20
ROPE = {"rope_type": "default", "rope_theta": 500.0}
CONFIGS = {
    "tiny-qwen2": Qwen2Config(
        **{**SIZES, "hidden_size": 96}, rope_parameters=ROPE, tie_word_embeddings=True
    ),
    "tiny-qwen3": Qwen3Config(**SIZES, rope_parameters=ROPE, tie_word_embeddings=False),
    "tiny-mistral": MistralConfig(**SIZES, rope_parameters=ROPE, sliding_window=WINDOW),
    "tiny-gemma3": Gemma3TextConfig(
        **{**SIZES, "num_hidden_layers": 7},
        sliding_window=WINDOW,
        query_pre_attn_scalar=24,
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 900.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
        },
    ),
    "tiny-smollm3": SmolLM3Config(
        **{**SIZES, "num_hidden_layers": 3},
        rope_parameters=ROPE,
        no_rope_layer_interval=2,
        attention_bias=True,
        mlp_bias=True,
        pad_token_id=0,
    ),
    "tiny-qwen3-moe": Qwen3MoeConfig(
        **{**SIZES, "num_hidden_layers": 3},
        rope_parameters=ROPE,
        num_experts=6,
        num_experts_per_tok=2,
        moe_intermediate_size=24,
        norm_topk_prob=True,
        mlp_only_layers=[1],
    ),
    "tiny-gemma2": Gemma2Config(
        **{**SIZES, "num_hidden_layers": 3},
        rope_parameters=ROPE,
        sliding_window=WINDOW,
        query_pre_attn_scalar=24,
        attn_logit_softcapping=2.0,
        final_logit_softcapping=6.0,
    ),
    "tiny-phi3": Phi3Config(
        **{**SIZES, "hidden_size": 96},
        rope_parameters=ROPE,
        sliding_window=WINDOW,
        pad_token_id=0,
    ),
    "tiny-yarn": LlamaConfig(
        **SIZES,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 500.0,
            "factor": 8.0,
            "original_max_position_embeddings": 32,
        },
    ),
    "tiny-longrope": Phi3Config(
        **{**SIZES, "hidden_size": 96},
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 500.0,
            "partial_rotary_factor": 0.75,
            "short_factor": [1.0] * 6,
            "long_factor": [1.0, 1.5, 2.0, 2.5, 3.0, 3.5],
        },
        original_max_position_embeddings=64,
        pad_token_id=0,
    ),
}

SEEDS = {"tiny-qwen3-moe": 4, "tiny-phi3": 1}
"""Where seed 0 leaves less than the tolerance of the tests between the two best tokens."""


def main() -> None:
    torch.set_num_threads(1)
    for name in sys.argv[1:] or CONFIGS:
        make(name, CONFIGS[name], torch.bfloat16, "1GB", SEEDS.get(name, 0))


if __name__ == "__main__":
    Path(__file__).parent.mkdir(exist_ok=True)
    main()
