"""Fixtures that tests of several folders share; it also puts this folder on the import path."""

from collections.abc import Iterator

import pytest
from real_server import RealServer, pull_error


@pytest.fixture(scope="session")
def real_server() -> Iterator[RealServer]:
    """`egglm serve` with the default model, ready; skips where the model cannot be fetched."""
    error = pull_error()
    if error is not None:
        pytest.skip(f"the default model cannot be fetched: {error}")
    with RealServer("--max-model-len", "512") as server:
        server.wait_ready()
        yield server
