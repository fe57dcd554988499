"""The architectures that are supported, by the names that checkpoints give them."""

from importlib import import_module
from pathlib import Path

from models.architecture import Architecture
from models.errors import ModelFileError

# Hugging Face's model type, or GGUF's architecture -> the module that has `ARCHITECTURE`.
MODULES = {
    "bert": "models.bert",
    "gemma2": "models.gemma2",
    "gemma3": "models.gemma3",
    "gemma3_text": "models.gemma3",
    "llama": "models.llama",
    "mistral": "models.mistral",
    "phi3": "models.phi3",
    "qwen2": "models.qwen2",
    "qwen3": "models.qwen3",
    "qwen3_moe": "models.qwen3_moe",
    "qwen3moe": "models.qwen3_moe",
    "smollm3": "models.smollm3",
}


def find(path: Path, name: object) -> Architecture:
    """The architecture that a file at `path` names. Raises `ModelFileError` for one that is not there."""
    if not isinstance(name, str) or name not in MODULES:
        known = ", ".join(sorted(MODULES))
        raise ModelFileError(path, f"architecture {name!r} is not supported (supported: {known})")
    architecture = import_module(MODULES[name]).ARCHITECTURE
    assert isinstance(architecture, Architecture)
    return architecture
