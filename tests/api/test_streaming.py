"""What a stream is made of, and that stop strings and characters are never cut wrongly."""

import json
from collections.abc import Iterator

import httpx
import openai
import pytest
from scripted import EOS, ScriptedEngine, bytes_of, whole
from served import ServedScript, ServeScript

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}


def lines(http: httpx.Client, path: str, body: dict[str, object]) -> Iterator[str]:
    with http.stream("POST", path, json=body) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        yield from response.iter_lines()


def chunks(http: httpx.Client, path: str, body: dict[str, object]) -> list[dict]:
    found = [line for line in lines(http, path, {**body, "stream": True}) if line]
    assert found[-1] == "data: [DONE]"
    assert all(line.startswith("data: ") for line in found)
    return [json.loads(line.removeprefix("data: ")) for line in found[:-1]]


def complete(client: openai.OpenAI, stream: bool, **fields: object) -> tuple[str, str, object]:
    """Text, finish reason and stop reason of one completion, streamed or not."""
    answer = client.completions.create(
        model="tiny", prompt="x", max_tokens=64, stream=stream, extra_body=fields
    )
    if not stream:
        choice = answer.choices[0]
        return choice.text, choice.finish_reason, choice.stop_reason
    seen = list(answer)
    assert all(chunk.choices[0].text for chunk in seen[:-1]), "a chunk without text"
    last = seen[-1].choices[0]
    text = "".join(chunk.choices[0].text for chunk in seen)
    return text, last.finish_reason, last.stop_reason


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("tokens_a_delta", [1, 3, 50])
class TestStopStrings:
    @pytest.fixture(autouse=True)
    def _play(self, engine: ScriptedEngine, tokens_a_delta: int) -> None:
        engine.tokens_a_delta = tokens_a_delta
        engine.script = lambda ids, params: [
            *bytes_of("abc"), whole("DEF"), whole("GHI"), *bytes_of("JKL"), EOS
        ]  # fmt: skip

    @pytest.mark.parametrize(
        ("stop", "text", "stop_reason"),
        [
            (["DEFGHIJ"], "abc", "DEFGHIJ"),
            (["E"], "abcD", "E"),
            ("bcD", "a", "bcD"),
            (["ZZZ"], "abcDEFGHIJKL", None),
            (["LM", "KLM"], "abcDEFGHIJKL", None),
            (["IJ", "GH"], "abcDEF", "GH"),
            (["CDE", "cDEFG", "DEFG"], "ab", "cDEFG"),
            (["EFGHI", "FG"], "abcDE", "FG"),
            (["abcDEFGHIJKL"], "", "abcDEFGHIJKL"),
        ],
    )
    def test_text_ends_before_the_match_that_ends_first(
        self, client: openai.OpenAI, stream: bool, stop: object, text: str, stop_reason: object
    ) -> None:
        assert complete(client, stream, stop=stop) == (text, "stop", stop_reason)

    def test_stop_string_can_be_kept(self, client: openai.OpenAI, stream: bool) -> None:
        fields = {"stop": ["EFG"], "include_stop_str_in_output": True}
        assert complete(client, stream, **fields) == ("abcDEFG", "stop", "EFG")

    def test_not_looked_for_before_min_tokens(self, client: openai.OpenAI, stream: bool) -> None:
        fields = {"stop": ["c", "J"], "min_tokens": 4}
        assert complete(client, stream, **fields) == ("abcDEFGHI", "stop", "J")

    def test_usage_counts_up_to_the_token_that_completed_it(
        self, client: openai.OpenAI, stream: bool
    ) -> None:
        fields = {"model": "tiny", "prompt": "x", "stop": "FG", "max_tokens": 64}
        if stream:
            usage = list(
                client.completions.create(
                    stream=True, stream_options={"include_usage": True}, **fields
                )
            )[-1].usage
        else:
            usage = client.completions.create(**fields).usage
        assert (usage.prompt_tokens, usage.completion_tokens) == (2, 5)

    def test_the_engine_is_told_to_stop(
        self, client: openai.OpenAI, engine: ScriptedEngine, stream: bool
    ) -> None:
        engine.script = lambda ids, params: bytes_of("abab")
        assert complete(client, stream, stop=["aba"], max_tokens=None)[0] == ""
        assert not engine.active


