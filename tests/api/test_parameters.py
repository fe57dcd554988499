"""Parameters reach the engine as they were meant, and answers have the shapes of the OpenAI API."""

import json
from pathlib import Path

import httpx
import openai
import pytest
from scripted import (
    BOS,
    END_OF_TURN,
    EOS,
    FIRST_BYTE,
    ScriptedEngine,
    bytes_of,
    whole,
)
from served import ServedScript

from server.generation.defaults import SamplingDefaults, read_sampling_defaults

USER = [{"role": "user", "content": "hi"}]


def complete(client: openai.OpenAI, **fields: object) -> openai.types.Completion:
    fields = {"prompt": "x", **fields}
    return client.completions.create(model="tiny", extra_body=fields, prompt=fields["prompt"])


class TestSampling:
    def test_openai_defaults(self, client: openai.OpenAI, engine: ScriptedEngine) -> None:
        complete(client)
        (ids, params) = engine.seen[0]
        assert ids == [BOS, *bytes_of("x")]
        assert (params.temperature, params.top_p, params.top_k, params.min_p) == (1.0, 1.0, 0, 0.0)
        assert params.max_tokens == 16
        assert params.seed is None
        assert params.logprobs is None
        assert set(params.eos_token_ids) == {EOS, END_OF_TURN}

    def test_everything_given(self, client: openai.OpenAI, engine: ScriptedEngine) -> None:
        complete(
            client,
            temperature=0.5,
            top_p=0.9,
            top_k=40,
            min_p=0.05,
            seed=7,
            presence_penalty=0.1,
            frequency_penalty=0.2,
            repetition_penalty=1.3,
            logit_bias={"5": -100, "6": 1.5},
            min_tokens=2,
            stop_token_ids=[9],
            max_tokens=11,
        )
        params = engine.seen[0][1]
        assert (params.temperature, params.top_p, params.top_k, params.min_p) == (
            0.5,
            0.9,
            40,
            0.05,
        )
        assert (params.presence_penalty, params.frequency_penalty) == (0.1, 0.2)
        assert params.repetition_penalty == 1.3
        assert params.logit_bias == {5: -100.0, 6: 1.5}
        assert (params.min_tokens, params.max_tokens, params.seed) == (2, 11, 7)
        assert params.stop_token_ids == (9,)

    @pytest.mark.parametrize("top_k", [0, -1])
    def test_top_k_off(self, client: openai.OpenAI, engine: ScriptedEngine, top_k: int) -> None:
        complete(client, top_k=top_k)
        assert engine.seen[0][1].top_k == 0

    def test_each_choice_has_a_seed_of_its_own(
        self, client: openai.OpenAI, engine: ScriptedEngine
    ) -> None:
        complete(client, prompt=["a", "b"], n=3, seed=10)
        seeds = sorted(params.seed for _, params in engine.seen)
        assert seeds == [10, 10, 11, 11, 12, 12]

    def test_ignore_eos(self, client: openai.OpenAI, engine: ScriptedEngine) -> None:
        answer = complete(client, ignore_eos=True, max_tokens=9)
        assert engine.seen[0][1].eos_token_ids == ()
        assert answer.choices[0].finish_reason == "length"
        assert answer.usage.completion_tokens == 9

    def test_the_newer_token_limit_wins(
        self, client: openai.OpenAI, engine: ScriptedEngine
    ) -> None:
        client.chat.completions.create(
            model="tiny", messages=USER, max_tokens=9, max_completion_tokens=4
        )
        assert engine.seen[0][1].max_tokens == 4

    def test_chat_may_use_the_rest_of_the_context(
        self, client: openai.OpenAI, engine: ScriptedEngine
    ) -> None:
        client.chat.completions.create(model="tiny", messages=USER)
        ids, params = engine.seen[0]
        assert len(ids) + params.max_tokens == engine.info.max_model_len

    def test_the_models_own_defaults(self, tmp_path: Path) -> None:
        own = {"temperature": 0.6, "top_k": 20, "top_p": None, "do_sample": True}
        (tmp_path / "generation_config.json").write_text(json.dumps(own))
        assert read_sampling_defaults(tmp_path) == SamplingDefaults(temperature=0.6, top_k=20)
        assert read_sampling_defaults(tmp_path / "model.gguf") == SamplingDefaults()


