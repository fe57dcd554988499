"""Values of a config, checked as they are read, whatever file they come from."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from models.errors import ModelFileError


class Fields:
    """Values under Hugging Face's keys. Raises `ModelFileError`, naming file and key.

    `names` are what the file itself calls some keys, where that is something else; `is_gguf` tells for the few values
    that GGUF has in another form.
    """

    def __init__(
        self,
        path: Path,
        raw: Mapping[str, Any],
        *,
        is_gguf: bool = False,
        names: Mapping[str, str] | None = None,
        prefix: str = "",
    ) -> None:
        self.path, self.is_gguf = path, is_gguf
        self._raw, self._names, self._prefix = raw, names or {}, prefix

    @property
    def keys(self) -> list[str]:
        """What the file itself has."""
        return list(self._raw)

    def size(self, key: str, default: int | None = None) -> int:
        """A whole number from 1 on."""
        value = self.value(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.wrong(key, "a positive number")
        return value

    def constant(self, key: str, default: float | None = None) -> float:
        """A finite number above 0."""
        value = self.value(key, default)
        if not _is_number(value) or value <= 0:
            raise self.wrong(key, "a positive number")
        return float(value)

    def constants(self, key: str, count: int) -> tuple[float, ...]:
        """A list of so many finite numbers above 0."""
        values = self.value(key)
        if not isinstance(values, list) or len(values) != count:
            raise self.wrong(key, f"a list of {count} numbers")
        if not all(_is_number(value) and value > 0 for value in values):
            raise self.wrong(key, "a list of positive numbers")
        return tuple(float(value) for value in values)

    def optional(self, key: str, default: float | None = None) -> float | None:
        """A finite number above 0, or None where the file says null; `default` where it says nothing."""
        if key not in self._raw:
            return default
        return None if self._raw[key] is None else self.constant(key)

    def inside(self, key: str) -> "Fields":
        """Those of an object, none if it is not there."""
        value = self.value(key, {})
        if not isinstance(value, Mapping):
            raise self.wrong(key, "an object")
        prefix = f"{self._prefix}{key}."
        return Fields(self.path, value, is_gguf=self.is_gguf, names=self._names, prefix=prefix)

    def value(self, key: str, default: Any = None) -> Any:
        """As it is; a null stands for a key that is not there."""
        value = self._raw.get(key)
        return default if value is None else value

    def wrong(self, key: str, right: str) -> ModelFileError:
        """The error for a key whose value should be `right`."""
        name = self._prefix + key
        return ModelFileError(
            self.path, f"{self._names.get(name, name)} is {self._raw.get(key)!r}, not {right}"
        )

    def unsupported(self, what: str, *supported: str) -> ModelFileError:
        """The error for something that is not built, with what is in its place."""
        known = f" (supported: {', '.join(supported)})" if supported else ""
        return ModelFileError(self.path, f"{what} is not supported{known}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
