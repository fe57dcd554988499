"""Reading safetensors directories, single or sharded, one tensor at a time from mapped files."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open

from engine.ops.base import Array
from models.errors import ModelFileError

_TYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}


class SafetensorsFiles:
    """The shards of a directory. Raises `ModelFileError`, naming file and tensor."""

    def __init__(self, directory: Path) -> None:
        self._where: dict[str, Path] = {}
        self._shapes: dict[str, tuple[tuple[int, ...], str]] = {}
        self._open: dict[Path, Any] = {}
        index = directory / "model.safetensors.index.json"
        if index.exists():
            named = self._read_index(index)
            shards = sorted({directory / shard for shard in named.values()})
        else:
            named, shards = {}, [directory / "model.safetensors"]
        for shard in shards:
            self._read_shard(shard)
        for name, home in named.items():
            if self._where.get(name) != directory / home:
                raise ModelFileError(directory / home, f"tensor {name!r} of the index is not in it")
        self.size_bytes = sum(shard.stat().st_size for shard in shards)

    def names(self) -> list[str]:
        return list(self._where)

    def describe(self, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Shape and type of a tensor. Raises `ModelFileError` for a type that weights do not have."""
        shape, kind = self._shapes[name]
        if kind not in _TYPES:
            raise ModelFileError(
                self._where[name],
                f"tensor {name!r} has type {kind}, which is not supported ({', '.join(_TYPES)} are)",
            )
        return shape, _TYPES[kind]

    def tensor(self, name: str) -> Array:
        path = self._where[name]
        value: Array = self._open[path].get_tensor(name)
        return value

    def close(self) -> None:
        self._open.clear()

    @staticmethod
    def _read_index(path: Path) -> dict[str, str]:
        try:
            named = json.loads(path.read_text())["weight_map"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ModelFileError(path, f"it is no index of shards: {error!r}") from None
        if not isinstance(named, dict):
            raise ModelFileError(path, "its weight_map is no JSON object")
        inside = all(isinstance(n, str) and Path(n).name == n for n in named.values())
        if not inside:
            raise ModelFileError(path, "it names a shard outside its directory")
        return dict(named)

    def _read_shard(self, path: Path) -> None:
        if not path.exists():
            raise ModelFileError(path, "there is no such file")
        try:
            file: Any = safe_open(str(path), framework="numpy")
        except (SafetensorError, OSError) as error:
            raise ModelFileError(path, f"it is no whole safetensors file: {error}") from None
        self._open[path] = file
        for name in file.keys():  # noqa: SIM118
            part = file.get_slice(name)
            self._where[name] = path
            self._shapes[name] = (tuple(part.get_shape()), part.get_dtype())
