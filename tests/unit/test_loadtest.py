"""The load generator against a small server of the test's own, and its statistics by hand."""

import asyncio
import json
import math
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from typer.testing import CliRunner

from loadtest.chat_client import Reply, RequestFailed
from loadtest.cli import app
from loadtest.run import Outcome, Run, run_load
from loadtest.summary import summarise
from loadtest.workload import (
    Shape,
    arrivals_of_count,
    arrivals_within,
    make_chats,
    parse_mix,
)

USAGE = {"prompt_tokens": 7, "completion_tokens": 3}


class FakeServer:
    """An OpenAI-compatible server; the name of the model in a request says how it behaves."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.running = 0
        self.most_running = 0
        self.gate_size = 0
        routes = [
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/v1/models", self.models),
        ]
        config = uvicorn.Config(Starlette(routes=routes), port=0, log_level="critical")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run)

    def __enter__(self) -> "FakeServer":
        self._thread.start()
        deadline = time.monotonic() + 10
        while not self._server.started:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        port = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join()

    async def models(self, request: Request) -> Response:
        return JSONResponse({"data": [{"id": "good"}]})

    async def chat(self, request: Request) -> Response:
        body = await request.json()
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        if body["model"] == "busy":
            return JSONResponse({"error": {"message": "the queue is full"}}, status_code=429)
        if body["model"] == "unstreamed":
            return JSONResponse({"choices": [{"message": {"content": "hi"}}]})
        return StreamingResponse(self._events(body["model"]), media_type="text/event-stream")

    async def _events(self, behaviour: str) -> AsyncIterator[str]:
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        if behaviour == "gate":
            while len(self.bodies) < self.gate_size:
                await asyncio.sleep(0.005)
        elif behaviour == "slow":
            await asyncio.sleep(0.05)
        elif behaviour == "silent":
            await asyncio.sleep(10)
        yield _event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        yield ": a comment\n\n"
        yield _event({"choices": [{"delta": {"content": "Hel"}}]})
        if behaviour == "erring":
            yield _event({"error": {"message": "the engine died", "code": 503}})
        elif behaviour == "malformed":
            yield "data: {oops\n\n"
        if behaviour in ("erring", "malformed", "cut"):
            return
        yield _event({"choices": [{"delta": {"content": "lo"}}]})
        ending = "error" if behaviour == "broken" else "stop"
        yield _event({"choices": [{"delta": {}, "finish_reason": ending}]})
        if behaviour != "uncounted":
            yield _event({"choices": [], "usage": USAGE})
        yield "data: [DONE]\n\n"
        self.running -= 1


def _event(data: object) -> str:
    return f"data: {json.dumps(data)}\n\n"


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as running:
        yield running


def load(server: FakeServer, *options: str) -> tuple[int, str, dict[str, Any]]:
    """Exit code, output and JSON of a run of the command."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "out.json"
        arguments = ["--base-url", server.url, "--json", str(path), "--rate", "inf", *options]
        result = CliRunner().invoke(app, arguments)
        return (
            result.exit_code,
            result.output,
            json.loads(path.read_text()) if path.exists() else {},
        )


def reply(sent_s: float, *chunks_s: float, end_s: float, tokens: tuple[int, int]) -> Reply:
    return Reply(tuple(100 + sent_s + s for s in chunks_s), 100 + sent_s + end_s, *tokens)


HAND_MADE = Run(
    started_s=100.0,
    duration_s=10.0,
    client_cpu_s=2.5,
    outcomes=(
        Outcome(0.0, 0.0, reply(0.0, 0.5, 0.7, 1.1, end_s=1.2, tokens=(10, 5))),
        Outcome(1.0, 1.1, reply(1.1, 0.3, end_s=0.4, tokens=(20, 1))),
        Outcome(2.0, 2.3, RequestFailed("HTTP 429", "the queue is full")),
    ),
)


