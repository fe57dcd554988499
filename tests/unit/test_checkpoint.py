"""Checkpoints under their Hugging Face names, and damaged files, which are always refused by name."""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from safetensors.numpy import save_file

from engine.config import EngineConfig
from engine.ops.base import Array
from engine.quantized import QuantizedTensor
from engine.runner import Runner
from models.checkpoint import Checkpoint, open_checkpoint
from models.errors import ModelFileError
from models.registry import load
from models.tokenizer import load_tokenizer

HIDDEN, HEADS, KV_HEADS, HEAD, FF, VOCAB = 64, 4, 2, 16, 96, 32
RNG = np.random.default_rng(0)

MATRICES = {
    "model.embed_tokens.weight": (VOCAB, HIDDEN),
    "model.layers.0.self_attn.q_proj.weight": (HEADS * HEAD, HIDDEN),
    "model.layers.0.self_attn.k_proj.weight": (KV_HEADS * HEAD, HIDDEN),
    "model.layers.0.self_attn.v_proj.weight": (KV_HEADS * HEAD, HIDDEN),
    "model.layers.0.self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD),
    "model.layers.0.mlp.gate_proj.weight": (FF, HIDDEN),
    "model.layers.0.mlp.up_proj.weight": (FF, HIDDEN),
    "model.layers.0.mlp.down_proj.weight": (HIDDEN, FF),
}
VECTORS = {
    "model.layers.0.input_layernorm.weight": (HIDDEN,),
    "model.layers.0.post_attention_layernorm.weight": (HIDDEN,),
    "model.norm.weight": (HIDDEN,),
}
WEIGHTS = {
    name: RNG.standard_normal(shape, np.float32) for name, shape in (MATRICES | VECTORS).items()
}
GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "intermediate_size": FF,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "eos_token_id": 2,
    "bos_token_id": 1,
}


def gguf_name(name: str) -> str:
    stem = name.removesuffix(".weight").removeprefix("model.layers.0.")
    prefix = "blk.0." if name.startswith("model.layers") else ""
    return f"{prefix}{GGUF_NAMES[stem]}.weight"


