"""What checkpoints say of their models, in every spelling, and rope's frequencies against transformers'."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.ops.base import Array
from models.checkpoint import open_checkpoint
from models.config import ModelConfig
from models.config_files import from_gguf, from_json
from models.errors import ModelFileError
from models.rope import Rope

GOLDENS = Path(__file__).parent.parent / "goldens"
LLAMA_3_SCALING = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def tiny_llama3() -> dict[str, Any]:
    """config.json as transformers 5 wrote it."""
    config: dict[str, Any] = json.loads((GOLDENS / "tiny-llama3" / "config.json").read_text())
    return config


def read(directory: Path, config: dict[str, Any], **generation: Any) -> ModelConfig:
    (directory / "config.json").write_text(json.dumps(config))
    if generation:
        (directory / "generation_config.json").write_text(json.dumps(generation))
    return from_json(directory)


def test_a_config_of_transformers_5() -> None:
    """The values that tests/goldens/make_tiny_llama.py gave it."""
    assert from_json(GOLDENS / "tiny-llama3") == ModelConfig(
        architecture="llama",
        vocab_size=257,
        hidden_size=48,
        num_layers=2,
        num_heads=6,
        num_kv_heads=2,
        head_dim=16,
        intermediate_size=88,
        context_length=256,
        rms_norm_eps=1e-6,
        rope=Rope(500.0, 16, LLAMA_3_SCALING),
        tie_word_embeddings=True,
        eos_token_ids=(2, 3),
        bos_token_id=1,
        hidden_act="silu",
    )


@pytest.mark.parametrize("kind", ["rope_type", "type"])
def test_older_spellings_say_the_same(tmp_path: Path, kind: str) -> None:
    new = tiny_llama3()
    old = {key: value for key, value in new.items() if key not in ("rope_parameters", "dtype")}
    scaling = {kind if key == "rope_type" else key: v for key, v in LLAMA_3_SCALING.items()}
    old |= {"rope_theta": 500.0, "rope_scaling": scaling, "torch_dtype": "bfloat16"}
    assert read(tmp_path, old) == read(tmp_path, new)


def test_what_old_configs_leave_out(tmp_path: Path) -> None:
    """Llama 1's config.json: full attention heads, theta 10000, eps 1e-6."""
    config = read(
        tmp_path,
        {
            "model_type": "llama",
            "vocab_size": 32000,
            "hidden_size": 4096,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "intermediate_size": 11008,
            "max_position_embeddings": 2048,
            "rope_scaling": None,
        },
    )
    assert (config.num_kv_heads, config.head_dim, config.rope.theta) == (32, 128, 10000.0)
    assert (config.rms_norm_eps, config.rope.scaling) == (1e-6, None)
    assert not config.tie_word_embeddings
    assert (config.bos_token_id, config.eos_token_ids) == (None, ())


def test_the_generation_config_knows_better_what_ends_a_text(tmp_path: Path) -> None:
    assert read(tmp_path, tiny_llama3()).eos_token_ids == (2,)
    assert read(tmp_path, tiny_llama3(), eos_token_id=[7, 2, 7]).eos_token_ids == (7, 2)
    assert read(tmp_path, tiny_llama3(), eos_token_id=[7, 257, -1]).eos_token_ids == (7,)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"hidden_act": "gelu"}, "activation 'gelu'"),
        ({"head_dim": 15}, "15 elements in heads of 15"),
        ({"num_key_value_heads": 4}, "6 heads cannot share 4 KV heads"),
        ({"partial_rotary_factor": 1.5}, "24 elements in heads of 16"),
        ({"rope_scaling": {"type": "axial", "factor": 4.0}}, r"'axial' is not supported \(.*yarn"),
        ({"rope_scaling": {"type": "yarn", "factor": -4.0}}, r"rope_scaling\.factor is -4.0"),
        ({"rope_scaling": {"type": "longrope"}}, r"long_factor is None, not a list of 8 numbers"),
        ({"rope_scaling": {"type": "su", "long_factor": [0] * 8}}, "not a list of positive"),
        ({"rope_scaling": {"rope_type": ["linear"]}}, "not supported"),
        ({"rope_scaling": {"type": "linear"}}, r"rope_scaling\.factor is None"),
        ({"rope_scaling": LLAMA_3_SCALING | {"factor": "8"}}, r"rope_scaling\.factor is '8'"),
        ({"rope_parameters": {"rope_theta": 0}}, r"rope_parameters\.rope_theta is 0"),
        ({"rope_parameters": {"full_attention": {}, "rope_type": "llama3"}}, r"\.factor is None"),
    ],
)
def test_what_would_be_computed_wrongly_is_refused(
    tmp_path: Path, change: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ModelFileError, match=rf"config\.json: .*{problem}"):
        read(tmp_path, tiny_llama3() | change)


