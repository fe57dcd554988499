"""`egglm cache`: what the cache folder holds, and emptying it."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

MODELS, PROGRAMS = "models", "native"
"""Folders of fetched model files, and of compiled programs with their libraries."""


@dataclass(frozen=True)
class Entry:
    """A model file, or the programs of a model with the libraries that they are in."""

    kind: str
    name: str
    bytes: int
    made: datetime


def entries(cache_dir: Path) -> Iterator[Entry]:
    """Models, then programs, each in order of age."""
    for path in _by_age(cache_dir / MODELS, "*"):
        if path.is_file():
            yield Entry("model", path.name, path.stat().st_size, _made(path))
    for path in _by_age(cache_dir / PROGRAMS, "*.json"):
        name, libraries = _described(path)
        files = [path, *(path.parent / library for library in libraries)]
        size = sum(file.stat().st_size for file in files if file.exists())
        yield Entry("programs", name, size, _made(path))


def print_entries(cache_dir: Path) -> None:
    """A table of what there is; libraries that several programs share count with each."""
    console = Console()
    table = Table("kind", "name", "MiB", "made", box=None)
    for entry in entries(cache_dir):
        size = f"{entry.bytes / (1 << 20):.1f}"
        table.add_row(entry.kind, entry.name, size, f"{entry.made:%Y-%m-%d %H:%M}")
    console.print(str(cache_dir), highlight=False)
    console.print(table if table.row_count else "(empty)", highlight=False)


def clear(cache_dir: Path, models: bool) -> int:
    """Delete the compiled programs, and the model files if asked to; returns the bytes that were freed.

    A server that runs keeps what it has open.
    """
    freed = 0
    for folder in (PROGRAMS, *([MODELS] if models else [])):
        files = [path for path in (cache_dir / folder).rglob("*") if path.is_file()]
        freed += sum(path.stat().st_size for path in files)
        shutil.rmtree(cache_dir / folder, ignore_errors=True)
    return freed


def _by_age(folder: Path, pattern: str) -> list[Path]:
    return sorted(folder.glob(pattern), key=lambda path: path.stat().st_mtime)


def _made(path: Path) -> datetime:
    return datetime.fromtimestamp(path.stat().st_mtime)


def _described(path: Path) -> tuple[str, list[str]]:
    """The model whose programs a file holds, and the names of their libraries."""
    try:
        body = json.loads(json.loads(path.read_text())["body"])
        return str(body["details"]["model"]), [str(name) for name in body["libraries"]]
    except (OSError, ValueError, KeyError, TypeError):
        return f"{path.name} (damaged, or of an older version)", []