def interleaved(weight: Array, heads: int) -> Array:
    """Rows of q or k as llama.cpp's converter stores them."""
    return weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def write_gguf(
    path: Path,
    kind: Kind = Kind.F32,
    context: int | None = None,
    amplitude: float = 1.0,
    **more: Array,
) -> dict[str, Array]:
    """A one-layer llama with a tokenizer, perhaps an original `context`, and `more` tensors (`__` for a dot in a name);
    gives the values that the llama's tensors stand for."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FF)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(["<unk>", "<s>", "</s>", *(f"t{i}" for i in range(VOCAB - 3))])
    writer.add_token_scores([0.0] * VOCAB)
    writer.add_token_types([2, 3, 3] + [1] * (VOCAB - 3))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    if context is not None:
        writer.add_rope_scaling_orig_ctx_len(context)
        writer.add_rope_scaling_attn_factors(amplitude)
    values = {}
    for name, weight in WEIGHTS.items():
        quantized = kind if name in MATRICES else Kind.F32
        data = gguf.quants.quantize(weight, quantized)
        values[name] = gguf.quants.dequantize(data, quantized).reshape(weight.shape)
        heads = {"q_proj": HEADS, "k_proj": KV_HEADS}.get(name.split(".")[-2])
        stored = data if heads is None else interleaved(data, heads)
        writer.add_tensor(gguf_name(name), np.ascontiguousarray(stored), raw_dtype=quantized)
    for name, tensor in more.items():
        writer.add_tensor(name.replace("__", "."), tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return values


def write_directory(path: Path, dtype: Any = np.float32, **config: Any) -> None:
    (path / "config.json").write_text(json.dumps(CONFIG | config))
    weights = {name: weight.astype(dtype) for name, weight in WEIGHTS.items()}
    save_file(weights, path / "model.safetensors")


def dense(tensor: Array | QuantizedTensor) -> Array:
    if isinstance(tensor, QuantizedTensor):
        return tensor.dequantize()
    return tensor.astype(np.float32)


def read_all(checkpoint: Checkpoint) -> dict[str, Array]:
    try:
        return {name: dense(checkpoint.tensor(name)) for name in checkpoint.names()}
    finally:
        checkpoint.close()


@pytest.mark.parametrize(
    "kind", [Kind.F32, Kind.F16, Kind.BF16, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q8_0]
)
def test_a_gguf_file_has_the_tensors_of_the_original(tmp_path: Path, kind: Kind) -> None:
    path = tmp_path / "model.gguf"
    values = write_gguf(path, kind)
    checkpoint = open_checkpoint(path)
    infos = {name: checkpoint.info(name) for name in checkpoint.names()}
    tensors = read_all(checkpoint)
    assert tensors.keys() == values.keys()
    for name, value in values.items():
        assert infos[name].shape == value.shape
        np.testing.assert_array_equal(tensors[name], value, err_msg=name)
    is_quantized = infos["model.norm.weight"].quantization, infos["model.embed_tokens.weight"]
    assert is_quantized[0] is None
    assert (is_quantized[1].quantization is None) == (kind.name in ("F32", "F16", "BF16"))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_a_safetensors_directory(tmp_path: Path, dtype: Any) -> None:
    write_directory(tmp_path, dtype)
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.info("model.norm.weight").dtype == np.dtype(dtype)
    tensors = read_all(checkpoint)
    assert tensors.keys() == WEIGHTS.keys()
    for name, weight in WEIGHTS.items():
        np.testing.assert_array_equal(tensors[name], weight.astype(dtype).astype(np.float32))


def test_both_files_say_the_same_of_the_model(tmp_path: Path) -> None:
    write_directory(tmp_path)
    write_gguf(tmp_path / "model.gguf")
    directory, file = open_checkpoint(tmp_path), open_checkpoint(tmp_path / "model.gguf")
    assert directory.config.eos_token_ids == (2,)
    assert directory.config.head_dim == HEAD
    # GGUF keeps the constant as f32.
    assert file.config.rms_norm_eps == pytest.approx(directory.config.rms_norm_eps, rel=1e-6)
    same = {"rms_norm_eps": 0.0}
    assert vars(file.config) | same == vars(directory.config) | same
    directory.close()
    file.close()


def test_a_gguf_file_may_hold_factors_of_rope(tmp_path: Path) -> None:
    factors = np.linspace(1, 8, HEAD // 2, dtype=np.float32)
    write_gguf(tmp_path / "model.gguf", rope_freqs__weight=factors)
    checkpoint = open_checkpoint(tmp_path / "model.gguf")
    frequencies = checkpoint.config.rope.frequencies(256)
    checkpoint.close()
    plain = 10000 ** (-np.arange(0, HEAD, 2) / HEAD)
    np.testing.assert_allclose(frequencies, plain / factors)


def test_a_gguf_file_may_hold_factors_for_long_texts_and_short(tmp_path: Path) -> None:
    factors = np.linspace(1, 8, HEAD // 2, dtype=np.float32)
    path = tmp_path / "model.gguf"
    tensors = {
        "rope_factors_short__weight": factors,
        "rope_factors_long__weight": factors * 2,
    }
    write_gguf(path, **tensors)
    with pytest.raises(ModelFileError, match="original_context_length is None"):
        open_checkpoint(path)
    write_gguf(path, context=32, amplitude=1.25, **tensors)
    checkpoint = open_checkpoint(path)
    rope = checkpoint.config.rope
    checkpoint.close()
    plain = 10000 ** (-np.arange(0, HEAD, 2) / HEAD)
    np.testing.assert_allclose(rope.frequencies(32), plain / factors)
    np.testing.assert_allclose(rope.frequencies(33), plain / factors / 2)
    assert rope.amplitude == 1.25


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("rope_freqs__weight", np.ones(HEAD, np.float32)),
        ("rope_freqs__weight", np.ones(HEAD // 2, np.float16)),
        ("rope_freqs__weight", np.zeros(HEAD // 2, np.float32)),
    ],
)
def test_factors_of_rope_that_are_none_are_refused(
    tmp_path: Path, name: str, tensor: Array
) -> None:
    write_gguf(tmp_path / "model.gguf", **{name: tensor})
    with pytest.raises(ModelFileError, match=r"rope_freqs\.weight"):
        open_checkpoint(tmp_path / "model.gguf")


def write_shards(path: Path) -> dict[str, str]:
    """The weights in two files; gives the index's map."""
    (path / "config.json").write_text(json.dumps(CONFIG))
    names = list(WEIGHTS)
    homes = {}
    for number, part in enumerate((names[:5], names[5:])):
        shard = f"model-{number}.safetensors"
        save_file({name: WEIGHTS[name] for name in part}, path / shard)
        homes |= dict.fromkeys(part, shard)
    return homes


