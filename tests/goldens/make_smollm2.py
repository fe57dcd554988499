"""Makes smollm2-positions.npz and smollm2-greedy.json: logits of SmolLM2-135M-Instruct by an independent engine.

Run with a Python that has torch 2.13.0 and transformers 5.24.0 (and accelerate and gguf, which its GGUF loader needs):

    python tests/goldens/make_smollm2.py SmolLM2-135M-Instruct.Q4_1.gguf

transformers dequantises the file's weights to float32 and computes in float32. The npz holds, for each prompt, `ids`
[n], and for each position the 8 best ids and logits [n, 8] and the log-sum-exp of all logits [n]. The JSON holds 64
greedy tokens of each prompt with the gap between the two best logits at each step.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
import transformers

HERE = Path(__file__).parent
TOP, STEPS = 8, 64
CODE = '''class Stack:
    """Last in, first out."""

    def __init__(self) -> None:
        self.items: list[int] = []

    def push(self, item: int) -> None:
        self.items.append(item)
'''
PROMPTS = {
    "short": "The capital of France is",
    "long": " ".join(
        f"On day {n} the keeper of the lighthouse counted {3 * n % 17} ships and {n * n % 23} gulls."
        for n in range(1, 61)
    ),
    "code": CODE,
    "unicode": "你好，世界！今天天气很好。😀🫠 Ça va? Привет — naïve café\t\n  αβγ 12345",
    "chat": "<|im_start|>user\nWhy is the sky blue?<|im_end|>\n<|im_start|>assistant\n",
}


def main(gguf: Path) -> None:
    torch.set_num_threads(2)
    options = {"gguf_file": gguf.name}
    tokenizer = transformers.AutoTokenizer.from_pretrained(gguf.parent, **options)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        gguf.parent, dtype=torch.float32, **options
    ).eval()
    arrays: dict[str, np.ndarray] = {}
    greedy = {}
    for name, prompt in PROMPTS.items():
        ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0].float()
        best = torch.topk(logits, TOP, dim=-1)
        arrays[f"{name}.ids"] = np.array(ids, np.int32)
        arrays[f"{name}.top_ids"] = best.indices.numpy().astype(np.int32)
        arrays[f"{name}.top_logits"] = best.values.numpy()
        arrays[f"{name}.logsumexp"] = torch.logsumexp(logits, -1).numpy()
        greedy[name] = continue_greedily(model, ids)
        print(name, len(ids), "tokens", flush=True)
    np.savez_compressed(HERE / "smollm2-positions.npz", **arrays)
    engine = f"transformers {transformers.__version__}, torch {torch.__version__}, float32"
    document = {"engine": engine, "file": gguf.name, "prompts": PROMPTS, "greedy": greedy}
    (HERE / "smollm2-greedy.json").write_text(json.dumps(document, ensure_ascii=False, indent=1))


def continue_greedily(model: torch.nn.Module, ids: list[int]) -> dict[str, list[float]]:
    tokens, gaps, cache = [], [], None
    new = torch.tensor([ids])
    with torch.no_grad():
        for _ in range(STEPS):
            out = model(new, past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            two = torch.topk(out.logits[0, -1].float(), 2)
            tokens.append(int(two.indices[0]))
            gaps.append(round(float(two.values[0] - two.values[1]), 4))
            new = two.indices[:1][None]
    return {"ids": tokens, "gaps": gaps}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
