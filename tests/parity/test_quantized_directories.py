"""Directories that AutoAWQ, GPTQ tools, compressed-tensors, fp8 and ModelOpt write: every form is packed here number by
number from its description, and must compute what the numbers do that it stands for."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from stepping import logits

from engine.config import Device, EngineConfig
from engine.ops.base import Array
from engine.quantized import QuantizedTensor
from engine.runner import Runner
from models import registry
from models.checkpoint import open_checkpoint
from models.errors import ModelFileError
from models.safetensors_file import SafetensorsFiles

SOURCE = Path(__file__).parent.parent / "goldens" / "tiny-llama"
FLOAT8 = ml_dtypes.float8_e4m3fn
Tensors = dict[str, Array]


@dataclass
class Rounded:
    """A matrix [rows, columns] as codes from 0 up with zero points and f16 scales, [rows, groups]."""

    bits: int
    codes: Array
    zero: Array
    scale: Array

    @property
    def value(self) -> Array:
        width = self.codes.shape[1] // self.scale.shape[1]
        zero, scale = (
            np.repeat(x.astype(np.float32), width, axis=1) for x in (self.zero, self.scale)
        )
        return (self.codes.astype(np.float32) - zero) * scale


def rounded(weight: Array, bits: int, group: int, symmetric: bool) -> Rounded:
    """Zero points are random where they may be, so that no test passes without them."""
    rows, columns = weight.shape
    parts, top = weight.reshape(rows, -1, group), 2**bits - 1
    scale = (np.abs(parts).max(-1) / (top // 2)).astype(np.float16)
    drawn = np.random.default_rng(rows + columns).integers(top // 3, top // 2 + 2, scale.shape)
    zero = np.full(scale.shape, (top + 1) // 2) if symmetric else drawn
    codes = np.rint(parts / scale[..., None].astype(np.float32)) + zero[..., None]
    return Rounded(bits, np.clip(codes, 0, top).astype(int).reshape(rows, columns), zero, scale)


def words(numbers: Array, bits: int, order: tuple[int, ...] | None = None) -> Array:
    """i32 [..., n * bits / 32]: number i of each word at `order[i]`, places counted from the low end."""
    per_word = 32 // bits
    places = order or tuple(range(per_word))
    out = np.zeros((*numbers.shape[:-1], -(-numbers.shape[-1] // per_word)), np.int64)
    for i in range(numbers.shape[-1]):
        out[..., i // per_word] |= numbers[..., i].astype(np.int64) << bits * places[i % per_word]
    return out.astype(np.uint32).view(np.int32)


def awq(w: Rounded) -> Tensors:
    # The place p of a word holds column [0, 2, 4, 6, 1, 3, 5, 7][p] of its eight.
    order = tuple(int(p) for p in np.argsort([0, 2, 4, 6, 1, 3, 5, 7]))
    return {
        "qweight": words(w.codes.T, 4, order),
        "qzeros": words(w.zero.T, 4, order),
        "scales": w.scale.T,
    }


def gptq(w: Rounded, offset: int = 1) -> Tensors:
    columns, groups = w.codes.shape[1], w.scale.shape[1]
    return {
        "qweight": words(w.codes, w.bits).T,
        "qzeros": words(w.zero.T - offset, w.bits),
        "scales": w.scale.T,
        "g_idx": np.arange(columns, dtype=np.int32) // (columns // groups),
    }


def gptq_by_activations(w: Rounded) -> Tensors:
    """As if the columns had been quantised in another order: column i of the model is `order[i]` of `w`."""
    parts, order = gptq(w), shuffled(w.codes.shape[1])
    return parts | {"qweight": words(w.codes[:, order], w.bits).T, "g_idx": parts["g_idx"][order]}


def shuffled(columns: int) -> Array:
    return np.random.default_rng(columns).permutation(columns)


def packed(w: Rounded, asymmetric: bool = False) -> Tensors:
    found = {
        "weight_packed": words(w.codes, w.bits),
        "weight_scale": w.scale.astype(ml_dtypes.bfloat16),
        "weight_shape": np.array(w.codes.shape, np.int64),
    }
    return found | ({"weight_zero_point": words(w.zero.T, w.bits).T} if asymmetric else {})


def in_bytes(w: Rounded, asymmetric: bool = False) -> Tensors:
    found = {"weight": (w.codes - 128).astype(np.int8), "weight_scale": w.scale}
    return found | ({"weight_zero_point": (w.zero - 128).astype(np.int8)} if asymmetric else {})


@dataclass
class Form:
    """A way to write a matrix: its parts, and the values that they stand for."""

    config: dict[str, Any]
    write: Callable[[Array], tuple[Tensors, Array]]
    bits: int | None
    config_file: str = "config.json"


def of_codes(
    config: dict[str, Any],
    pack: Callable[[Rounded], Tensors],
    bits: int,
    group: int | None = 8,
    *,
    symmetric: bool = False,
    order: Callable[[int], Array] = np.arange,
    held: int | None = None,
) -> Form:
    def write(weight: Array) -> tuple[Tensors, Array]:
        w = rounded(weight, bits, group or weight.shape[1], symmetric)
        if "compressed-tensors" in config.values():
            w.scale = w.scale.astype(ml_dtypes.bfloat16).astype(np.float16)
        return pack(w), w.value[:, order(weight.shape[1])]

    return Form(config, write, bits if held is None else held or None)


def of_floats(
    config: dict[str, Any], part: str, shape: str, config_file: str = "config.json"
) -> Form:
    def write(weight: Array) -> tuple[Tensors, Array]:
        rows, columns = weight.shape
        if shape == "block":
            scale = np.empty((-(-rows // 32), -(-columns // 20)), np.float32)
            for i, j in np.ndindex(scale.shape):
                scale[i, j] = np.abs(weight[32 * i : 32 * i + 32, 20 * j : 20 * j + 20]).max() / 448
            wide = np.array(
                [[scale[i // 32, j // 20] for j in range(columns)] for i in range(rows)]
            )
        else:
            axis = 1 if shape == "row" else None
            scale = np.abs(weight).max(axis, keepdims=shape == "row") / 448
            wide = np.broadcast_to(scale, weight.shape)
            scale = np.asarray(scale, np.float32)
        codes = (weight / wide).astype(FLOAT8)
        return {"weight": codes, part: scale}, codes.astype(np.float32) * wide

    return Form(config, write, None, config_file)


def compressed(form: str, **weights: Any) -> dict[str, Any]:
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": groups}


AWQ = {"quant_method": "awq", "bits": 4, "group_size": 8, "version": "gemm", "zero_point": True}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 8, "desc_act": False}
MODELOPT = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}}
FORMS = {
    "awq": of_codes(AWQ, awq, 4),
    "gptq": of_codes(GPTQ, gptq, 4),
    "gptq of 8 bits": of_codes(GPTQ | {"bits": 8}, gptq, 8),
    "gptq a row": of_codes(GPTQ | {"group_size": -1}, gptq, 4, None),
    "gptq v2": of_codes(GPTQ | {"checkpoint_format": "gptq_v2"}, lambda w: gptq(w, offset=0), 4),
    "gptq by activations": of_codes(GPTQ, gptq_by_activations, 4, order=shuffled, held=0),
    "packed": of_codes(compressed("pack-quantized"), packed, 4, symmetric=True),
    "packed with zeros": of_codes(compressed("pack-quantized"), lambda w: packed(w, True), 4),
    "packed of 8 bits": of_codes(compressed("pack-quantized"), packed, 8, symmetric=True),
    "packed, narrow": of_codes(compressed("pack-quantized"), packed, 4, 4, symmetric=True, held=0),
    "bytes": of_codes(compressed("int-quantized"), in_bytes, 8, None, symmetric=True),
    "bytes with zeros": of_codes(compressed("int-quantized"), lambda w: in_bytes(w, True), 8, None),
    "fp8 a row": of_floats(compressed("float-quantized"), "weight_scale", "row"),
    "fp8 in blocks": of_floats(
        {"quant_method": "fp8", "weight_block_size": [32, 20]}, "weight_scale_inv", "block"
    ),
    "compressed fp8 in blocks": of_floats(
        compressed("float-quantized", block_structure=[32, 20]), "weight_scale", "block"
    ),
    "modelopt": of_floats(MODELOPT, "weight_scale", "whole", "hf_quant_config.json"),
}


def write_both(form: Form, quantized: Path, plain: Path) -> None:
    """tiny-llama with its layers' matrices in a form, and with the values that they stand for in f32."""
    tensors = load_file(SOURCE / "model.safetensors")
    values = dict(tensors)
    for name in [n for n in tensors if n.endswith("_proj.weight")]:
        parts, values[name] = form.write(tensors.pop(name))
        stem = name.removesuffix("weight")
        tensors |= {stem + part: np.array(value, order="C") for part, value in parts.items()}
    for directory, held in ((quantized, tensors), (plain, values)):
        directory.mkdir()
        shutil.copy(SOURCE / "config.json", directory)
        held = {name: np.ascontiguousarray(tensor) for name, tensor in held.items()}
        save_file(
            {n: np.asarray(t, order="C") for n, t in held.items()}, directory / "model.safetensors"
        )
    if form.config_file == "config.json":
        change_config(quantized, quantization_config=form.config)
    else:
        (quantized / form.config_file).write_text(json.dumps(form.config))


