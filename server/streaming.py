"""Server-sent events: a generation's pieces on the wire as they come."""

import logging
from collections.abc import AsyncIterator
from typing import Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from server.errors import CLIENT_CLOSED_REQUEST, ClientDisconnected, internal_error, translate
from server.formats.frames import DONE, KEEP_ALIVE
from server.generation.decoder import Piece
from server.generation.record import RequestRecord
from server.generation.run import Event, Generation, Usage

log = logging.getLogger("egglm.server")


class AnswerFormat(Protocol):
    """What `ChatFormat` and `CompletionFormat` have in common."""

    def opening(self, usage: Usage) -> bytes: ...
    def event(self, event: Event, usage: Usage) -> bytes: ...
    def last(self, usage: Usage) -> bytes: ...
    def whole(self, choices: list[Piece], usage: Usage) -> bytes: ...


class EventStream(Response):
    """Runs a generation and sends it as it comes.

    Until the first piece, or the first keep-alive, nothing is sent, so that a request which fails
    early still gets a plain HTTP error. After that an error becomes a last event, followed by
    `[DONE]` like any end.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        generation: Generation,
        answer: AnswerFormat,
        record: RequestRecord,
        keep_alive_s: float,
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._generation = generation
        self._answer = answer
        self._record = record
        self._keep_alive_s = keep_alive_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False
        try:
            async with self._generation as generation:
                async for frames in self._frames(generation):
                    if not started:
                        started = True
                        await send(
                            {
                                "type": "http.response.start",
                                "status": self.status_code,
                                "headers": self.raw_headers,
                            }
                        )
                    await send({"type": "http.response.body", "body": frames, "more_body": True})
        except ClientDisconnected:
            if not started:
                raise
            self._record.status = CLIENT_CLOSED_REQUEST
        except Exception as error:
            if not started:
                raise
            await send(
                {"type": "http.response.body", "body": self._failed(error), "more_body": True}
            )
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _frames(self, generation: Generation) -> AsyncIterator[bytes]:
        opened = False
        while not generation.done:
            events = await generation.next(self._keep_alive_s)
            if not events:
                yield KEEP_ALIVE
                continue
            usage = generation.usage()
            frames = [self._answer.event(event, usage) for event in events]
            if not opened:
                opened = True
                frames.insert(0, self._answer.opening(usage))
            yield b"".join(frames)
        yield self._answer.last(generation.usage())

    def _failed(self, error: Exception) -> bytes:
        try:
            answer = translate(error)
        except Exception:
            log.exception("request %s failed in its stream", self._record.request_id)
            answer = internal_error()
        self._record.status = answer.status
        return b"data: " + answer.body() + b"\n\n" + DONE


async def whole_answer(generation: Generation, answer: AnswerFormat) -> Response:
    """Runs a generation to its end and answers with one JSON body."""
    async with generation:
        choices = [Piece() for _ in range(generation.plan.num_choices)]
        while not generation.done:
            for index, piece in await generation.next():
                _append(choices[index], piece)
        body = answer.whole(choices, generation.usage())
    return Response(body, media_type="application/json")


def _append(choice: Piece, piece: Piece) -> None:
    choice.text += piece.text
    choice.token_ids += piece.token_ids
    choice.logprobs += piece.logprobs
    choice.prompt_logprobs = choice.prompt_logprobs or piece.prompt_logprobs
    choice.finish_reason = piece.finish_reason
    choice.stop_reason = piece.stop_reason
