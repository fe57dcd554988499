"""Reading safetensors directories, single or sharded, one tensor at a time from mapped files."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open

from engine.ops.base import Array
from models.errors import ModelFileError

_TYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "I8": np.dtype(np.int8),
    "U8": np.dtype(np.uint8),
}
_WEIGHT_TYPES = ("F32", "F16", "BF16")
"""Those that weights have by themselves; the others are parts of quantised ones."""


class _Entry(NamedTuple):
    path: Path
    kind: str
    shape: tuple[int, ...]
    start: int  # byte of the file
    stop: int


class SafetensorsFiles:
    """The shards of a directory. Raises `ModelFileError`, naming file and tensor."""

    def __init__(self, directory: Path) -> None:
        self._entries: dict[str, _Entry] = {}
        self._bytes: dict[Path, Array] = {}
        index = directory / "model.safetensors.index.json"
        if index.exists():
            named = self._read_index(index)
            shards = sorted({directory / shard for shard in named.values()})
        else:
            named, shards = {}, [directory / "model.safetensors"]
        for shard in shards:
            self._read_shard(shard)
        for name, home in named.items():
            if name not in self._entries or self._entries[name].path != directory / home:
                raise ModelFileError(directory / home, f"tensor {name!r} of the index is not in it")

    def names(self) -> list[str]:
        return list(self._entries)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._entries[name].shape

    def bytes_of(self, name: str) -> int:
        return self._entries[name].stop - self._entries[name].start

    def dtype(self, name: str) -> np.dtype[Any]:
        """Raises `ModelFileError` for a type that no part of a weight has."""
        return _TYPES[self._known(name, tuple(_TYPES))]

    def weight_dtype(self, name: str) -> np.dtype[Any]:
        """Raises `ModelFileError` for a type that weights do not have by themselves."""
        return _TYPES[self._known(name, _WEIGHT_TYPES)]

    def tensor(self, name: str) -> Array:
        """A view of the mapped file."""
        entry = self._entries[name]
        raw = self._bytes[entry.path][entry.start : entry.stop]
        found: Array = raw.view(self.dtype(name)).reshape(entry.shape)
        return found

    def wrong(self, name: str, problem: str) -> ModelFileError:
        """The error for a tensor, with the file that it is in."""
        return ModelFileError(self._entries[name].path, f"tensor {name!r} {problem}")

    def close(self) -> None:
        self._bytes.clear()

    def _known(self, name: str, known: tuple[str, ...]) -> str:
        kind = self._entries[name].kind
        if kind not in known:
            raise self.wrong(
                name, f"has type {kind}, which is not supported ({', '.join(known)} are)"
            )
        return kind

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
        """Its library checks the header: sizes that do not fit the types and shapes, overlaps, holes."""
        if not path.exists():
            raise ModelFileError(path, "there is no such file")
        try:
            with safe_open(str(path), framework="numpy"):
                raw = np.asarray(np.memmap(path, np.uint8, mode="r"))
        except (SafetensorError, OSError) as error:
            raise ModelFileError(path, f"it is no whole safetensors file: {error}") from None
        base = 8 + int(raw[:8].view("<u8")[0])
        self._bytes[path] = raw
        header = json.loads(raw[8:base].tobytes())
        header.pop("__metadata__", None)
        for name, entry in header.items():
            if name in self._entries:
                raise ModelFileError(
                    path, f"tensor {name!r} is also in {self._entries[name].path.name}"
                )
            start, stop = (base + offset for offset in entry["data_offsets"])
            shape = tuple(entry["shape"])
            self._entries[name] = _Entry(path, entry["dtype"], shape, start, stop)
