"""Makes `tiny-bert`: a random BERT with the hidden states that transformers computes of a few prompts.

Run with a Python that has torch 2.13.0 and transformers 5.24.0:

    python tests/goldens/make_tiny_bert.py
"""

from pathlib import Path

import numpy as np
import torch
from transformers import BertConfig, BertModel

FOLDER = Path(__file__).parent / "tiny-bert"
LENGTHS = (1, 5, 16, 17, 40)


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = BertConfig(
        vocab_size=256,
        hidden_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=88,
        max_position_embeddings=40,
        initializer_range=0.3,
    )
    model = BertModel(config, add_pooling_layer=False).eval()
    for name, weight in model.named_parameters():
        if "LayerNorm" in name or name.endswith("bias"):  # which begin as ones and zeros
            torch.nn.init.normal_(weight, mean=float("LayerNorm.weight" in name), std=0.2)
    model.save_pretrained(FOLDER)
    rng = np.random.default_rng(0)
    golden = {}
    for length in LENGTHS:
        ids = rng.integers(0, config.vocab_size, length)
        with torch.no_grad():
            states = model(torch.tensor(ids)[None]).last_hidden_state[0]
        golden |= {f"ids.{length}": ids.astype(np.int32), f"states.{length}": states.numpy()}
    np.savez_compressed(FOLDER / "golden.npz", **golden)


if __name__ == "__main__":
    main()
