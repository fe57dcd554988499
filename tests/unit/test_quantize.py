"""Rounding of float weights at load: how far a weight may move, and which tensors are left alone."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from gguf import GGMLQuantizationType
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file
from test_checkpoint import MATRICES, VECTORS, WEIGHTS, write_directory, write_gguf
from typer.testing import CliRunner

from engine.ops.base import Array
from engine.quantized import QuantizedTensor
from models.checkpoint import open_checkpoint
from models.errors import ModelFileError
from models.quantize import QuantizedAtLoad, quantize
from server.cli import app

GROUP = 16
EPS = 2.0**-10
"""More than an f16 loses of a number by rounding."""


@pytest.mark.parametrize("bits", [8, 4])
@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), size=st.floats(1e-3, 1e4), middle=st.floats(-3, 3))
@example(seed=20192, size=0.001, middle=0.0)
def test_no_weight_moves_by_more_than_half_a_step(
    bits: int, seed: int, size: float, middle: float
) -> None:
    rng = np.random.default_rng(seed)
    weights = ((rng.standard_normal((5, 3 * GROUP)) + middle) * size).astype(np.float32)
    rounded = quantize(weights, bits, GROUP).dequantize()
    groups = weights.reshape(5, 3, GROUP)
    top, bottom = groups.max(-1), groups.min(-1)
    largest = np.abs(groups).max(-1)
    step = largest / 127 if bits == 8 else (top - bottom + EPS * largest) / 15
    step += 2.0**-24  # between f16 below 6e-5
    allowed = np.repeat(step * (0.5 + EPS) * (1 + EPS), GROUP, axis=1)
    assert (np.abs(rounded - weights) <= allowed).all()


@pytest.mark.parametrize("bits", [8, 4])
def test_weights_on_a_grid_stay(bits: int) -> None:
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 16, (4, GROUP)) if bits == 4 else rng.integers(-127, 128, (4, GROUP))
    codes[:, :2] = (0, 15) if bits == 4 else (-127, 127)
    weights = (codes * 0.25 - (2.5 if bits == 4 else 0)).astype(np.float32)
    found = quantize(weights, bits, GROUP)
    np.testing.assert_array_equal(found.dequantize(), weights)
    assert found.codes.nbytes == weights.size * bits // 8


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("value", [0.0, -0.5, 0.375])
def test_equal_weights_stay(bits: int, value: float) -> None:
    weights = np.full((2, GROUP), value, np.float32)
    moved = np.abs(quantize(weights, bits, GROUP).dequantize() - weights)
    assert moved.max() <= abs(value) * EPS


def test_blocks_of_rows_are_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = np.random.default_rng(0).standard_normal((37, 64), np.float32)
    whole = quantize(weights, 4, 32).dequantize()
    monkeypatch.setattr("models.quantize._BLOCK_WEIGHTS", 5 * 64)
    np.testing.assert_array_equal(quantize(weights, 4, 32).dequantize(), whole)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e38])
def test_weights_that_no_scale_holds_are_refused(bits: int, value: float) -> None:
    weights = np.ones((4, GROUP), np.float32)
    weights[2, 3] = value
    with pytest.raises(ValueError, match="not finite, or too large"):
        quantize(weights, bits, GROUP)


def more_tensors() -> dict[str, Array]:
    ones = np.ones((4, 64), np.float32)
    return {
        "model.layers.0.mlp.gate.weight": ones,  # routes tokens to experts
        "model.layers.0.odd.weight": np.ones((4, 20), np.float32),  # no group divides its rows
        "model.layers.0.mlp.experts.0.up_proj.weight": ones,
        "model.vision.weight": ones,  # in no layer
    }


def test_which_tensors_are_rounded(tmp_path: Path) -> None:
    write_directory(tmp_path, ml_dtypes.bfloat16)
    save_file(WEIGHTS | more_tensors(), tmp_path / "model.safetensors")
    checkpoint = QuantizedAtLoad(open_checkpoint(tmp_path), "int4")
    bits = {
        name: q.bits for name in checkpoint.names() if (q := checkpoint.info(name).quantization)
    }
    assert bits == dict.fromkeys(MATRICES, 4) | {
        "model.embed_tokens.weight": 8,
        "model.layers.0.mlp.experts.0.up_proj.weight": 4,
    }
    for name in VECTORS:
        np.testing.assert_array_equal(checkpoint.tensor(name), WEIGHTS[name])
    for name in bits:
        tensor, info = checkpoint.tensor(name), checkpoint.info(name)
        assert isinstance(tensor, QuantizedTensor)
        assert tensor.shape == info.shape
        parts = [p for p in (tensor.codes, tensor.scale, tensor.minimum) if p is not None]
        assert sum(p.nbytes for p in parts) == info.size_bytes


def test_what_is_quantised_already_is_left_alone(tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf")
    plain = QuantizedAtLoad(open_checkpoint(tmp_path / "model.gguf"), "int8")
    assert plain.info("model.layers.0.mlp.up_proj.weight").quantization is not None
    write_gguf(tmp_path / "q4.gguf", GGMLQuantizationType.Q4_1)
    file = open_checkpoint(tmp_path / "q4.gguf")
    rounded = QuantizedAtLoad(file, "int8")
    assert [rounded.info(n) for n in rounded.names()] == [file.info(n) for n in file.names()]


def test_a_weight_that_is_no_number_is_named(tmp_path: Path) -> None:
    write_directory(tmp_path)
    name = "model.layers.0.mlp.down_proj.weight"
    save_file({**WEIGHTS, name: WEIGHTS[name] * np.nan}, tmp_path / "model.safetensors")
    checkpoint = QuantizedAtLoad(open_checkpoint(tmp_path), "int8")
    with pytest.raises(ModelFileError, match=r"down_proj\.weight': its weights are not finite"):
        checkpoint.tensor(name)


def test_an_unknown_precision_is_refused_at_the_command_line() -> None:
    result = CliRunner().invoke(app, ["serve", "model", "--quantize", "int3"])
    assert result.exit_code == 2
    assert "--quantize (EGGLM_QUANTIZE)" in result.output
