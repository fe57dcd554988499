"""The C that every generated kernel and the driver begin with."""

from pathlib import Path

_HEADERS = ("context.h", "numbers.h", "vectors.h", "quantized.h")
PRELUDE = "\n".join((Path(__file__).parent / name).read_text() for name in _HEADERS)
