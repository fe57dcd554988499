"""Pooling of hidden states, and what a directory says of it."""

import json
from pathlib import Path

import numpy as np
import pytest

from engine.pooling import Kind, Pooling
from engine.scheduler import whole_budget
from models.errors import ModelFileError
from models.pooling import longest_prompt, read_pooling

ROWS = np.array([[3, -4], [1, 8], [-1, 2]], np.float32)


@pytest.mark.parametrize(
    ("kind", "pooled"),
    [("cls", [3, -4]), ("last", [-1, 2]), ("max", [3, 8]), ("mean", [1, 2])],
)
def test_what_of_the_rows_is_the_embedding(kind: Kind, pooled: list[float]) -> None:
    np.testing.assert_array_equal(Pooling(kind, normalise=False).embedding(ROWS), pooled)
    unit = np.array(pooled) / np.hypot(*pooled)
    np.testing.assert_allclose(Pooling(kind, normalise=True).embedding(ROWS), unit, rtol=1e-6)


def test_zeros_have_no_direction() -> None:
    zeros = np.zeros((2, 3), np.float32)
    np.testing.assert_array_equal(Pooling("mean", normalise=True).embedding(zeros), zeros[0])


def write(path: Path, value: object) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value))


def modules(*types: str) -> list[dict[str, str]]:
    paths = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    return [{"path": paths.get(t, t), "type": f"sentence_transformers.models.{t}"} for t in types]


def test_without_files_it_is_the_mean_of_length_1(tmp_path: Path) -> None:
    assert read_pooling(tmp_path) == Pooling("mean", normalise=True)
    assert longest_prompt(tmp_path, 512) == 512


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_mean_tokens": True, "word_embedding_dimension": 8}, "mean"),
        ({"pooling_mode_lasttoken": True}, "last"),
        ({"pooling_mode": "max"}, "max"),
    ],
)
def test_modules_and_their_configs(
    config: dict[str, object], kind: Kind, normalise: bool, tmp_path: Path
) -> None:
    named = ["Transformer", "Pooling", *["Normalize"] * normalise]
    write(tmp_path / "modules.json", modules(*named))
    write(tmp_path / "1_Pooling" / "config.json", config)
    assert read_pooling(tmp_path) == Pooling(kind, normalise)


def test_the_longest_text_is_what_the_model_was_made_for(tmp_path: Path) -> None:
    write(tmp_path / "sentence_bert_config.json", {"max_seq_length": 256, "do_lower_case": False})
    assert longest_prompt(tmp_path, 512) == 256
    assert longest_prompt(tmp_path, 128) == 128


@pytest.mark.parametrize(
    "config",
    [
        {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True},
        {"pooling_mode_weightedmean_tokens": True},
        {"pooling_mode": "attention"},
        {"pooling_mode_mean_tokens": False},
    ],
)
def test_another_pooling_is_refused(config: dict[str, object], tmp_path: Path) -> None:
    write(tmp_path / "1_Pooling" / "config.json", config)
    with pytest.raises(ModelFileError, match=r"pooling by .* is not supported"):
        read_pooling(tmp_path)


@pytest.mark.parametrize("value", [{}, ["Dense"], modules("Transformer", "Pooling", "Dense")])
def test_other_modules_are_refused(value: object, tmp_path: Path) -> None:
    write(tmp_path / "modules.json", value)
    with pytest.raises(ModelFileError, match=r"list|not an object|'Dense' is not supported"):
        read_pooling(tmp_path)


def test_prompts_are_taken_whole_and_the_oldest_always_is() -> None:
    assert whole_budget([5, 9, 3, 2], 10) == [5, 0, 3, 2]
    assert whole_budget([10, 1], 10) == [10, 0]
