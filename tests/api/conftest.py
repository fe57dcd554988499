"""Fixtures: servers over a scripted engine, and clients of them."""

from collections.abc import Iterator

import httpx
import openai
import pytest
from scripted import ScriptedEngine, write_tokenizer
from served import ServedScript, ServeScript

from models.tokenizer import Tokenizer, load_tokenizer
from server.settings import Settings


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    return load_tokenizer(folder)


@pytest.fixture
def serve_script(tokenizer: Tokenizer) -> Iterator[ServeScript]:
    """Starts servers over scripted engines; keyword arguments are settings."""
    running: list[ServedScript] = []

    def start(**settings: object) -> ServedScript:
        running.append(ServedScript(tokenizer, Settings(**settings)))
        return running[-1]

    yield start
    for served in running:
        served.close()


@pytest.fixture(scope="session")
def shared_server(tokenizer: Tokenizer) -> Iterator[ServedScript]:
    shared = ServedScript(tokenizer, Settings())
    yield shared
    shared.close()


@pytest.fixture
def served(shared_server: ServedScript) -> ServedScript:
    """A server with the default settings, as good as new."""
    shared_server.engine.reset()
    return shared_server


@pytest.fixture
def engine(served: ServedScript) -> ScriptedEngine:
    return served.engine


@pytest.fixture
def client(served: ServedScript) -> openai.OpenAI:
    return served.client()


@pytest.fixture
def http(served: ServedScript) -> Iterator[httpx.Client]:
    with served.http() as client:
        yield client
