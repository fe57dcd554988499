"""The default model against an independent engine: logits at every position, and greedy text.

The goldens are float32 results of transformers (`tests/goldens/make_smollm2.py`). Ours keeps keys and values in float16
and activations of quantised products in 16 bits, which moves a logit by less than `TOLERANCE`.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from stepping import CHUNK, last_logits, logits

from engine.compiler.memory import lower_bound
from engine.config import EngineConfig
from engine.runner import Runner
from engine.runtimes.native.runtime import NativeRuntime
from models import registry
from models.pull import default_cache_dir, resolve

GOLDENS = Path(__file__).parent.parent / "goldens"
TOLERANCE = 0.05


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


def arrays(name: str) -> dict[str, dict[str, np.ndarray]]:
    """A golden file's arrays by prompt and part."""
    found: dict[str, dict[str, np.ndarray]] = {}
    with np.load(GOLDENS / name) as file:
        for key in file.files:
            prompt, _, part = key.partition(".")
            found.setdefault(prompt, {})[part] = file[key]
    return found


def assert_close(got: np.ndarray, ids: np.ndarray, best: np.ndarray, total: np.ndarray) -> None:
    """Logits [..., vocab] against the `best` ones, of `ids` [..., n], and the log-sum-exp `total` [...]."""
    assert np.abs(np.take_along_axis(got, ids, axis=-1) - best).max() < TOLERANCE
    ours = np.log(np.exp(got.astype(np.float64)).sum(axis=-1))
    assert np.abs(ours - total).max() < TOLERANCE


@pytest.mark.parametrize("prompt", ["short", "long", "code", "unicode", "chat"])
def test_logits_at_every_position(runner: Runner, prompt: str) -> None:
    golden = arrays("smollm2-positions.npz")[prompt]
    ids = golden["ids"].tolist()
    if runner.info.device == "reference":
        ids = ids[:200]  # NumPy takes its time
    assert prompt != "long" or len(golden["ids"]) > 1000
    for start in range(0, len(ids), CHUNK):
        got = logits(runner, ids[: start + CHUNK], start)
        rows = slice(start, start + len(got))
        expected = (golden[part][rows] for part in ("top_ids", "top_logits", "logsumexp"))
        assert_close(got, *expected)


@pytest.mark.parametrize("prompt", ["capital", "poem", "code", "r_seq", "unicode"])
def test_the_best_50_after_a_prompt(runner: Runner, prompt: str) -> None:
    golden = arrays("hf-smollm2-135m-instruct-q4_1-top50.npz")[prompt]
    got = last_logits(runner, golden["input_ids"].tolist())
    parts = ("f32.top50_ids", "f32.top50_logits", "f32.logsumexp")
    assert_close(got, *(golden[part] for part in parts))


def greedy_cases() -> list[tuple[str, list[int], list[int], list[float]]]:
    made = json.loads((GOLDENS / "smollm2-greedy.json").read_text())
    prompts = arrays("smollm2-positions.npz")
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


def test_buffers_of_512_tokens_take_little_more_than_what_lives_at_once(runner: Runner) -> None:
    runtime = runner.compiled.runtime
    if not isinstance(runtime, NativeRuntime):
        pytest.skip("NumPy places its own arrays")
    for program in runtime.programs.programs:
        layout = runtime.lay_out(program, {"t": 512})
        assert layout.size <= 1.2 * lower_bound(layout.lifetimes)