class TestEnds:
    def test_eos_is_counted_and_not_shown(
        self, client: openai.OpenAI, engine: ScriptedEngine
    ) -> None:
        engine.script = lambda ids, params: [*bytes_of("ok"), END_OF_TURN]
        for skip in (True, False):
            answer = complete(client, skip_special_tokens=skip)
            choice = answer.choices[0]
            assert (choice.text, choice.finish_reason) == ("ok", "stop")
            assert choice.stop_reason is None
            assert answer.usage.completion_tokens == 3

    def test_stop_token(self, client: openai.OpenAI, engine: ScriptedEngine) -> None:
        engine.script = lambda ids, params: [*bytes_of("okay"), EOS]
        stop_id = bytes_of("a")[0]
        choice = complete(client, stop_token_ids=[stop_id]).choices[0]
        assert (choice.text, choice.finish_reason, choice.stop_reason) == ("ok", "stop", stop_id)
        fields = {"stop_token_ids": [stop_id], "include_stop_str_in_output": True}
        assert complete(client, **fields).choices[0].text == "oka"

    def test_special_tokens_in_the_middle(
        self, client: openai.OpenAI, engine: ScriptedEngine
    ) -> None:
        engine.script = lambda ids, params: [*bytes_of("a"), BOS, *bytes_of("b"), EOS]
        assert complete(client).choices[0].text == "ab"
        assert complete(client, skip_special_tokens=False).choices[0].text == "a<s>b"

    def test_engine_error(self, http: httpx.Client, engine: ScriptedEngine) -> None:
        engine.error_after = 1
        response = http.post("/v1/completions", json={"prompt": "x"})
        assert response.status_code == 500
        assert response.json()["error"]["message"] == "scripted failure"


class TestPrompts:
    @pytest.mark.parametrize("stream", [False, True])
    def test_lists_are_indexed_by_prompt_and_choice(
        self, client: openai.OpenAI, engine: ScriptedEngine, stream: bool
    ) -> None:
        engine.script = lambda ids, params: [*ids[1:], params.seed + FIRST_BYTE + 48, EOS]
        answer = client.completions.create(
            model="tiny", prompt=["ab", "c"], n=2, seed=0, stream=stream
        )
        texts = ["", "", "", ""]
        for part in answer if stream else [answer]:
            for choice in part.choices:
                texts[choice.index] += choice.text
        assert texts == ["ab0", "ab1", "c0", "c1"]
        if not stream:
            assert answer.usage.prompt_tokens == 3 + 2
            assert answer.usage.completion_tokens == 4 + 4 + 3 + 3

    @pytest.mark.parametrize("prompt", [[5, 6], [[5, 6]]])
    def test_token_ids(self, client: openai.OpenAI, engine: ScriptedEngine, prompt: list) -> None:
        assert complete(client, prompt=prompt).usage.prompt_tokens == 2
        assert engine.seen[0][0] == [5, 6]

    def test_lists_of_token_ids(self, client: openai.OpenAI, engine: ScriptedEngine) -> None:
        assert len(complete(client, prompt=[[5, 6], [7]]).choices) == 2
        assert sorted(ids for ids, _ in engine.seen) == [[5, 6], [7]]

    @pytest.mark.parametrize(
        ("prompt", "special", "ids"),
        [
            ("x", True, [BOS, *bytes_of("x")]),
            ("x", False, bytes_of("x")),
            ("<s>x", True, [BOS, *bytes_of("x")]),
            ("<s>x", False, [BOS, *bytes_of("x")]),
        ],
    )
    def test_one_bos(
        self,
        client: openai.OpenAI,
        engine: ScriptedEngine,
        prompt: str,
        special: bool,
        ids: list[int],
    ) -> None:
        complete(client, prompt=prompt, add_special_tokens=special)
        assert engine.seen[0][0] == ids


class TestChat:
    def ids_of(self, http: httpx.Client, engine: ScriptedEngine, **fields: object) -> list[int]:
        engine.seen.clear()
        response = http.post("/v1/chat/completions", json=fields)
        assert response.status_code == 200, response.text
        tokenized = http.post("/tokenize", json=fields).json()["tokens"]
        assert engine.seen[0][0] == tokenized
        return tokenized

    def test_template(self, http: httpx.Client, engine: ScriptedEngine) -> None:
        ids = self.ids_of(http, engine, messages=USER)
        turn = [*bytes_of("<u>hi"), END_OF_TURN]
        assert ids == [BOS, *turn, *bytes_of("<a>")]
        twice = self.ids_of(http, engine, messages=USER, add_special_tokens=True)
        assert twice == ids

    def test_parts_are_the_joined_string(self, http: httpx.Client, engine: ScriptedEngine) -> None:
        parts = [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]
        split = self.ids_of(http, engine, messages=[{"role": "user", "content": parts}])
        assert split == self.ids_of(http, engine, messages=USER)

    def test_null_content_beside_tool_calls(
        self, http: httpx.Client, engine: ScriptedEngine
    ) -> None:
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        messages = [
            *USER,
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "42"},
        ]
        assert bytes_of("<t>42")[0] in self.ids_of(http, engine, messages=messages)

    def test_developer_is_the_systems_newer_name(
        self, http: httpx.Client, engine: ScriptedEngine
    ) -> None:
        ids = [
            self.ids_of(http, engine, messages=[{"role": role, "content": "x"}])
            for role in ("system", "developer")
        ]
        assert ids[0] == ids[1]

    def test_template_kwargs(self, http: httpx.Client, engine: ScriptedEngine) -> None:
        ids = self.ids_of(http, engine, messages=USER, chat_template_kwargs={"shout": True})
        assert bytes_of("!")[0] in ids

    def test_without_generation_prompt(self, http: httpx.Client, engine: ScriptedEngine) -> None:
        ids = self.ids_of(http, engine, messages=USER, add_generation_prompt=False)
        assert ids[-1] == END_OF_TURN

    def test_continue_final_message(self, http: httpx.Client, engine: ScriptedEngine) -> None:
        messages = [*USER, {"role": "assistant", "content": "so"}]
        ids = self.ids_of(http, engine, messages=messages, continue_final_message=True)
        assert ids[-2:] == bytes_of("so")


