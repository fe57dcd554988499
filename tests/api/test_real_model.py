"""The default model behind the API, from end to end."""

import asyncio
import math
import time

import httpx
import openai
import pytest
from real_server import RealServer

CONTEXT = 512
PAGE_TOKENS = 16
PROMPTS = [
    "The capital of France is",
    "Once upon a time, there was a",
    "def fibonacci(n):\n    ",
    "1, 2, 3, 4,",
    "The three primary colours are red,",
    "Water boils at a temperature of",
    "To bake a loaf of bread, you first",
    "我喜欢在早上喝一杯",
]


@pytest.fixture(scope="module")
def name(real_server: RealServer) -> str:
    return real_server.client().models.list().data[0].id


def greedy(i: int) -> dict[str, object]:
    """The `i`-th of many different greedy requests."""
    prompt = PROMPTS[i % len(PROMPTS)] * (1 + i // len(PROMPTS))
    return {"prompt": prompt, "max_tokens": 4 + 3 * (i % 7), "temperature": 0}


async def test_company_does_not_change_greedy_text(real_server: RealServer, name: str) -> None:
    async with real_server.async_client() as client:

        async def text(i: int, delay_s: float) -> str:
            await asyncio.sleep(delay_s)
            answer = await client.completions.create(model=name, **greedy(i))
            assert answer.usage.completion_tokens <= greedy(i)["max_tokens"]
            return answer.choices[0].text

        alone = [await text(i, 0) for i in range(32)]
        together = await asyncio.gather(*(text(i, 0.03 * (i * 7 % 32)) for i in range(32)))
    assert together == alone


async def test_a_seed_decides_whatever_the_company(real_server: RealServer, name: str) -> None:
    fields = {"model": name, "prompt": PROMPTS[1], "max_tokens": 20, "temperature": 0.8}
    async with real_server.async_client() as client:

        async def text(**more: object) -> str:
            answer = await client.completions.create(**fields, **more)
            return answer.choices[0].text

        alone = await text(seed=42)
        mixed = await asyncio.gather(text(), text(seed=42), *(text(seed=i) for i in range(8)))
    assert mixed[1] == alone
    assert len(set(mixed[2:])) > 1


def test_chat_streams_what_it_answers(real_server: RealServer, name: str) -> None:
    fields = {
        "model": name,
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "temperature": 0,
        "max_tokens": 40,
    }
    client = real_server.client()
    whole = client.chat.completions.create(**fields)
    *parts, last = client.chat.completions.create(
        stream=True, stream_options={"include_usage": True}, **fields
    )
    text = "".join(part.choices[0].delta.content or "" for part in parts)
    assert text == whole.choices[0].message.content
    assert "Paris" in text
    assert last.usage.completion_tokens == whole.usage.completion_tokens
    assert parts[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    assert whole.choices[0].finish_reason == "stop"


def test_tokenize_gives_the_ids_of_generation(real_server: RealServer, name: str) -> None:
    messages = [{"role": "user", "content": "naïve 🫠"}]
    answer = real_server.client().chat.completions.create(
        model=name, messages=messages, max_tokens=1, extra_body={"return_token_ids": True}
    )
    tokenized = httpx.post(f"{real_server.url}/tokenize", json={"messages": messages}).json()
    assert answer.prompt_token_ids == tokenized["tokens"]
    assert answer.usage.prompt_tokens == tokenized["count"]


def test_greedy_takes_the_likeliest_token(real_server: RealServer, name: str) -> None:
    answer = real_server.client().chat.completions.create(
        model=name,
        messages=[{"role": "user", "content": "Count to five."}],
        temperature=0,
        max_tokens=12,
        logprobs=True,
        top_logprobs=5,
    )
    for entry in answer.choices[0].logprobs.content:
        assert entry.logprob == entry.top_logprobs[0].logprob
        assert 0 < sum(math.exp(other.logprob) for other in entry.top_logprobs) <= 1.0001


def test_scoring_agrees_with_generating(real_server: RealServer, name: str) -> None:
    client = real_server.client()
    generated = client.completions.create(
        model=name, prompt=PROMPTS[0], max_tokens=6, temperature=0, logprobs=1
    ).choices[0]
    scored = client.completions.create(
        model=name, prompt=PROMPTS[0] + generated.text, max_tokens=0, echo=True, logprobs=1
    ).choices[0]
    assert scored.text == PROMPTS[0] + generated.text
    count = len(generated.logprobs.tokens)
    assert scored.logprobs.tokens[-count:] == generated.logprobs.tokens
    again = scored.logprobs.token_logprobs[-count:]
    assert again == pytest.approx(generated.logprobs.token_logprobs, abs=0.05)


def test_a_bias_forces_and_bans(real_server: RealServer, name: str) -> None:
    client = real_server.client()
    fields = {"model": name, "prompt": PROMPTS[0], "max_tokens": 3, "temperature": 0}
    extra = {"return_token_ids": True}
    ids = client.completions.create(**fields, extra_body=extra).choices[0].token_ids
    forced = client.completions.create(**fields, logit_bias={"500": 100}, extra_body=extra)
    assert forced.choices[0].token_ids == [500] * 3
    banned = client.completions.create(**fields, logit_bias={str(ids[0]): -100}, extra_body=extra)
    assert ids[0] not in banned.choices[0].token_ids


def test_ignore_eos_and_min_tokens(real_server: RealServer, name: str) -> None:
    fields = {"model": name, "messages": [{"role": "user", "content": "Say hi."}], "max_tokens": 24}
    client = real_server.client()
    answer = client.chat.completions.create(**fields, extra_body={"ignore_eos": True})
    assert answer.usage.completion_tokens == 24
    assert answer.choices[0].finish_reason == "length"
    answer = client.chat.completions.create(**fields, extra_body={"min_tokens": 20})
    assert 20 <= answer.usage.completion_tokens <= 24


def test_a_shared_start_is_cached(real_server: RealServer, name: str) -> None:
    client = real_server.client()
    fields = {
        "model": name,
        "prompt": f"It is {time.time_ns()}. " + "All work and no play. " * 12,
        "max_tokens": 8,
        "temperature": 0,
    }
    first, second = (client.completions.create(**fields) for _ in range(2))
    assert first.usage.prompt_tokens_details.cached_tokens == 0
    cached = second.usage.prompt_tokens_details.cached_tokens
    assert cached == (second.usage.prompt_tokens - 1) // PAGE_TOKENS * PAGE_TOKENS
    assert first.choices[0].text == second.choices[0].text


@pytest.mark.parametrize("beyond", [0, 1, 500])
def test_prompt_longer_than_the_context(real_server: RealServer, name: str, beyond: int) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        real_server.client().completions.create(model=name, prompt=[500] * (CONTEXT + beyond))
    assert caught.value.code == "context_length_exceeded"
    assert f"maximum context length is {CONTEXT} tokens" in caught.value.message


def test_prompt_with_room_for_one_token(real_server: RealServer, name: str) -> None:
    answer = real_server.client().completions.create(model=name, prompt=[500] * (CONTEXT - 1))
    assert (answer.usage.completion_tokens, answer.choices[0].finish_reason) == (1, "length")


def test_clients_that_leave_free_their_pages(real_server: RealServer, name: str) -> None:
    body = {"model": name, "max_tokens": 400, "stream": True, "ignore_eos": True}
    for i in range(12):
        with httpx.Client(timeout=30) as http:
            request = body | {"prompt": [300 + i] * 64}
            with http.stream("POST", f"{real_server.url}/v1/completions", json=request) as stream:
                if i % 2:
                    next(stream.iter_lines())
    end_s = time.monotonic() + 5
    gauges = ("egglm_num_requests_running", "egglm_num_requests_waiting")
    while any(real_server.metric(gauge) for gauge in (*gauges, "egglm_kv_cache_usage_ratio")):
        assert time.monotonic() < end_s
        time.sleep(0.05)
