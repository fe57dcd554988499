"""`egglm cache` on folders made by hand."""

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from server.cli import app


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    models, programs = tmp_path / "models", tmp_path / "native"
    models.mkdir()
    programs.mkdir()
    (models / "some-model.gguf").write_bytes(bytes(3 << 20))
    (programs / "used.so").write_bytes(bytes(1 << 20))
    (programs / "other.so").write_bytes(bytes(1 << 20))
    body = json.dumps({"libraries": {"used.so": "0"}, "details": {"model": "Some-Model"}})
    (programs / "a.json").write_text(json.dumps({"sha256": "0", "body": body}))
    (programs / "b.json").write_text("{")
    os.utime(programs / "a.json", (1_000_036_800, 1_000_036_800))
    return tmp_path


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["cache", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_list_names_models_and_programs_with_their_libraries(cache: Path) -> None:
    lines = run("list", "--cache-dir", str(cache)).splitlines()
    rows = [line.split() for line in lines[2:]]
    assert rows[0][:3] == ["model", "some-model.gguf", "3.0"]
    assert rows[1][:4] == ["programs", "Some-Model", "1.0", "2001-09-09"]
    assert rows[2][:2] == ["programs", "b.json"]


def test_list_of_nothing(tmp_path: Path) -> None:
    assert "(empty)" in run("list", "--cache-dir", str(tmp_path / "none"))


def test_clear_leaves_models_unless_told(cache: Path) -> None:
    assert "freed 2.0 MiB" in run("clear", "--cache-dir", str(cache))
    assert not (cache / "native").exists()
    assert (cache / "models" / "some-model.gguf").exists()
    assert "freed 3.0 MiB" in run("clear", "--models", "--cache-dir", str(cache))
    assert not (cache / "models").exists()