@pytest.mark.parametrize("stream", [False, True])
class TestCharacters:
    TEXT = "🫠龜 naïve"

    def test_no_chunk_holds_half_a_character(
        self, client: openai.OpenAI, engine: ScriptedEngine, stream: bool
    ) -> None:
        engine.script = lambda ids, params: [*bytes_of(self.TEXT), EOS]
        assert complete(client, stream)[0] == self.TEXT

    def test_a_cut_inside_a_character_leaves_one_replacement(
        self, client: openai.OpenAI, engine: ScriptedEngine, stream: bool
    ) -> None:
        engine.script = lambda ids, params: [*bytes_of("ab🫠")[:-1], EOS]
        assert complete(client, stream) == ("ab\ufffd", "stop", None)

    def test_a_stop_string_of_several_bytes(
        self, client: openai.OpenAI, engine: ScriptedEngine, stream: bool
    ) -> None:
        engine.script = lambda ids, params: [*bytes_of(self.TEXT), EOS]
        assert complete(client, stream, stop=["龜"]) == ("🫠", "stop", "龜")


def test_chat_chunks_come_in_order(http: httpx.Client, engine: ScriptedEngine) -> None:
    engine.script = lambda ids, params: [*bytes_of("hey"), EOS]
    seen = chunks(http, "/v1/chat/completions", CHAT)
    assert [c["choices"][0]["delta"] for c in seen] == [
        {"role": "assistant", "content": ""},
        {"content": "h"},
        {"content": "e"},
        {"content": "y"},
        {},
    ]
    reasons = [c["choices"][0]["finish_reason"] for c in seen]
    assert reasons == [None] * 4 + ["stop"]
    assert len({(c["id"], c["created"], c["model"], c["object"]) for c in seen}) == 1
    assert seen[0]["id"].startswith("chatcmpl-")
    assert seen[0]["object"] == "chat.completion.chunk"
    assert all("usage" not in c for c in seen)


def test_usage_chunk_ends_the_stream(http: httpx.Client) -> None:
    body = CHAT | {"stream_options": {"include_usage": True}}
    *parts, last = chunks(http, "/v1/chat/completions", body)
    assert all(part["usage"] is None for part in parts)
    assert last["choices"] == []
    assert last["usage"] == {
        "prompt_tokens": 10,
        "completion_tokens": 3,
        "total_tokens": 13,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def test_no_usage_unless_asked_for(http: httpx.Client) -> None:
    seen = chunks(http, "/v1/completions", {"prompt": "x", "stream_options": {}})
    assert all("usage" not in chunk for chunk in seen)


def test_continuous_usage_grows_to_the_total(http: httpx.Client) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    seen = chunks(http, "/v1/chat/completions", CHAT | {"stream_options": options})
    counts = [chunk["usage"]["completion_tokens"] for chunk in seen]
    assert counts == sorted(counts)
    assert counts[-1] == 3


@pytest.mark.parametrize("stream", [False, True])
def test_every_choice_answers(client: openai.OpenAI, stream: bool) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "hi"}], n=4, stream=stream
    )
    texts = dict.fromkeys(range(4), "")
    ends = []
    if not stream:
        texts = {choice.index: choice.message.content for choice in answer.choices}
        assert answer.usage.prompt_tokens == 10
        assert answer.usage.completion_tokens == 12
    else:
        for chunk in answer:
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
                ends += [choice.index] * (choice.finish_reason is not None)
        assert sorted(ends) == [0, 1, 2, 3]
    assert texts == dict.fromkeys(range(4), "ok")


def test_keep_alives_while_nothing_comes(serve_script: ServeScript) -> None:
    served = serve_script(sse_keep_alive=0.05)
    served.engine.gate.clear()
    comments = 0
    with served.http() as http:
        for line in lines(http, "/v1/completions", {"prompt": "x", "stream": True}):
            if line.startswith(":"):
                comments += 1
                if comments == 3:
                    served.engine.gate.set()
            elif line == "data: [DONE]":
                break
    assert comments >= 3


def test_the_official_client_ignores_keep_alives(serve_script: ServeScript) -> None:
    served = serve_script(sse_keep_alive=0.02)
    served.engine.gate.clear()
    stream = served.client().completions.create(model="tiny", prompt="x", stream=True)
    served.engine.gate.set()
    assert "".join(chunk.choices[0].text for chunk in stream) == "ok"


def test_a_whole_answer_is_json(http: httpx.Client) -> None:
    response = http.post("/v1/chat/completions", json=CHAT | {"stream": False})
    assert response.headers["content-type"] == "application/json"
    assert response.json()["choices"][0]["message"] == {
        "role": "assistant",
        "content": "ok",
        "refusal": None,
    }


async def test_async_client(served: ServedScript) -> None:
    async with served.async_client() as client:
        stream = await client.chat.completions.create(stream=True, **CHAT)
        text = [chunk.choices[0].delta.content or "" async for chunk in stream]
    assert "".join(text) == "ok"