GGUF = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.context_length": 256,
    "llama.embedding_length": 48,
    "llama.feed_forward_length": 88,
    "llama.attention.head_count": 6,
    "llama.attention.head_count_kv": 2,
    "llama.attention.key_length": 16,
    "llama.attention.layer_norm_rms_epsilon": 1e-6,
    "llama.rope.freq_base": 500.0,
    "llama.rope.dimension_count": 16,
    "tokenizer.ggml.tokens": ["a"] * 257,
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.eot_token_id": 3,
}


def test_gguf_metadata_says_the_same_as_a_config() -> None:
    file = from_gguf(Path("model.gguf"), GGUF, tensors=[])
    directory = from_json(GOLDENS / "tiny-llama3")
    same = {"rope": Rope(500.0, 16)}  # GGUF has Llama 3's in a tensor
    assert vars(file) == vars(directory) | same


def test_gguf_rope_scaling() -> None:
    scaled = GGUF | {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    config = from_gguf(Path("model.gguf"), scaled, tensors=["lm_head.weight"])
    assert config.rope.scaling == {"rope_type": "linear", "factor": 4.0}
    assert not config.tie_word_embeddings
    plain = GGUF | {"llama.rope.scaling.type": "none"}
    assert from_gguf(Path("model.gguf"), plain, tensors=["lm_head.weight"]).rope.scaling is None


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"general.architecture": "mamba"}, r"'mamba' is not supported \(supported: .*llama"),
        ({"split.count": 3}, "one part of several"),
        ({"llama.expert_count": 8}, "llama with experts"),
        ({"llama.rope.dimension_count": 9}, "9 elements in heads of 16"),
        ({"llama.rope.scaling.type": "other"}, "'other'"),
        ({"llama.attention.head_count_kv": [2, 2]}, r"head_count_kv is \[2, 2\]"),
        ({"llama.block_count": None}, r"llama\.block_count is None"),
        ({"tokenizer.ggml.tokens": None}, "vocab_size is None"),
    ],
)
def test_gguf_metadata_that_would_be_computed_wrongly(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(ModelFileError, match=rf"model\.gguf: .*{problem}"):
        from_gguf(Path("model.gguf"), GGUF | change, tensors=["lm_head.weight"])


def test_stories_has_odd_metadata(stories: Path) -> None:
    """No vocabulary size, no rope base, separator and padding ids that no token has; sizes by its model card."""
    checkpoint = open_checkpoint(stories)
    config = checkpoint.config
    checkpoint.close()
    assert (config.vocab_size, config.rope.theta, config.tie_word_embeddings) == (512, 1e4, False)
    assert (config.num_layers, config.hidden_size, config.intermediate_size) == (5, 64, 172)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (8, 4, 8)
    assert (config.bos_token_id, config.eos_token_ids) == (1, (2,))


def of(config: ModelConfig) -> Array:
    return config.rope.frequencies(config.context_length)


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-llama3"])
def test_frequencies_are_those_of_transformers(name: str) -> None:
    with np.load(GOLDENS / name / "golden.npz") as golden:
        expected = golden["inverse_frequencies"]
    np.testing.assert_allclose(of(from_json(GOLDENS / name)), expected, rtol=1e-6)


SCALINGS = json.loads((GOLDENS / "rope_scalings.json").read_text())


@pytest.mark.parametrize(
    "case", SCALINGS, ids=lambda c: c["config"]["rope_parameters"]["rope_type"]
)
def test_scalings_are_those_of_transformers(case: dict[str, Any], tmp_path: Path) -> None:
    rope = read(tmp_path, case["config"]).rope
    np.testing.assert_allclose(rope.frequencies(case["length"]), case["frequencies"], rtol=2e-6)
    assert rope.amplitude == pytest.approx(case["amplitude"])


def test_yarn_stretches_the_context_that_it_names(tmp_path: Path) -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 200}
    assert read(tmp_path, tiny_llama3() | {"rope_scaling": yarn}).context_length == 800
    yarn["original_max_position_embeddings"] = 32
    assert read(tmp_path, tiny_llama3() | {"rope_scaling": yarn}).context_length == 256