def change_config(directory: Path, **changes: Any) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def runner(path: Path, device: Device, cache: Path) -> Runner:
    config = EngineConfig(
        cache_dir=cache, device=device, kv_memory_bytes=1 << 20, search_time_limit_s=0.0
    )
    return Runner(registry.load(path), config, lambda _: None)


@pytest.mark.parametrize("name", FORMS)
def test_a_form_stands_for_its_values(name: str, tmp_path: Path) -> None:
    write_both(FORMS[name], tmp_path / "quantized", tmp_path / "plain")
    checkpoint = open_checkpoint(tmp_path / "quantized")
    values = load_file(tmp_path / "plain" / "model.safetensors")
    assert set(checkpoint.names()) == values.keys()
    for key, value in values.items():
        info, tensor = checkpoint.info(key), checkpoint.tensor(key)
        assert info.shape == value.shape
        bits = None if info.quantization is None else info.quantization.bits
        assert bits == (FORMS[name].bits if key.endswith("_proj.weight") else None)
        found = tensor.dequantize() if isinstance(tensor, QuantizedTensor) else tensor
        tolerance = 1e-6 if bits else 1e-3  # f16 where codes cannot be kept
        np.testing.assert_allclose(found.astype(np.float32), value, rtol=tolerance, atol=1e-6)
    checkpoint.close()


