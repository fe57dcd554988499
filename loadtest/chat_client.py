"""One streamed chat over HTTP, timed as it arrives."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import httpx

_TEXT_FIELDS = ("content", "reasoning_content", "reasoning", "tool_calls", "refusal")
_BROKEN_ENDINGS = ("error", "abort")


class RequestFailed(Exception):
    """A chat that did not end well: `kind` groups such failures, `detail` tells this one's story."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind = kind
        self.detail = detail


@dataclass(frozen=True, slots=True)
class Reply:
    """A complete answer. Times are seconds on the clock of `time.perf_counter`."""

    chunk_times_s: tuple[float, ...]
    """When each chunk with text came; of an answer without text, when its end was announced."""
    end_s: float
    """When the last byte came."""
    input_tokens: int
    output_tokens: int


async def stream_chat(http: httpx.AsyncClient, body: bytes, timeout_s: float) -> Reply:
    """Sends a request with `stream` and `stream_options.include_usage` set, and reads its answer.

    Raises `RequestFailed`, also for an answer that starts well and breaks off.
    """
    try:
        async with (
            asyncio.timeout(timeout_s),
            http.stream("POST", "chat/completions", content=body) as response,
        ):
            if response.status_code != 200:
                await response.aread()
                raise RequestFailed(f"HTTP {response.status_code}", error_message(response))
            kind = response.headers.get("content-type", "")
            if not kind.startswith("text/event-stream"):
                raise RequestFailed("no stream", f"the content type is {kind!r}")
            return await _read_events(response.aiter_lines())
    except TimeoutError:
        raise RequestFailed("timeout", f"no complete answer within {timeout_s:g} s") from None
    except httpx.ConnectError as error:
        raise RequestFailed("connection refused", str(error)) from error
    except httpx.TransportError as error:
        raise RequestFailed("connection lost", str(error) or type(error).__name__) from error


def error_message(response: httpx.Response) -> str:
    """The message of an OpenAI error object, else the start of the body."""
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return response.text[:200]


async def _read_events(lines: AsyncIterator[str]) -> Reply:
    chunk_times: list[float] = []
    usage: dict[str, Any] = {}
    finish_reason: str | None = None
    ended_s = 0.0
    done = False
    async for line in lines:
        now = perf_counter()
        if not line.startswith("data:"):
            continue
        data = line[5:].strip()
        if data == "[DONE]":
            done = True
            continue
        event = _parse(data)
        if event.get("error"):
            error = event["error"]
            message = error.get("message") if isinstance(error, dict) else error
            raise RequestFailed("error in the stream", str(message))
        usage = event.get("usage") or usage
        for choice in event.get("choices") or ():
            if any((choice.get("delta") or {}).get(field) for field in _TEXT_FIELDS):
                chunk_times.append(now)
            if choice.get("finish_reason"):
                finish_reason, ended_s = choice["finish_reason"], now
    end_s = perf_counter()
    if not done or finish_reason is None:
        raise RequestFailed("cut off", f"the stream ended after {len(chunk_times)} chunks")
    if finish_reason in _BROKEN_ENDINGS:
        raise RequestFailed("error in the stream", f"finish_reason is {finish_reason!r}")
    if not {"prompt_tokens", "completion_tokens"} <= usage.keys():
        raise RequestFailed("no usage", "the stream does not tell its numbers of tokens")
    return Reply(
        tuple(chunk_times) or (ended_s,),
        end_s,
        int(usage["prompt_tokens"]),
        int(usage["completion_tokens"]),
    )


def _parse(data: str) -> dict[str, Any]:
    try:
        event = json.loads(data)
    except ValueError:
        event = None
    if not isinstance(event, dict):
        raise RequestFailed("malformed event", data[:200])
    return event