def write_index(path: Path, index: Any) -> None:
    (path / "model.safetensors.index.json").write_text(json.dumps(index))


def test_a_directory_of_shards(tmp_path: Path) -> None:
    write_index(tmp_path, {"weight_map": write_shards(tmp_path)})
    tensors = read_all(open_checkpoint(tmp_path))
    assert tensors.keys() == WEIGHTS.keys()


@pytest.mark.parametrize(
    "index",
    [
        [],
        {},
        {"weight_map": []},
        {"weight_map": {"a": 1}},
        {"weight_map": {"a": "../model-0.safetensors"}},
        {"weight_map": {"a": "model-7.safetensors"}},
        {"weight_map": {"a": "model-0.safetensors"}},
    ],
)
def test_a_wrong_index_is_refused(tmp_path: Path, index: Any) -> None:
    write_shards(tmp_path)
    write_index(tmp_path, index)
    with pytest.raises(ModelFileError):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("name", ["lm_head.weight", ""])
def test_a_missing_tensor_is_named(tmp_path: Path, name: str) -> None:
    write_directory(tmp_path)
    write_gguf(tmp_path / "model.gguf")
    for path in (tmp_path, tmp_path / "model.gguf"):
        checkpoint = open_checkpoint(path)
        for read in (checkpoint.info, checkpoint.tensor):
            with pytest.raises(ModelFileError, match=f"tensor '{name}' is missing"):
                read(name)
        checkpoint.close()


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"hidden_size": None}, "hidden_size is None"),
        ({"num_hidden_layers": "2"}, "num_hidden_layers is '2'"),
        ({"vocab_size": -1}, "vocab_size is -1"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ({"head_dim": 0}, "head_dim is 0"),
        ({"num_key_value_heads": "2"}, "num_key_value_heads is '2'"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan"),
        ({"rope_theta": -1}, "rope_theta is -1"),
        ({"rope_scaling": [1]}, r"rope_scaling is \[1\]"),
    ],
)
def test_a_wrong_config_is_named(tmp_path: Path, config: dict[str, Any], problem: str) -> None:
    write_directory(tmp_path, **config)
    with pytest.raises(ModelFileError, match=rf"config\.json: .*{problem}"):
        open_checkpoint(tmp_path)


def test_an_unknown_architecture_is_named_with_those_that_are_known(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "mamba", "d_model": 64}')
    with pytest.raises(ModelFileError, match=r"'mamba' is not supported \(supported: .*llama"):
        load(tmp_path)


def test_what_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "text").write_bytes(b"This is some text, and no model." * 9)
    for path in (tmp_path, tmp_path / "empty", tmp_path / "text", tmp_path / "absent"):
        with pytest.raises(ModelFileError):
            open_checkpoint(path)


def test_a_gguf_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    path, cut = tmp_path / "model.gguf", tmp_path / "cut.gguf"
    write_gguf(path, Kind.Q8_0)
    whole = path.read_bytes()
    header_end = len(whole) - sum(t.n_bytes for t in gguf.GGUFReader(path).tensors)
    lengths = [*range(0, header_end, 7), *range(header_end, len(whole), 997), len(whole) - 1]
    for length in lengths:
        cut.write_bytes(whole[:length])
        with pytest.raises(ModelFileError):
            read_all(open_checkpoint(cut))


