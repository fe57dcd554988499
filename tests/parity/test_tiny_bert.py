"""Embeddings of a small random BERT (`tests/goldens/make_tiny_bert.py`) against transformers, many prompts at once."""

from pathlib import Path

import numpy as np
import pytest

from engine.config import EngineConfig
from engine.core import EngineCore
from engine.messages import Generate, SamplingParams
from engine.runner import Runner
from models import registry

BERT = Path(__file__).parent.parent / "goldens" / "tiny-bert"


@pytest.mark.parametrize("device", ["native", "reference"])
def test_embeddings_are_those_of_transformers(device: str, tmp_path: Path) -> None:
    """More prompts than fit into a step or the pool, of which each is computed whole."""
    config = EngineConfig(
        cache_dir=tmp_path,
        device=device,
        max_num_seqs=6,
        max_batch_tokens=48,
        kv_memory_bytes=96 * 2 * 3 * 48 * 2,
        search_time_limit_s=0.2,
    )
    runner = Runner(registry.load(BERT), config, lambda _: None)
    assert runner.info.max_model_len == 40
    assert runner.info.embedding_size == 48
    core = EngineCore(runner, config)
    wanted = {}
    with np.load(BERT / "golden.npz") as golden:
        lengths = [int(key.removeprefix("ids.")) for key in golden if key.startswith("ids.")]
        for round_ in range(3):
            for length in sorted(lengths, key=lambda n: n * 7919 % (11 + round_)):
                name = f"{length}/{round_}"
                ids = golden[f"ids.{length}"].tolist()
                assert core.add(Generate(name, ids, SamplingParams(max_tokens=0))) is None
                mean = golden[f"states.{length}"].mean(0)
                wanted[name] = mean / np.linalg.norm(mean)
    found = {}
    for _ in range(100):
        for delta in core.step():
            assert delta.finish_reason == "stop"
            assert delta.embedding is not None
            found[delta.request_id] = np.frombuffer(delta.embedding, np.float32)
    assert not core.busy
    assert found.keys() == wanted.keys()
    for name, embedding in wanted.items():
        # Keys and values are held in float16.
        np.testing.assert_allclose(found[name], embedding, rtol=0, atol=1e-3)