class TestTokenIds:
    def test_completion(self, client: openai.OpenAI, engine: ScriptedEngine) -> None:
        answer = complete(client, return_token_ids=True)
        choice = answer.choices[0]
        assert choice.prompt_token_ids == [BOS, *bytes_of("x")]
        assert choice.token_ids == [*bytes_of("ok"), EOS]
        assert len(choice.token_ids) == answer.usage.completion_tokens

    def test_chat(self, client: openai.OpenAI, engine: ScriptedEngine) -> None:
        answer = client.chat.completions.create(
            model="tiny", messages=USER, extra_body={"return_token_ids": True}
        )
        assert answer.prompt_token_ids == engine.seen[0][0]
        assert answer.choices[0].token_ids == [*bytes_of("ok"), EOS]

    @pytest.mark.parametrize("chat", [False, True])
    def test_stream(self, client: openai.OpenAI, engine: ScriptedEngine, chat: bool) -> None:
        engine.script = lambda ids, params: [*bytes_of("龜"), whole("DEF"), EOS]
        extra = {"return_token_ids": True}
        if chat:
            seen = list(
                client.chat.completions.create(
                    model="tiny", messages=USER, stream=True, extra_body=extra
                )
            )
            prompts = [getattr(chunk, "prompt_token_ids", None) for chunk in seen]
        else:
            seen = list(
                client.completions.create(model="tiny", prompt="x", stream=True, extra_body=extra)
            )
            prompts = [getattr(c.choices[0], "prompt_token_ids", None) for c in seen]
        assert prompts[0] == engine.seen[0][0]
        assert not any(prompts[1:])
        ids = [i for c in seen for i in getattr(c.choices[0], "token_ids", None) or []]
        assert ids == [*bytes_of("龜"), whole("DEF"), EOS]


def test_cached_tokens(client: openai.OpenAI, engine: ScriptedEngine) -> None:
    assert complete(client).usage.prompt_tokens_details.cached_tokens == 0
    engine.cached_tokens = 1
    answer = complete(client, n=3)
    assert answer.usage.prompt_tokens_details.cached_tokens == 1


class TestRequestIds:
    @pytest.mark.parametrize(
        ("body_id", "header", "used"),
        [("abc", "xyz", "abc"), (None, "xyz", "xyz"), (None, "no good", None), (None, None, None)],
    )
    def test_body_then_header_then_random(
        self, http: httpx.Client, body_id: str | None, header: str | None, used: str | None
    ) -> None:
        response = http.post(
            "/v1/completions",
            json={"prompt": "x", "request_id": body_id},
            headers={"X-Request-Id": header} if header else {},
        )
        echoed = response.headers["x-request-id"]
        assert echoed == used or (used is None and len(echoed) == 32)
        assert response.json()["id"] == f"cmpl-{echoed}"

    def test_two_requests_may_share_an_id(self, served: ServedScript, http: httpx.Client) -> None:
        served.engine.gate.clear()
        with httpx.Client(base_url=served.url) as other:
            body = {"prompt": "x", "request_id": "same", "stream": True}
            with other.stream("POST", "/v1/completions", json=body, timeout=10):
                served.engine.gate.set()
                body["stream"] = False
                assert http.post("/v1/completions", json=body).status_code == 200

    def test_errors_have_one_too(self, http: httpx.Client) -> None:
        assert http.get("/nowhere", headers={"X-Request-Id": "r1"}).headers["x-request-id"] == "r1"


class TestTokenize:
    def test_there_and_back(self, http: httpx.Client) -> None:
        answer = http.post("/tokenize", json={"prompt": "hé", "return_token_strs": True}).json()
        assert answer["tokens"] == [BOS, *bytes_of("hé")]
        assert answer["count"] == 4
        assert answer["max_model_len"] == 128
        assert answer["token_strs"] == ["<s>", "h", "\\xc3", "\\xa9"]
        back = http.post("/detokenize", json={"tokens": answer["tokens"]}).json()
        assert back == {"prompt": "<s>hé"}

    def test_bad_ids(self, http: httpx.Client) -> None:
        assert http.post("/detokenize", json={"tokens": [10**6]}).status_code == 400
        assert http.post("/detokenize", json={"tokens": [-1]}).status_code == 400


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny", "alias"]
    assert client.models.retrieve("alias").root == "tiny"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")
