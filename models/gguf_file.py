"""Reading GGUF files (version 2 and 3): metadata, the tensor table, and the mapped data.

The format is described in ggml's docs/gguf.md. Everything that the header claims is checked against the file's size
before it is believed.
"""

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from engine.ops.base import Array
from models.errors import ModelFileError
from models.gguf_quants import FORMATS, QuantFormat

_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_STRING, _ARRAY = 8, 9
_PLAIN = {0: np.dtype(np.float32), 1: np.dtype(np.float16), 30: np.dtype(ml_dtypes.bfloat16)}
_MAX_DIMS = 4


@dataclass(frozen=True)
class GgufTensor:
    """One entry of the tensor table: `shape` is row-major (GGUF's order reversed), `start` its place in the file."""

    name: str
    shape: tuple[int, ...]
    kind: np.dtype[Any] | QuantFormat
    start: int
    size: int


class GgufFile:
    """A mapped GGUF file. Raises `ModelFileError` for what is no whole GGUF file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError:
            raise ModelFileError(path, "there is no such file") from None
        except (OSError, ValueError) as error:
            raise ModelFileError(path, f"it cannot be read: {error}") from None
        self.metadata: dict[str, Any] = {}
        self.tensors: dict[str, GgufTensor] = {}
        try:
            self._read_header()
        except (struct.error, UnicodeDecodeError, IndexError) as error:
            raise ModelFileError(path, f"its header is damaged or cut off ({error})") from None

    def close(self) -> None:
        self._map.close()

    def raw(self, name: str) -> Array:
        """A tensor's bytes, u8, copied from the map."""
        tensor = self.tensors[name]
        return np.frombuffer(self._map[tensor.start : tensor.start + tensor.size], np.uint8)

    def _read_header(self) -> None:
        if self._map[:4] != b"GGUF":
            raise ModelFileError(self.path, "it is no GGUF file (its first bytes are not 'GGUF')")
        version, tensors, pairs = struct.unpack_from("<IQQ", self._map, 4)
        if version not in (2, 3):
            raise ModelFileError(
                self.path, f"GGUF version {version} is not supported (2 and 3 are)"
            )
        reader = _Reader(self._map, 24, self.path)
        # The smallest entries take 13 and 24 bytes: more of them than fit is a lie.
        if pairs * 13 + tensors * 24 > len(self._map):
            raise ModelFileError(self.path, f"its header claims {pairs} keys and {tensors} tensors")
        for _ in range(pairs):
            key = reader.text()
            self.metadata[key] = reader.value(reader.scalar(4))
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 1 <= alignment <= 1 << 20:
            raise ModelFileError(self.path, f"general.alignment is {alignment!r}")
        entries = [self._entry(reader) for _ in range(tensors)]
        base = -(-reader.at // alignment) * alignment
        for name, shape, kind, offset, size in entries:
            start = base + offset
            if start + size > len(self._map):
                raise ModelFileError(
                    self.path,
                    f"tensor {name!r} ends at byte {start + size} and the file has {len(self._map)}: it is cut off",
                )
            if name in self.tensors:
                raise ModelFileError(self.path, f"tensor {name!r} is there twice")
            self.tensors[name] = GgufTensor(name, shape, kind, start, size)

    def _entry(
        self, reader: "_Reader"
    ) -> tuple[str, tuple[int, ...], np.dtype[Any] | QuantFormat, int, int]:
        name = reader.text()
        rank = reader.scalar(4)
        if rank > _MAX_DIMS:
            raise ModelFileError(self.path, f"tensor {name!r} claims {rank} dimensions")
        shape = tuple(reader.scalar(10) for _ in range(rank))[::-1]
        kind_id, offset = reader.scalar(4), reader.scalar(10)
        count = 1
        for dim in shape:
            count *= dim
        if kind_id in _PLAIN:
            return name, shape, _PLAIN[kind_id], offset, count * _PLAIN[kind_id].itemsize
        if kind_id not in FORMATS:
            known = ", ".join(["F32", "F16", "BF16", *(f.name for f in FORMATS.values())])
            raise ModelFileError(
                self.path,
                f"tensor {name!r} has GGUF type {kind_id}, which is not supported ({known} are)",
            )
        kind = FORMATS[kind_id]
        if not shape or shape[-1] % kind.block:
            raise ModelFileError(
                self.path,
                f"tensor {name!r} of type {kind.name} has rows of {shape[-1:]} elements, no multiple of {kind.block}",
            )
        return name, shape, kind, offset, count // kind.block * kind.size


class _Reader:
    def __init__(self, data: mmap.mmap, at: int, path: Path) -> None:
        self._data, self.at, self._path = data, at, path

    def scalar(self, kind: int) -> Any:
        form = "<" + _SCALARS[kind]
        (value,) = struct.unpack_from(form, self._data, self.at)
        self.at += struct.calcsize(form)
        return value

    def text(self) -> str:
        (length,) = struct.unpack_from("<Q", self._data, self.at)
        self._need(8 + length)
        raw = self._data[self.at + 8 : self.at + 8 + length]
        self.at += 8 + length
        return raw.decode("utf-8", errors="surrogateescape")

    def _texts(self, count: int) -> list[str]:
        """`count` times `text`, without its calls: vocabularies are long."""
        texts, data, at, end = [], self._data, self.at, len(self._data)
        length_at = struct.Struct("<Q").unpack_from
        for _ in range(count):
            start = at + 8
            at = start + length_at(data, at)[0] if start <= end else end + 1
            if at > end:
                raise self._cut_off()
            texts.append(data[start:at].decode("utf-8", errors="surrogateescape"))
        self.at = at
        return texts

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            item, count = self.scalar(4), self.scalar(10)
            if item == _STRING:
                self._need(8 * count)
                return self._texts(count)
            if item not in _SCALARS:
                raise ModelFileError(self._path, f"its metadata has an array of type {item}")
            dtype = np.dtype("<" + _SCALARS[item])
            self._need(dtype.itemsize * count)
            values = np.frombuffer(self._data[self.at : self.at + dtype.itemsize * count], dtype)
            self.at += dtype.itemsize * count
            return values.tolist()
        if kind not in _SCALARS:
            raise ModelFileError(self._path, f"its metadata has a value of type {kind}")
        return self.scalar(kind)

    def _need(self, size: int) -> None:
        if self.at + size > len(self._data):
            raise self._cut_off()

    def _cut_off(self) -> ModelFileError:
        return ModelFileError(
            self._path, "its header is cut off, or claims more than the file holds"
        )
