"""What can be wrong with model files."""

from pathlib import Path

from engine.errors import LoadError


class ModelFileError(LoadError):
    """A model's files cannot be served; the message names the file and what is wrong in it."""

    def __init__(self, path: Path | str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path, self.problem = Path(path), problem


class PullError(OSError):
    """A model's files cannot be fetched; the message says which, why, and what may help."""