@pytest.mark.parametrize(
    "name", ["awq", "gptq of 8 bits", "gptq by activations", "packed", "bytes", "modelopt"]
)
def test_a_form_computes_what_its_values_do(name: str, tmp_path: Path) -> None:
    write_both(FORMS[name], tmp_path / "quantized", tmp_path / "plain")
    ids = list(range(3, 40))
    want = logits(runner(tmp_path / "plain", "reference", tmp_path / "cache"), ids, 0)
    found = logits(runner(tmp_path / "quantized", "native", tmp_path / "cache"), ids, 0)
    np.testing.assert_allclose(
        found, want, rtol=0, atol=0.04
    )  # keys and values in f16 move them by 0.03


def test_an_int8_model_of_wide_rows_is_cut_into_groups(tmp_path: Path) -> None:
    """A scale a row, where a row is more than the integer kernels sum at a time."""
    form = FORMS["bytes"]
    weight = np.random.default_rng(0).standard_normal((8, 1536), np.float32)
    parts, value = form.write(weight)
    shutil.copy(SOURCE / "config.json", tmp_path)
    change_config(tmp_path, quantization_config=form.config)
    save_file(
        {f"a.{part}": tensor for part, tensor in parts.items()}, tmp_path / "model.safetensors"
    )
    checkpoint = open_checkpoint(tmp_path)
    found, quantization = checkpoint.tensor("a.weight"), checkpoint.info("a.weight").quantization
    assert isinstance(found, QuantizedTensor)
    assert quantization is not None
    assert (found.group, quantization.group) == (256, 256)
    np.testing.assert_allclose(found.dequantize(), value, rtol=1e-6)


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"quant_method": "bitsandbytes"}, r"'bitsandbytes' is not supported \(supported: awq"),
        ({"bits": 4}, "quantization method None"),
        (AWQ | {"version": "gemv"}, "this form of awq"),
        (GPTQ | {"bits": 3}, "gptq in 3 bits"),
        (GPTQ | {"bits": "4"}, "quantization_config.bits is '4'"),
        (GPTQ | {"checkpoint_format": "marlin"}, "checkpoint_format 'marlin'"),
        (GPTQ | {"dynamic": {"layers.0": {"bits": 8}}}, "other bits"),
        (compressed("marlin-24"), "format 'marlin-24'"),
        (compressed("pack-quantized") | {"transform_config": {"a": {}}}, "with transform_config"),
        (compressed("float-quantized", block_structure=[128]), "block_structure"),
        ({"quant_method": "fp8", "weight_block_size": [1.5, 2]}, "two whole numbers"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "'NVFP4'"),
        ([], "not an object"),
    ],
)
def test_a_method_that_is_not_known_is_refused(
    config: object, problem: str, tmp_path: Path
) -> None:
    shutil.copytree(SOURCE, tmp_path, dirs_exist_ok=True)
    change_config(tmp_path, quantization_config=config)
    with pytest.raises(ModelFileError, match=rf"config\.json: .*{problem}"):
        open_checkpoint(tmp_path)


