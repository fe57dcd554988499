"""Makes `rope_scalings.json`: frequencies and amplitudes that transformers computes of configs, for texts of a length.

Run with a Python that has torch 2.13.0 and transformers 5.24.0:

    python tests/goldens/make_rope_scalings.py
"""

import json
from pathlib import Path
from typing import Any

from transformers import LlamaConfig, Phi3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

SIZES: dict[str, Any] = {
    "vocab_size": 257,
    "hidden_size": 192,
    "intermediate_size": 88,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "max_position_embeddings": 256,
}
YARN = {"rope_type": "yarn", "rope_theta": 5000.0, "factor": 4.0}
LONG = {
    "rope_type": "longrope",
    "rope_theta": 700.0,
    "short_factor": [1 + i / 16 for i in range(16)],
    "long_factor": [1.5 + i for i in range(16)],
}
HALF = {"short_factor": LONG["short_factor"][:8], "long_factor": LONG["long_factor"][:8]}
CASES: list[tuple[type, dict[str, Any], dict[str, Any], int]] = [
    (LlamaConfig, {"rope_type": "linear", "rope_theta": 100.0, "factor": 2.5}, {}, 256),
    (LlamaConfig, {"rope_type": "dynamic", "rope_theta": 100.0, "factor": 3.0}, {}, 256),
    (LlamaConfig, YARN, {}, 256),
    (LlamaConfig, YARN | {"original_max_position_embeddings": 64}, {}, 256),
    (LlamaConfig, YARN | {"original_max_position_embeddings": 64, "truncate": False}, {}, 256),
    (LlamaConfig, YARN | {"attention_factor": 0.7, "beta_fast": 8.0, "beta_slow": 2.0}, {}, 256),
    (LlamaConfig, YARN | {"mscale": 0.707, "mscale_all_dim": 1.2}, {}, 256),
    (LlamaConfig, YARN | {"mscale": 0.707}, {}, 256),
    (LlamaConfig, YARN | {"partial_rotary_factor": 0.5}, {}, 256),
    (LlamaConfig, YARN | {"factor": 1.0}, {}, 256),
    (LlamaConfig, LONG | {"original_max_position_embeddings": 64}, {}, 256),
    (LlamaConfig, LONG | {"original_max_position_embeddings": 64}, {}, 64),
    (LlamaConfig, LONG | {"original_max_position_embeddings": 64, "factor": 9.0}, {}, 65),
    (LlamaConfig, LONG | {"attention_factor": 1.3}, {}, 256),
    (Phi3Config, LONG, {"original_max_position_embeddings": 128, "pad_token_id": 0}, 256),
    (LlamaConfig, LONG | HALF | {"partial_rotary_factor": 0.5}, {}, 256),
    (
        LlamaConfig,
        {"rope_type": "proportional", "rope_theta": 900.0, "partial_rotary_factor": 0.25},
        {},
        256,
    ),
    (
        LlamaConfig,
        {"rope_type": "proportional", "rope_theta": 900.0, "factor": 8.0},
        {},
        256,
    ),
]


def main() -> None:
    made = []
    for kind, rope, more, length in CASES:
        config = kind(**SIZES, **more, rope_parameters=dict(rope))
        frequencies, amplitude = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, "cpu", length)
        given = {"model_type": config.model_type, **SIZES, **more, "rope_parameters": rope}
        made.append(
            {
                "config": given,
                "length": length,
                "frequencies": frequencies.tolist(),
                "amplitude": amplitude,
            }
        )
    Path(__file__).with_name("rope_scalings.json").write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main()