def test_statistics_equal_those_worked_out_by_hand() -> None:
    summary = summarise(HAND_MADE, {})

    assert (summary.completed, summary.failed) == (2, 1)
    assert summary.failures == {"HTTP 429": 1}
    assert summary.request_throughput == pytest.approx(0.2)
    assert summary.output_throughput == pytest.approx(0.6)
    assert summary.total_token_throughput == pytest.approx(3.6)
    assert summary.client_cpu_cores == pytest.approx(0.25)
    assert summary.max_concurrent_requests == 2
    # Second 0 has two of the first answer's three chunks, each 5/3 tokens.
    assert summary.max_output_tokens_per_s == pytest.approx(10 / 3)
    assert summary.request_goodput is None

    ttft = summary.ttft  # 500 and 300 ms
    assert (ttft.mean, ttft.median, ttft.std) == pytest.approx((400, 400, 100))
    assert ttft.percentiles == pytest.approx((400, 480, 490, 498))
    tpot = summary.tpot  # (1200 - 500) / 4, and none of the answer of one token
    assert (tpot.mean, tpot.std) == pytest.approx((175, 0))
    itl = summary.itl  # 200 and 400 ms
    assert (itl.mean, itl.std) == pytest.approx((300, 100))
    assert summary.e2el.mean == pytest.approx(800)  # 1200 and 400 ms
    lag = summary.schedule_lag  # 0, 100 and 300 ms
    assert (lag.mean, lag.median) == pytest.approx((400 / 3, 100))
    assert lag.percentiles[1] == pytest.approx(260)


@pytest.mark.parametrize(
    ("objectives", "per_second"),
    [
        ({"ttft": 400}, 0.1),
        ({"ttft": 500.1, "tpot": 175.1}, 0.2),
        ({"tpot": 174}, 0.1),
        ({"e2el": 300}, 0.0),
    ],
)
def test_goodput_counts_requests_that_meet_every_objective(
    objectives: dict[str, float], per_second: float
) -> None:
    assert summarise(HAND_MADE, objectives).request_goodput == pytest.approx(per_second)


def test_a_run_without_answers_has_no_latencies() -> None:
    summary = summarise(Run(0.0, 1.0, 0.0, HAND_MADE.outcomes[2:]), {"ttft": 1.0})

    assert math.isnan(summary.ttft.mean)
    assert summary.max_concurrent_requests == 0
    assert summary.request_goodput == 0


def test_gaps_between_arrivals_are_exponential_and_repeatable() -> None:
    due_s = arrivals_of_count(4.0, 20_000, seed=1)
    gaps = np.diff(due_s)

    assert gaps.mean() == pytest.approx(1 / 4, rel=0.03)
    assert gaps.std() == pytest.approx(1 / 4, rel=0.03)
    assert np.mean(gaps > 1 / 4) == pytest.approx(math.exp(-1), rel=0.03)
    assert np.array_equal(due_s, arrivals_of_count(4.0, 20_000, seed=1))
    assert not np.array_equal(due_s[:10], arrivals_of_count(4.0, 10, seed=2))


def test_a_duration_bounds_the_arrivals() -> None:
    due_s = arrivals_within(50.0, 100.0, seed=0)

    assert due_s.max() <= 100.0
    assert len(due_s) == pytest.approx(5000, rel=0.05)


def test_chats_follow_the_mix() -> None:
    mix = parse_mix("3:5*3, 40x2:7")
    chats = make_chats(mix, 4000, seed=0)
    short = [chat for chat in chats if chat.output_tokens == 5]

    assert mix == (Shape(3, 5, 1, 3.0), Shape(40, 7, 2, 1.0))
    assert len(short) == pytest.approx(3000, rel=0.05)
    long = [chat for chat in chats if chat.output_tokens == 7]
    assert {tuple(len(m.split()) for m in chat.messages) for chat in short} == {(3,)}
    assert {tuple(len(m.split()) for m in chat.messages) for chat in long} == {(14, 13, 13)}
    assert len({chat.messages for chat in long}) == len(long) == 4000 - len(short)
    assert chats == make_chats(mix, 4000, seed=0)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "is not WORDS:TOKENS"),
        ("3", "is not WORDS:TOKENS"),
        ("3:4;5:6", "is not WORDS:TOKENS"),
        ("3:0", "greater than 0"),
        ("3:4*0", "greater than 0"),
        ("4x3:1", "each of its 5 messages"),
    ],
)
def test_a_mix_that_makes_no_sense_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse_mix(text)


