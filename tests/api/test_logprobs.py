"""Logprobs of both shapes, echo, and scoring without generating."""

import openai
import pytest
from scripted import BOS, EOS, ScriptedEngine, bytes_of, logprob_of, whole

USER = [{"role": "user", "content": "hi"}]


def value(token_id: int) -> float:
    return logprob_of(token_id, 0).logprob


class TestChat:
    def test_without_alternatives(self, client: openai.OpenAI) -> None:
        answer = client.chat.completions.create(model="tiny", messages=USER, logprobs=True)
        content = answer.choices[0].logprobs.content
        assert [entry.token for entry in content] == ["o", "k"]
        assert [entry.bytes for entry in content] == [[111], [107]]
        assert [entry.logprob for entry in content] == [value(i) for i in bytes_of("ok")]
        assert all(entry.top_logprobs == [] for entry in content)

    def test_alternatives(self, client: openai.OpenAI) -> None:
        answer = client.chat.completions.create(
            model="tiny", messages=USER, logprobs=True, top_logprobs=2
        )
        for entry in answer.choices[0].logprobs.content:
            top = [(other.token, other.logprob) for other in entry.top_logprobs]
            assert top == [("</s>", -0.25), ("<|end|>", -0.5)]

    def test_none_unless_asked_for(self, client: openai.OpenAI) -> None:
        answer = client.chat.completions.create(model="tiny", messages=USER)
        assert answer.choices[0].logprobs is None

    def test_bytes_of_a_split_character(
        self, client: openai.OpenAI, engine: ScriptedEngine
    ) -> None:
        engine.script = lambda ids, params: [*bytes_of("龜"), EOS]
        answer = client.chat.completions.create(model="tiny", messages=USER, logprobs=True)
        content = answer.choices[0].logprobs.content
        assert bytes(byte for entry in content for byte in entry.bytes).decode() == "龜"
        assert [entry.token for entry in content] == ["\\xe9", "\\xbe", "\\x9c"]

    @pytest.mark.parametrize("stop", [None, "Z", "DE"])
    def test_streams_have_the_same(
        self, client: openai.OpenAI, engine: ScriptedEngine, stop: str | None
    ) -> None:
        engine.script = lambda ids, params: [
            *bytes_of("a龜b"), BOS, whole("DEF"), *bytes_of("c"), EOS
        ]  # fmt: skip
        fields = {
            "model": "tiny",
            "messages": USER,
            "logprobs": True,
            "top_logprobs": 3,
            "stop": stop,
        }
        whole_answer = client.chat.completions.create(**fields).choices[0]
        content = []
        for chunk in client.chat.completions.create(stream=True, **fields):
            logprobs = chunk.choices[0].logprobs
            if logprobs:
                content += logprobs.content
                text = chunk.choices[0].delta.content
                assert text is None or logprobs.content
        assert content == whole_answer.logprobs.content
        assert len(content) == (5 if stop == "DE" else 8)


class TestCompletions:
    def test_shape(self, client: openai.OpenAI, engine: ScriptedEngine) -> None:
        engine.script = lambda ids, params: [*bytes_of("a龜"), whole("DEF"), EOS]
        answer = client.completions.create(model="tiny", prompt="x", logprobs=1)
        logprobs = answer.choices[0].logprobs
        ids = [*bytes_of("a龜"), whole("DEF")]
        assert logprobs.tokens == ["a", "\\xe9", "\\xbe", "\\x9c", "DEF"]
        assert logprobs.token_logprobs == [value(i) for i in ids]
        assert logprobs.text_offset == [0, 1, 1, 1, 2]
        assert logprobs.top_logprobs[0] == {"</s>": -0.25, "a": value(ids[0])}

    def test_zero_has_the_tokens_own(self, client: openai.OpenAI) -> None:
        answer = client.completions.create(model="tiny", prompt="x", logprobs=0)
        assert answer.choices[0].logprobs.top_logprobs[0] == {"o": value(bytes_of("o")[0])}

    @pytest.mark.parametrize("stream", [False, True])
    def test_minus_infinity_is_a_number(
        self, client: openai.OpenAI, engine: ScriptedEngine, stream: bool, monkeypatch: object
    ) -> None:
        entry = logprob_of(5, 3)
        entry.logprob = float("-inf")
        monkeypatch.setattr("scripted.logprob_of", lambda i, k: entry)
        answer = client.completions.create(model="tiny", prompt="x", logprobs=1, stream=stream)
        first = next(iter(answer)) if stream else answer
        assert first.choices[0].logprobs.token_logprobs[0] == -9999.0
        if stream:
            list(answer)


class TestEcho:
    def test_scoring(self, client: openai.OpenAI, engine: ScriptedEngine) -> None:
        answer = client.completions.create(
            model="tiny", prompt="héy", echo=True, logprobs=1, max_tokens=0
        )
        choice = answer.choices[0]
        assert choice.text == "héy"
        assert choice.finish_reason == "length"
        logprobs = choice.logprobs
        ids = [BOS, *bytes_of("héy")]
        assert logprobs.tokens == ["<s>", "h", "\\xc3", "\\xa9", "y"]
        assert logprobs.token_logprobs == [None, *map(value, ids[1:])]
        assert logprobs.top_logprobs[0] is None
        assert logprobs.text_offset == [0, 0, 1, 1, 2]
        assert answer.usage.completion_tokens == 0
        assert answer.usage.prompt_tokens == 5

    @pytest.mark.parametrize("stream", [False, True])
    @pytest.mark.parametrize("logprobs", [None, 1])
    @pytest.mark.parametrize("prompt", ["xy", bytes_of("xy")])
    def test_prompt_then_answer(
        self, client: openai.OpenAI, stream: bool, logprobs: int | None, prompt: object
    ) -> None:
        fields = {"model": "tiny", "prompt": prompt, "echo": True, "logprobs": logprobs}
        answer = client.completions.create(stream=stream, **fields)
        parts = list(answer) if stream else [answer]
        assert "".join(part.choices[0].text for part in parts) == "xyok"
        if logprobs is None:
            return
        found = [part.choices[0].logprobs for part in parts if part.choices[0].logprobs]
        tokens = [token for part in found for token in part.tokens]
        offsets = [offset for part in found for offset in part.text_offset]
        assert tokens[-4:] == ["x", "y", "o", "k"]
        assert offsets[-4:] == [0, 1, 2, 3]

    def test_without_generating_or_logprobs(self, client: openai.OpenAI) -> None:
        answer = client.completions.create(model="tiny", prompt=["a", "b"], echo=True, max_tokens=0)
        assert [choice.text for choice in answer.choices] == ["a", "b"]
        assert answer.usage.completion_tokens == 0

    def test_special_alternatives_keep_their_names(self, client: openai.OpenAI) -> None:
        answer = client.completions.create(model="tiny", prompt="x", logprobs=2)
        assert set(answer.choices[0].logprobs.top_logprobs[0]) == {"</s>", "<|end|>", "o"}