def test_a_safetensors_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    write_directory(tmp_path)
    path = tmp_path / "model.safetensors"
    whole = path.read_bytes()
    for length in [*range(0, len(whole), 997), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(ModelFileError):
            open_checkpoint(tmp_path)


def flipped(whole: bytes, places: range) -> Iterator[bytes]:
    """The file with one byte changed, at each place, in three ways by turns."""
    for at, mask in zip(places, itertools.cycle((0x01, 0x80, 0xFF)), strict=False):
        yield whole[:at] + bytes([whole[at] ^ mask]) + whole[at + 1 :]


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_a_damaged_gguf_header_is_read_or_refused(tmp_path: Path) -> None:
    """A changed byte may well leave a readable file; nothing but `ModelFileError` may come of it."""
    path, damaged = tmp_path / "model.gguf", tmp_path / "damaged.gguf"
    write_gguf(path, Kind.Q8_0)
    whole = path.read_bytes()
    header_end = len(whole) - sum(t.n_bytes for t in gguf.GGUFReader(path).tensors)
    refused = 0
    for content in flipped(whole, range(0, header_end, 2)):
        damaged.write_bytes(content)
        for read in (lambda: read_all(open_checkpoint(damaged)), lambda: load_tokenizer(damaged)):
            try:
                read()
            except ModelFileError:
                refused += 1
    assert refused > header_end / 4


def test_a_damaged_safetensors_header_is_read_or_refused(tmp_path: Path) -> None:
    write_directory(tmp_path)
    path = tmp_path / "model.safetensors"
    whole = path.read_bytes()
    header_end = 8 + int.from_bytes(whole[:8], "little")
    refused = 0
    for content in flipped(whole, range(header_end)):
        path.write_bytes(content)
        try:
            read_all(open_checkpoint(tmp_path))
        except ModelFileError:
            refused += 1
    assert refused > header_end / 4


def build(path: Path, cache: Path) -> None:
    """As far as a start of the server reads a model."""
    config = EngineConfig(cache_dir=cache, device="reference", kv_memory_bytes=1 << 20)
    Runner(load(path), config, lambda _: None)


EXTRA = {
    "model.layers.0.self_attn.q_proj.bias": np.zeros(HEADS * HEAD, np.float32),
    "model.layers.1.input_layernorm.weight": np.zeros(HIDDEN, np.float32),
    "model.layers.0.self_attn.q_norm.weight": np.zeros(HEAD, np.float32),
}


@pytest.mark.parametrize("name", EXTRA)
def test_a_tensor_that_would_be_left_out_is_named(tmp_path: Path, name: str) -> None:
    write_directory(tmp_path)
    save_file(WEIGHTS | {name: EXTRA[name]}, tmp_path / "model.safetensors")
    with pytest.raises(ModelFileError, match=f"tensor '{name}' has no place in a llama"):
        build(tmp_path, tmp_path / "cache")


def test_a_bias_of_a_gguf_file_that_would_be_left_out_is_named(tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", blk__0__attn_q__bias=np.zeros(HEADS * HEAD, np.float32))
    with pytest.raises(ModelFileError, match=r"'.*q_proj\.bias' has no place"):
        build(tmp_path / "model.gguf", tmp_path / "cache")


def test_tensors_for_another_use_are_left_alone(tmp_path: Path) -> None:
    write_directory(tmp_path)
    more = {
        "model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(HEAD // 2, np.float32),
        "model.layers.0.self_attn.k_scale": np.ones((), np.float32),
        "lm_head.weight": WEIGHTS["model.embed_tokens.weight"],  # and the config says tied
    }
    save_file(WEIGHTS | more, tmp_path / "model.safetensors")
    build(tmp_path, tmp_path / "cache")


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["model.norm.weight", "model.layers.0.mlp.up_proj.weight"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_a_weight_that_is_no_number_is_named_at_start(
    tmp_path: Path, name: str, value: float, dtype: Any
) -> None:
    write_directory(tmp_path, dtype)
    broken = {key: weight.astype(dtype) for key, weight in WEIGHTS.items()}
    broken[name].reshape(-1)[-1] = value
    save_file(broken, tmp_path / "model.safetensors")
    with pytest.raises(ModelFileError, match=f"tensor '{name}' has numbers that are not finite"):
        build(tmp_path, tmp_path / "cache")
