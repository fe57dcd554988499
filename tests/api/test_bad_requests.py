"""A bad request gets a 400 that names the field, and the next good one is served."""

import json

import httpx
import openai
import pytest
from scripted import CONTEXT, VOCAB_SIZE, ScriptedEngine
from served import ServedScript, ServeScript

COMPLETION = {"model": "tiny", "prompt": "x"}
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}


def refused(http: httpx.Client, path: str, body: object) -> dict:
    """The error object of a 400, after which the server serves on."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = http.post(path, content=content)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert http.post("/v1/completions", json=COMPLETION).status_code == 200
    assert http.get("/health").status_code == 200
    return error


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": ["a", ""]}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": 7}, "prompt"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [1.5]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": [[1], [None]]}, "prompt"),
        ({"prompt": [10**9]}, "prompt"),
        ({"prompt": [-5]}, "prompt"),
        ({"prompt": [VOCAB_SIZE]}, "prompt"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"top_k": 1.5}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"seed": "abc"}, "seed"),
        ({"seed": 2**64}, "seed"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": "ten"}, "max_tokens"),
        ({"max_tokens": 10**30}, "prompt"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", ""]}, "stop"),
        ({"stop": [1]}, "stop"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop_token_ids": [VOCAB_SIZE]}, "stop_token_ids"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"logit_bias": {"999999": 5}}, "logit_bias"),
        ({"logit_bias": {"a": 5}}, "logit_bias"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"logit_bias": {"5": "x"}}, "logit_bias"),
        ({"logit_bias": [5]}, "logit_bias"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"frequency_penalty": -3}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": 1}, "stream_options"),
        ({"request_id": "two words"}, "request_id"),
        ({"request_id": "x" * 129}, "request_id"),
        ({"best_of": 2}, "best_of"),
        ({"suffix": "!"}, "suffix"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"structured_outputs": {"json_object": False}}, "structured_outputs"),
        ({"guided_json": {}}, "guided_json"),
        ({"bad_words": ["x"]}, "bad_words"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
    ],
)
def test_completions(http: httpx.Client, fields: dict, param: str) -> None:
    error = refused(http, "/v1/completions", COMPLETION | fields)
    assert error["param"] == param
    assert param in error["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "wizard", "content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 1}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{}]}]}, "messages[0].content[0].type"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages[0].content",
        ),
        ({"messages": [{"role": "user", "content": "REFUSE"}]}, "messages"),
        ({"logprobs": 5}, "logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"tools": []}, "tools"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"functions": []}, "functions"),
        ({"audio": {"voice": "alloy"}}, "audio"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"reasoning_effort": "high"}, "reasoning_effort"),
        ({"prediction": {"type": "content", "content": "x"}}, "prediction"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"chat_template": "x"}, "chat_template"),
        ({"echo": True}, "echo"),
        (
            {"add_generation_prompt": True, "continue_final_message": True},
            "continue_final_message",
        ),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
    ],
)
def test_chat(http: httpx.Client, fields: dict, param: str) -> None:
    error = refused(http, "/v1/chat/completions", CHAT | fields)
    assert error["param"] == param


def test_unbuilt_fields_have_their_own_code(http: httpx.Client) -> None:
    error = refused(http, "/v1/chat/completions", CHAT | {"tools": [{"type": "function"}]})
    assert error["code"] == "unsupported_parameter"
    assert "tools" in error["message"]


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": None, "tool_choice": "none", "response_format": {"type": "text"}},
        {"modalities": ["text"], "parallel_tool_calls": True},
        {"user": "u", "metadata": {"a": "b"}, "store": True, "service_tier": "auto"},
        {"no_such_field": 1, "x_vendor": {"a": [None]}},
        {"temperature": 1, "top_p": 1, "stop": None, "seed": None, "logit_bias": None, "n": None},
        {"max_tokens": 5, "max_completion_tokens": 2},
    ],
)
def test_fields_that_ask_for_nothing_pass(http: httpx.Client, fields: dict) -> None:
    assert http.post("/v1/chat/completions", json=CHAT | fields).status_code == 200


def test_the_template_speaks_for_itself(http: httpx.Client) -> None:
    messages = [{"role": "user", "content": "REFUSE"}]
    error = refused(http, "/v1/chat/completions", {"messages": messages})
    assert "Roles must alternate" in error["message"]


@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe", b'{"prompt": "x",}', b"null x"])
def test_bad_json(http: httpx.Client, body: bytes) -> None:
    error = refused(http, "/v1/completions", body)
    assert error["code"] == "invalid_json"
    assert "JSON" in error["message"]


@pytest.mark.parametrize("body", [[], "x", 5, None])
def test_json_that_is_no_object(http: httpx.Client, body: object) -> None:
    assert "object" in refused(http, "/v1/completions", body)["message"]


def test_errors_echo_little_of_the_body(http: httpx.Client) -> None:
    huge = ["x" * 100_000] * 10
    for body in ({"prompt": "x", "temperature": "9" * 1_000_000}, {"prompt": "x", "seed": huge}):
        assert len(refused(http, "/v1/completions", body)["message"]) < 1000
    many = [{"role": "nobody", "content": "x"}] * 5000
    assert len(refused(http, "/v1/chat/completions", {"messages": many})["message"]) < 5000


def test_unknown_model(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.completions.create(model="gpt-4o", prompt="x")
    assert caught.value.code == "model_not_found"
    assert caught.value.param == "model"
    assert "gpt-4o" in caught.value.message
    assert client.completions.create(model="alias", prompt="x").model == "tiny"


def test_unknown_path_and_method(http: httpx.Client) -> None:
    response = http.get("/v1/nothing")
    assert response.status_code == 404
    assert "/v1/nothing" in response.json()["error"]["message"]
    response = http.get("/v1/completions")
    assert response.status_code == 405
    assert response.headers["allow"] == "POST"
    assert response.json()["error"]["type"] == "invalid_request_error"


def test_a_body_above_the_limit(serve_script: ServeScript) -> None:
    served = serve_script(max_body_size=1000)
    with served.http() as http:
        body = json.dumps(COMPLETION | {"user": "x" * 1000}).encode()
        announced = http.post("/v1/completions", content=body)
        chunked = http.post("/v1/completions", content=iter([body[:600], body[600:]]))
        for response in (announced, chunked):
            assert response.status_code == 413
            assert "1000 bytes" in response.json()["error"]["message"]
        assert http.post("/v1/completions", json=COMPLETION).status_code == 200


def test_a_bug_is_a_500_without_its_details(served: ServedScript, http: httpx.Client) -> None:
    def broken(ids: object, params: object) -> list[int]:
        raise RuntimeError("secret detail")

    served.engine.script = broken
    response = http.post("/v1/completions", json=COMPLETION)
    assert response.status_code == 500
    assert response.headers["x-request-id"]
    assert response.json()["error"]["type"] == "server_error"
    assert "secret" not in response.text


class TestContextLength:
    """Prompts about as long as the context of `CONTEXT` tokens."""

    @pytest.mark.parametrize("tokens", [CONTEXT, CONTEXT + 1, 10 * CONTEXT])
    @pytest.mark.parametrize("stream", [False, True])
    def test_too_long(self, client: openai.OpenAI, tokens: int, stream: bool) -> None:
        with pytest.raises(openai.BadRequestError) as caught:
            client.completions.create(model="tiny", prompt=[5] * tokens, stream=stream)
        assert caught.value.code == "context_length_exceeded"
        assert f"maximum context length is {CONTEXT} tokens" in caught.value.message
        assert str(tokens) in caught.value.message

    @pytest.mark.parametrize("fields", [{}, {"max_tokens": 1}])
    def test_one_token_of_room(self, client: openai.OpenAI, fields: dict) -> None:
        answer = client.completions.create(model="tiny", prompt=[5] * (CONTEXT - 1), **fields)
        assert answer.choices[0].finish_reason == "length"
        assert answer.usage.completion_tokens == 1

    def test_prompt_and_answer_together(self, client: openai.OpenAI) -> None:
        with pytest.raises(openai.BadRequestError) as caught:
            client.completions.create(model="tiny", prompt=[5] * 100, max_tokens=29)
        assert caught.value.code == "context_length_exceeded"
        for number in (CONTEXT, 129, 100, 29):
            assert str(number) in caught.value.message

    def test_chat(self, client: openai.OpenAI) -> None:
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(
                model="tiny", messages=[{"role": "user", "content": "x" * CONTEXT}]
            )
        assert caught.value.code == "context_length_exceeded"
        assert caught.value.param == "messages"

    def test_an_answer_without_end_stops_at_the_context(
        self, client: openai.OpenAI, engine: ScriptedEngine
    ) -> None:
        engine.script = lambda ids, params: [70]
        answer = client.chat.completions.create(**CHAT)
        assert answer.choices[0].finish_reason == "length"
        assert answer.usage.total_tokens == CONTEXT


def test_more_choices_than_the_engine_could_ever_take(serve_script: ServeScript) -> None:
    served = serve_script(max_queue=2, max_num_seqs=4)
    with served.http() as http:
        response = http.post("/v1/completions", json=COMPLETION | {"n": 7})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "n"
