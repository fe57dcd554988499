"""JSON files of a model's directory. All raise `ModelFileError` for what is not there or is no such JSON."""

import json
from pathlib import Path
from typing import Any

from models.errors import ModelFileError


def read_object(path: Path) -> dict[str, Any]:
    value = _read(path)
    if not isinstance(value, dict):
        raise ModelFileError(path, "it holds no JSON object")
    return value


def read_list(path: Path) -> list[Any]:
    value = _read(path)
    if not isinstance(value, list):
        raise ModelFileError(path, "it holds no JSON list")
    return value


def _read(path: Path) -> object:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelFileError(path, "there is no such file") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ModelFileError(path, f"it cannot be read as JSON: {error}") from None
