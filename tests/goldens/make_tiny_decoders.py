"""Makes the folders tiny-qwen2, tiny-qwen3, tiny-mistral and tiny-gemma3: random checkpoints with what transformers
computes from them, as `make_tiny_llama.py` does for Llama.

Run with a Python that has torch 2.13.0 and transformers 5.24.0:

    python tests/goldens/make_tiny_decoders.py [NAME ...]

Windows are of 20 tokens, which the 96 tokens go past; Gemma has seven layers, so that the sixth sees all.
"""

import sys
from pathlib import Path

import torch
from make_tiny_llama import SIZES, make
from transformers import Gemma3TextConfig, MistralConfig, Qwen2Config, Qwen3Config

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
}


def main() -> None:
    torch.set_num_threads(1)
    for name in sys.argv[1:] or CONFIGS:
        make(name, CONFIGS[name], torch.bfloat16, "1GB")


if __name__ == "__main__":
    Path(__file__).parent.mkdir(exist_ok=True)
    main()
