"""The default model against an independent engine: logits at every position, and greedy text.

The goldens are float32 results of transformers (`tests/goldens/make_smollm2.py`). Ours keeps keys and values in float16
and activations of quantised products in 16 bits, which moves a logit by less than `TOLERANCE`.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from engine.batch import Batch
from engine.config import EngineConfig
from engine.runner import Runner
from models import registry
from models.pull import default_cache_dir, resolve

GOLDENS = Path(__file__).parent.parent / "goldens"
TOLERANCE = 0.05
CHUNK = 64


@pytest.fixture(scope="module", params=["native", "reference"])
def runner(request: pytest.FixtureRequest) -> Runner:
    try:
        path = resolve(None, default_cache_dir())
    except Exception as error:
        pytest.skip(f"the default model cannot be fetched: {error}")
    config = EngineConfig(
        cache_dir=default_cache_dir(),
        device=request.param,
        max_model_len=2048,
        kv_memory_bytes=128 << 20,
    )
    return Runner(registry.load(path), config, lambda _: None)


def logits(runner: Runner, ids: list[int], start: int) -> np.ndarray:
    """Logits [n, vocab] of the tokens from `start` on, computed in one step over one request's pages."""
    places = np.arange(start, len(ids), dtype=np.int32)
    pages = np.arange(7, 7 + -(-len(ids) // 16), dtype=np.int32)[None]
    slots = pages[0][places // 16] * 16 + places % 16
    tokens = np.array(ids[start:], np.int32)
    ends = np.array([0, len(tokens)], np.int32)
    rows = np.arange(len(tokens), dtype=np.int32)
    return runner.step(Batch(tokens, places, slots, ends, pages, rows)).copy()


def last_logits(runner: Runner, ids: list[int]) -> np.ndarray:
    """Logits [vocab] after a whole prompt, prefilled in chunks."""
    for start in range(0, len(ids), CHUNK):
        last = logits(runner, ids[: start + CHUNK], start)[-1]
    return last


def positions() -> dict[str, dict[str, np.ndarray]]:
    found: dict[str, dict[str, np.ndarray]] = {}
    with np.load(GOLDENS / "smollm2-positions.npz") as file:
        for key in file.files:
            prompt, _, part = key.partition(".")
            found.setdefault(prompt, {})[part] = file[key]
    return found


@pytest.mark.parametrize("prompt", ["short", "long", "code", "unicode", "chat"])
def test_logits_at_every_position(runner: Runner, prompt: str) -> None:
    golden = positions()[prompt]
    ids = golden["ids"].tolist()
    if runner.info.device == "reference":
        ids = ids[:200]  # NumPy takes its time
    assert prompt != "long" or len(golden["ids"]) > 1000
    for start in range(0, len(ids), CHUNK):
        got = logits(runner, ids[: start + CHUNK], start)
        stop = start + len(got)
        best = np.take_along_axis(got, golden["top_ids"][start:stop], axis=1)
        assert np.abs(best - golden["top_logits"][start:stop]).max() < TOLERANCE
        total = np.log(np.exp(got.astype(np.float64)).sum(axis=1))
        assert np.abs(total - golden["logsumexp"][start:stop]).max() < TOLERANCE


def greedy_cases() -> list[tuple[str, list[int], list[int], list[float]]]:
    made = json.loads((GOLDENS / "smollm2-greedy.json").read_text())
    prompts = positions()
    cases = [
        (name, prompts[name]["ids"].tolist(), case["ids"], case["gaps"])
        for name, case in made["greedy"].items()
    ]
    older = json.loads((GOLDENS / "hf-smollm2-135m-instruct-q4_1.json").read_text())
    cases += [
        (case["id"], case["prompt_ids"], case["greedy_ids"], case["gaps"])
        for case in older["cases"]
    ]
    return cases


@pytest.mark.parametrize(
    ("name", "prompt", "expected", "gaps"), greedy_cases(), ids=[c[0] for c in greedy_cases()]
)
def test_greedy_text(
    runner: Runner, name: str, prompt: list[int], expected: list[int], gaps: list[float]
) -> None:
    if runner.info.device == "reference" and name != "r_germany":
        pytest.skip("the NumPy runtime is slow: one prompt is enough")
    ids = list(prompt)
    row = last_logits(runner, ids)
    for step, (token, gap) in enumerate(zip(expected, gaps, strict=True)):
        chosen = int(row.argmax())
        if chosen != token:
            # Two logits that are closer than the tolerance may change places; the texts part there.
            assert gap < TOLERANCE, f"token {step} of {name!r}: {chosen}, expected {token}"
            return
        ids.append(token)
        row = logits(runner, ids, len(ids) - 1)[-1]
