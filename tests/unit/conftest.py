"""Model files that unit tests read; where they cannot be had, those tests are skipped."""

from pathlib import Path

import pytest
from real_server import small_model

from models.errors import PullError
from models.pull import default_cache_dir, resolve
from models.tokenizer import Tokenizer, load_tokenizer


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The default model: byte-level BPE, Q4_1."""
    try:
        return resolve(None, default_cache_dir())
    except PullError as error:
        pytest.skip(f"the default model cannot be fetched: {error}")


@pytest.fixture(scope="session")
def stories() -> Path:
    """stories260K.gguf: SentencePiece, f32, a megabyte."""
    path = small_model()
    if path is None:
        pytest.skip("stories260K.gguf is not at hand")
    return path


@pytest.fixture(scope="session")
def smollm2_tokenizer(smollm2: Path) -> Tokenizer:
    return load_tokenizer(smollm2)


@pytest.fixture(scope="session")
def stories_tokenizer(stories: Path) -> Tokenizer:
    return load_tokenizer(stories)
