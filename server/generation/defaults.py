"""A model's own sampling defaults, from its generation_config.json."""

import json
import math
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class SamplingDefaults:
    """Used where a request is silent. Without a checkpoint's word they are OpenAI's."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0


def read_sampling_defaults(checkpoint: Path) -> SamplingDefaults:
    """The defaults beside the weights in `checkpoint`, a directory; a single file (GGUF) has none.

    A value that is missing, null or no finite number is left at OpenAI's default.
    """
    path = checkpoint / "generation_config.json"
    if not path.is_file():
        return SamplingDefaults()
    found = json.loads(path.read_text(encoding="utf-8"))
    plain = SamplingDefaults()

    def number(name: str, default: float) -> float:
        value = found.get(name)
        usable = isinstance(value, int | float) and math.isfinite(value)
        return float(value) if usable else default

    return SamplingDefaults(
        temperature=number("temperature", plain.temperature),
        top_p=number("top_p", plain.top_p),
        top_k=int(number("top_k", plain.top_k)),
        min_p=number("min_p", plain.min_p),
        repetition_penalty=number("repetition_penalty", plain.repetition_penalty),
    )
