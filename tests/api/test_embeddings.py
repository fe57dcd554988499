"""POST /v1/embeddings, over a scripted engine whose vectors tell the prompts that they are of."""

import base64
import re
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import openai
import pytest
from scripted import BOS, CONTEXT, VOCAB_SIZE, ScriptedEngine
from served import eventually

from server.settings import Settings


@pytest.fixture(autouse=True)
def _embeds(engine: ScriptedEngine) -> None:
    engine.embeds()


def test_the_official_client_gets_a_vector_for_each_input(client: openai.OpenAI) -> None:
    answer = client.embeddings.create(model=client.models.list().data[0].id, input=["abc", "z"])
    assert [item.index for item in answer.data] == [0, 1]
    assert [item.embedding for item in answer.data] == [[4, BOS, 1], [2, BOS, 1]]
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == 6


@pytest.mark.parametrize(
    ("given", "vectors"),
    [
        ("abc", [[4, BOS, 1]]),
        ([7, 8], [[2, 7, 1]]),
        ([[7, 8], [9]], [[2, 7, 1], [1, 9, 1]]),
        (["a", [9]], [[2, BOS, 1], [1, 9, 1]]),
    ],
)
def test_forms_of_the_input(http: httpx.Client, given: object, vectors: list[list[float]]) -> None:
    answer = http.post("/v1/embeddings", json={"input": given}).raise_for_status().json()
    assert [item["embedding"] for item in answer["data"]] == vectors


def test_base64_has_the_same_numbers(http: httpx.Client) -> None:
    body = {"input": "abc", "encoding_format": "base64"}
    [item] = http.post("/v1/embeddings", json=body).json()["data"]
    found = np.frombuffer(base64.b64decode(item["embedding"]), "<f4")
    assert found.tolist() == [4, BOS, 1]


def test_dimensions_cut_an_embedding_to_length_1(http: httpx.Client) -> None:
    body = {"input": [3, 3, 3, 3], "dimensions": 2}
    [item] = http.post("/v1/embeddings", json=body).json()["data"]
    np.testing.assert_allclose(item["embedding"], [0.8, 0.6], rtol=1e-6)


def test_more_inputs_than_the_engine_runs_are_answered_in_order(
    http: httpx.Client, engine: ScriptedEngine
) -> None:
    engine.queue_limit = Settings().max_num_seqs
    inputs = [[1 + i % 9] * (1 + i % 5) for i in range(3 * engine.queue_limit)]
    answer = http.post("/v1/embeddings", json={"input": inputs}).raise_for_status().json()
    assert [item["embedding"][:2] for item in answer["data"]] == [[len(x), x[0]] for x in inputs]
    assert [item["index"] for item in answer["data"]] == list(range(len(inputs)))


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({}, "input", "required"),
        ({"input": ""}, "input", "must not be empty"),
        ({"input": []}, "input", "must not be empty"),
        ({"input": ["a", ""]}, "input", "must not be empty"),
        ({"input": [1.5]}, "input", "must be a string"),
        ({"input": ["a"] * 2049}, "input", "more than 2048"),
        ({"input": [VOCAB_SIZE]}, "input", "outside of the vocabulary"),
        ({"input": ["ok", "x" * CONTEXT]}, "input", rf"input\[1\].* {CONTEXT} tokens"),
        ({"input": "x", "dimensions": 0}, "dimensions", "greater than or equal to 1"),
        ({"input": "x", "dimensions": 4}, "dimensions", "have 3"),
        ({"input": "x", "encoding_format": "int8"}, "encoding_format", "'float' or 'base64'"),
        ({"input": "x", "truncate_prompt_tokens": 5}, "truncate_prompt_tokens", "not support"),
    ],
)
def test_what_is_wrong_is_named(
    http: httpx.Client, body: dict[str, object], param: str, message: str
) -> None:
    answer = http.post("/v1/embeddings", json=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == param
    assert re.search(message, error["message"])


def test_a_text_that_is_too_long_has_the_code_that_clients_know(http: httpx.Client) -> None:
    error = http.post("/v1/embeddings", json={"input": "x" * CONTEXT}).json()["error"]
    assert error["code"] == "context_length_exceeded"


def test_a_model_that_embeds_does_not_generate(http: httpx.Client) -> None:
    for path, body in (
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
    ):
        answer = http.post(path, json=body)
        assert answer.status_code == 400
        assert "/v1/embeddings" in answer.json()["error"]["message"]


def test_a_model_that_generates_does_not_embed(http: httpx.Client, engine: ScriptedEngine) -> None:
    engine.reset()
    answer = http.post("/v1/embeddings", json={"input": "x"})
    assert answer.status_code == 400
    assert "makes no embeddings" in answer.json()["error"]["message"]


def test_a_full_queue_answers_429_and_leaves_nothing_behind(
    http: httpx.Client, engine: ScriptedEngine
) -> None:
    engine.queue_limit = 0
    assert http.post("/v1/embeddings", json={"input": "x"}).status_code == 429
    assert not engine.active


def test_an_engine_that_dies_answers_503(http: httpx.Client, engine: ScriptedEngine) -> None:
    engine.gate.clear()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(http.post, "/v1/embeddings", json={"input": ["x", "y"]})
        eventually(lambda: len(engine.active) == 2)
        engine.die()
        assert waiting.result().status_code == 503
    eventually(lambda: not engine.active)


def test_a_client_that_goes_away_aborts_its_inputs(
    http: httpx.Client, engine: ScriptedEngine
) -> None:
    engine.gate.clear()
    with pytest.raises(httpx.ReadTimeout):
        http.post("/v1/embeddings", json={"input": ["x", "y"]}, timeout=0.2)
    eventually(lambda: bool(engine.seen) and not engine.active)
