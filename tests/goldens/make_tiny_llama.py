"""Makes the folders tiny-llama and tiny-llama3: random Llama checkpoints with what transformers computes from them.

Run with a Python that has torch 2.13.0 and transformers 5.24.0:

    python tests/goldens/make_tiny_llama.py

The sizes are awkward on purpose: an odd vocabulary, heads that do not add up to the hidden size, fewer KV heads than
heads. Norm weights are random too, since a parity test on ones hides errors. tiny-llama is float32 with a head of its
own; tiny-llama3 is bfloat16 in shards with tied embeddings and rope scaling as Llama 3, which its 96 tokens reach.

golden.npz holds `ids` [n], `logits` [n, vocab], `greedy` [16], what follows the ids, and rope's `inverse_frequencies`
[head_dim / 2], where the model has one; all is computed in float32 from the weights as saved.
"""

from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedConfig

HERE = Path(__file__).parent
TOKENS, STEPS = 96, 16
SIZES = {
    "vocab_size": 257,
    "hidden_size": 48,
    "intermediate_size": 88,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA_3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def main() -> None:
    plain = {"rope_type": "default", "rope_theta": 500.0}
    untied = LlamaConfig(**SIZES, rope_parameters=plain, tie_word_embeddings=False)
    make("tiny-llama", untied, torch.float32, "1GB")
    tied = LlamaConfig(**SIZES, rope_parameters=LLAMA_3_ROPE, tie_word_embeddings=True)
    make("tiny-llama3", tied, torch.bfloat16, "60KB")


def make(
    name: str, config: PreTrainedConfig, dtype: torch.dtype, shard_size: str, seed: int = 0
) -> None:
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config).eval()
    # Gemma's norms multiply with 1 + weight.
    centre = 0.0 if config.model_type.startswith("gemma") else 1.0
    with torch.no_grad():
        for key, weight in model.named_parameters():
            if "norm" in key:
                weight.uniform_(centre - 0.5, centre + 0.5)
            else:
                weight.normal_(0, 2 * weight.shape[-1] ** -0.5)
    model.generation_config.eos_token_id = [2, 3]
    model.to(dtype).save_pretrained(HERE / name, max_shard_size=shard_size)
    saved = AutoModelForCausalLM.from_pretrained(HERE / name, dtype=torch.float32).eval()
    ids = torch.randint(4, SIZES["vocab_size"], (1, TOKENS))
    with torch.no_grad():
        logits = saved(ids).logits[0]
        greedy, gaps = [], []
        text = ids
        for _ in range(STEPS):
            two = torch.topk(saved(text).logits[0, -1], 2)
            greedy.append(int(two.indices[0]))
            gaps.append(float(two.values[0] - two.values[1]))
            text = torch.cat([text, two.indices[:1][None]], dim=1)
    held = getattr(saved.model.rotary_emb, "inv_freq", None)
    frequencies = {} if held is None else {"inverse_frequencies": held.numpy()}
    np.savez_compressed(
        HERE / name / "golden.npz",
        ids=ids[0].numpy().astype(np.int32),
        logits=logits.numpy(),
        greedy=np.array(greedy, np.int32),
        **frequencies,
    )
    print(name, "logits up to", float(logits.abs().max()), "smallest gap", min(gaps))


if __name__ == "__main__":
    main()
