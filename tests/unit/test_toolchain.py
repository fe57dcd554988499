"""Finding a C compiler and building with it."""

import ctypes
import stat
from pathlib import Path

import pytest

from engine.runtimes.toolchain import Toolchain, ToolchainError, find_toolchain

ANSWER = "int answer(void) { return 42; }\n"


@pytest.fixture
def counting(tmp_path: Path) -> tuple[Toolchain, Path]:
    """The machine's compiler behind a script that writes a line for every run, and the file with the lines."""
    log, script = tmp_path / "log", tmp_path / "compiler"
    command = " ".join(find_toolchain().command)
    script.write_text(f'#!/bin/sh\necho run >> {log}\nexec {command} "$@"\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return Toolchain((str(script),)), log


def test_a_library_has_the_programs_functions(tmp_path: Path) -> None:
    path = find_toolchain().library(ANSWER, tmp_path / "made" / "when missing")
    assert ctypes.CDLL(str(path)).answer() == 42


def test_the_same_program_is_compiled_once(
    counting: tuple[Toolchain, Path], tmp_path: Path
) -> None:
    toolchain, log = counting
    first = toolchain.library(ANSWER, tmp_path)
    runs = log.read_text().count("run")
    assert toolchain.library(ANSWER, tmp_path) == first
    assert log.read_text().count("run") == runs
    assert toolchain.library(ANSWER.replace("42", "43"), tmp_path) != first
    assert log.read_text().count("run") == runs + 1


def test_other_flags_make_another_library(tmp_path: Path) -> None:
    ours = find_toolchain()
    other = Toolchain(ours.command, (*ours.flags, "-DX"))
    assert ours.library(ANSWER, tmp_path) != other.library(ANSWER, tmp_path)


def test_a_refused_program_leaves_nothing_behind_and_shows_the_compilers_words(
    tmp_path: Path,
) -> None:
    with pytest.raises(ToolchainError, match=r"error: .*undeclared"):
        find_toolchain().library("int f(void) { return missing; }\n", tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_compiler_in_cc_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    command = find_toolchain().command
    monkeypatch.setenv("CC", " ".join((*command, "-DCHOSEN")))
    assert find_toolchain().command == (*command, "-DCHOSEN")


def test_a_compiler_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(ToolchainError, match="no-such-compiler"):
        find_toolchain()


def test_a_compiler_that_does_not_run_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = find_toolchain()
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert find_toolchain().command != ("cc",)
    assert real.command