def test_linear_scaling_divides_frequencies(tmp_path: Path) -> None:
    plain = read(tmp_path, tiny_llama3() | {"rope_parameters": {}})
    scaled = read(
        tmp_path,
        tiny_llama3() | {"rope_parameters": {}, "rope_scaling": {"type": "linear", "factor": 2}},
    )
    np.testing.assert_allclose(of(scaled), of(plain) / 2)
    assert of(plain)[1] == pytest.approx(10000 ** (-1 / 8))


GEMMA: dict[str, Any] = {
    "model_type": "gemma3_text",
    "hidden_activation": "gelu_pytorch_tanh",
    "sliding_window": 20,
    "num_hidden_layers": 7,
}
SIXTH = (20, 20, 20, 20, 20, None, 20)


@pytest.mark.parametrize(
    ("given", "windows"),
    [
        ({}, ()),
        ({"model_type": "mistral", "sliding_window": 30}, (30, 30)),
        ({"model_type": "mistral", "sliding_window": None}, ()),
        ({"model_type": "qwen2", "sliding_window": 30, "use_sliding_window": False}, ()),
        (
            {
                "model_type": "qwen2",
                "sliding_window": 30,
                "use_sliding_window": True,
                "max_window_layers": 1,
            },
            (None, 30),
        ),
        (
            {
                "model_type": "qwen3",
                "layer_types": ["full_attention", "sliding_attention"],
                "sliding_window": 9,
            },
            (None, 9),
        ),
        (GEMMA, SIXTH),
        (GEMMA | {"layer_types": ["full_attention"] * 7}, ()),
    ],
)
def test_what_each_layer_sees(
    tmp_path: Path, given: dict[str, Any], windows: tuple[int | None, ...]
) -> None:
    assert read(tmp_path, tiny_llama3() | given).windows == windows


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"layer_types": ["full_attention"]}, "layer_types is .*not a list of 2"),
        (
            {"layer_types": ["full_attention", "linear"]},
            "layer of type 'linear' is not supported",
        ),
        ({"model_type": "gemma3", "text_config": {}}, "text and images"),
        (GEMMA | {"hidden_activation": "gelu"}, "activation 'gelu'"),
        (GEMMA | {"final_logit_softcapping": -1}, "final_logit_softcapping is -1"),
        (
            {"model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 5},
            "num_experts_per_tok is 5, not one of up to 4",
        ),
        (
            {"model_type": "smollm3", "no_rope_layers": [1]},
            r"no_rope_layers is \[1\], not a list of 0 and 1 for 2 layers",
        ),
        (GEMMA | {"sliding_window": 0}, "sliding_window is 0"),
    ],
)
def test_what_is_not_built_is_named(tmp_path: Path, given: dict[str, Any], problem: str) -> None:
    with pytest.raises(ModelFileError, match=problem):
        read(tmp_path, tiny_llama3() | given)


def test_base_frequencies_of_gemma_in_old_and_new_spelling(tmp_path: Path) -> None:
    old = read(
        tmp_path,
        tiny_llama3()
        | GEMMA
        | {"rope_parameters": None, "rope_theta": 5e5, "rope_local_base_freq": 7e3},
    )
    new = read(
        tmp_path,
        tiny_llama3()
        | GEMMA
        | {
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 5e5},
                "sliding_attention": {"rope_type": "default", "rope_theta": 7e3},
            }
        },
    )
    for config in (old, new):
        assert (config.rope, config.local_rope) == (Rope(5e5, 16), Rope(7e3, 16))
        assert config.norm_offset == 1.0