def test_answers_are_counted_by_usage_and_warmups_are_not_counted(server: FakeServer) -> None:
    code, output, result = load(
        server,
        *("--num-requests", "5", "--num-warmups", "2", "--api-key", "s3", "--ignore-eos"),
        *("--mix", "9x2:4", "--goodput", "ttft:9999 e2el:9999"),
    )

    assert code == 0, output
    assert len(server.bodies) == 7
    assert (result["completed"], result["failed"], result["num_prompts"]) == (5, 0, 5)
    assert (result["total_input_tokens"], result["total_output_tokens"]) == (35, 15)
    assert result["model_id"] == "good"
    assert [len(gaps) for gaps in result["itls"]] == [1] * 5
    assert result["mean_ttft_ms"] <= result["mean_e2el_ms"]
    assert all(header["authorization"] == "Bearer s3" for header in server.headers)
    body = server.bodies[0]
    assert body["stream_options"] == {"include_usage": True}
    assert (body["min_tokens"], body["max_tokens"], body["ignore_eos"]) == (4, 4, True)
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "user"]
    assert result["request_goodput"] == pytest.approx(result["request_throughput"])
    assert "completed" in output


@pytest.mark.parametrize(
    ("behaviour", "kind", "detail"),
    [
        ("busy", "HTTP 429", "the queue is full"),
        ("erring", "error in the stream", "the engine died"),
        ("broken", "error in the stream", "finish_reason"),
        ("cut", "cut off", "after 1 chunks"),
        ("malformed", "malformed event", "{oops"),
        ("uncounted", "no usage", "tokens"),
        ("unstreamed", "no stream", "application/json"),
        ("silent", "timeout", "0.2 s"),
    ],
)
def test_failures_are_told_apart(
    server: FakeServer, behaviour: str, kind: str, detail: str
) -> None:
    timeout_s = "0.2" if kind == "timeout" else "60"
    code, output, result = load(
        server,
        *("--model", behaviour, "--num-requests", "2", "--num-warmups", "0"),
        *("--timeout", timeout_s),
    )

    assert code == 1
    assert result["failures"] == {kind: 2}
    assert all(detail in error for error in result["errors"])
    assert result["mean_ttft_ms"] is None
    assert kind in output
    assert result["errors"][0].removeprefix(f"{kind}: ")[:20] in output


def test_a_server_that_is_not_there_is_one_line() -> None:
    result = CliRunner().invoke(app, ["--base-url", "http://127.0.0.1:9", "--num-requests", "1"])

    assert result.exit_code == 1
    assert "http://127.0.0.1:9/v1/" in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--goodput", "itl:3"), "'itl' is none of ttft, tpot, e2el"),
        (("--goodput", "ttft"), "NAME:MILLISECONDS"),
        (("--rate", "0"), "--rate must be greater than 0"),
        (("--duration", "5", "--num-requests", "5"), "not both"),
        (("--duration", "5"), "finite --rate"),
        (("--mix", "x"), "WORDS:TOKENS"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    server: FakeServer, options: tuple[str, ...], complaint: str
) -> None:
    code, output, _ = load(server, *options)

    assert code == 2
    assert complaint in " ".join(output.split())


def test_requests_go_out_though_none_is_answered(server: FakeServer) -> None:
    """The server answers nothing before the last of the requests has come."""
    server.gate_size = 8
    code, _, result = load(
        server, "--model", "gate", "--num-requests", "8", "--rate", "100", "--num-warmups", "0"
    )

    assert code == 0
    assert result["completed"] == 8
    assert result["max_concurrent_requests"] == 8


async def test_the_cap_on_concurrency_shows_as_lag(server: FakeServer) -> None:
    body = json.dumps({"model": "slow"}).encode()
    ended = []
    async with httpx.AsyncClient(base_url=f"{server.url}/v1/") as http:
        run = await run_load(
            http,
            [body] * 6,
            [0.0] * 6,
            max_concurrency=2,
            timeout_s=10,
            ended=lambda: ended.append(1),
        )

    assert server.most_running == 2
    assert len(ended) == 6
    # Three rounds of 50 ms: the last two wait for two rounds, and that is not their latency.
    assert run.outcomes[-1].sent_s >= 0.1
    assert summarise(run, {}).schedule_lag.percentiles[-1] >= 90
