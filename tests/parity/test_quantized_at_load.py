"""`--quantize`: how far logits move from transformers', and that what is computed with are the rounded weights."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from stepping import logits

from engine.config import Device, EngineConfig
from engine.ops.base import Array
from engine.quantized import QuantizedTensor
from engine.runner import Runner
from models import registry
from models.checkpoint import open_checkpoint
from models.quantize import Precision, QuantizedAtLoad

GOLDENS = Path(__file__).parent.parent / "goldens"
# Root mean square of the difference, over that of the logits. Random weights fill their range more evenly than trained
# ones, and the small models magnify any difference.
BOUNDS: list[tuple[Precision, float]] = [("int8", 0.03), ("int4", 0.3)]


def runner(path: Path, device: Device, cache: Path, quantize: Precision | None = None) -> Runner:
    config = EngineConfig(
        cache_dir=cache, device=device, kv_memory_bytes=1 << 20, search_time_limit_s=0.0
    )
    return Runner(registry.load(path, quantize), config, lambda _: None)


@pytest.mark.parametrize(("precision", "bound"), BOUNDS)
def test_logits_stay_near_those_of_the_whole_weights(
    precision: Precision, bound: float, tmp_path: Path
) -> None:
    path = GOLDENS / "tiny-gemma3"
    with np.load(path / "golden.npz") as golden:
        ids, expected = golden["ids"].tolist(), golden["logits"]
    moved = logits(runner(path, "reference", tmp_path, precision), ids, 0) - expected
    assert 0 < np.sqrt((moved**2).mean() / (expected**2).mean()) < bound


def write_rounded(path: Path, precision: Precision, target: Path) -> None:
    """A directory with the values that the rounded weights stand for."""
    checkpoint = QuantizedAtLoad(open_checkpoint(path), precision)

    def dense(name: str) -> Array:
        tensor = checkpoint.tensor(name)
        return tensor.dequantize() if isinstance(tensor, QuantizedTensor) else tensor

    target.mkdir()
    shutil.copy(path / "config.json", target)
    save_file({name: dense(name) for name in checkpoint.names()}, target / "model.safetensors")
    checkpoint.close()


def test_the_rounded_weights_are_held_and_computed_with(tmp_path: Path) -> None:
    path, precision = GOLDENS / "tiny-llama", "int4"
    write_rounded(path, precision, tmp_path / "rounded")
    ids = list(range(3, 40))
    rounded = runner(path, "native", tmp_path, precision)
    plain = runner(tmp_path / "rounded", "reference", tmp_path)
    np.testing.assert_allclose(logits(rounded, ids, 0), logits(plain, ids, 0), rtol=0, atol=0.03)
    # Embedding and head, a third, have 8 bits and 1 to 2 of scales; the others 4, and 1 to 4 of scales and minima.
    assert 0 < rounded.info.weights_bytes * 8 < 9 * weights_of(path)


def weights_of(path: Path) -> int:
    checkpoint = open_checkpoint(path)
    count = sum(int(np.prod(checkpoint.info(name).shape)) for name in checkpoint.names())
    checkpoint.close()
    return count