def nan(tensor: Array) -> Array:
    return np.full_like(tensor, np.nan)


@pytest.mark.parametrize(
    ("name", "part", "change", "problem"),
    [
        ("awq", "scales", nan, "not finite"),
        ("awq", "scales", lambda s: s[:5], "has 5 groups"),
        ("awq", "scales", lambda s: s[:, 1:], r"has shape \(6, 95\), not \(6, 96\)"),
        ("awq", "qzeros", lambda z: z[:, 1:], r"is int32 \(6, 11\), not int32 \(6, 12\)"),
        ("awq", "qzeros", None, r"has no '.*q_proj\.qzeros' beside it"),
        ("awq", "qweight", lambda q: q.astype(np.float32), "is float32"),
        ("gptq", "g_idx", lambda g: g + 1, "names a group other than 0 to 5"),
        ("gptq", "scales", None, r"has no '.*q_proj\.scales' beside it"),
        ("packed", "weight_shape", lambda s: s * 2, "no shape of 4 or 8 bits"),
        ("packed", "weight_scale", lambda s: s[1:], "no scale of 96 by 48"),
        ("bytes", "weight", None, r"has no '.*q_proj\.weight' beside it"),
        ("fp8 a row", "weight", nan, "not finite"),
        ("fp8 in blocks", "weight_scale_inv", lambda s: s[:1], "no scale of 96 by 48"),
        ("modelopt", "weight_scale", lambda s: s.astype(np.int32), "has type I32"),
    ],
)
def test_damaged_parts_are_named(
    name: str,
    part: str,
    change: Callable[[Array], Array] | None,
    problem: str,
    tmp_path: Path,
) -> None:
    write_both(FORMS[name], tmp_path / "quantized", tmp_path / "plain")
    file = tmp_path / "quantized" / "model.safetensors"
    tensors, key = load_parts(file), f"model.layers.0.self_attn.q_proj.{part}"
    old = tensors.pop(key)
    if change is not None:
        tensors[key] = np.ascontiguousarray(change(old))
    save_file(tensors, file)
    name = "model.layers.0.self_attn.q_proj.weight"
    with pytest.raises(ModelFileError, match=rf"model\.safetensors: tensor '.*{problem}"):
        open_checkpoint(tmp_path / "quantized").tensor(name)


def load_parts(file: Path) -> Tensors:
    """As `load_file`, which cannot read fp8, does."""
    files = SafetensorsFiles(file.parent)
    found = {name: np.array(files.tensor(name)) for name in files.names()}
    files.close()
    return found


def test_fp8_without_a_scale_is_no_weight(tmp_path: Path) -> None:
    shutil.copy(SOURCE / "config.json", tmp_path)
    save_file({"a.weight": np.ones((8, 8), FLOAT8)}, tmp_path / "model.safetensors")
    checkpoint = open_checkpoint(tmp_path)
    with pytest.raises(ModelFileError, match=r"'a\.weight' has type F8_E4M3"):
        checkpoint.info("a.weight")
