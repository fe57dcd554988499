"""A plan in flight: an engine request a choice, their pieces in one queue, a clean end."""

import asyncio
import itertools
import time
from types import TracebackType
from typing import NamedTuple, Self

from starlette.types import Receive

from engine.errors import NotReady, QueueFull
from engine.messages import Delta
from server.engine_handle import DeltaStream
from server.errors import APIError, ClientDisconnected, unavailable
from server.generation.decoder import ChoiceDecoder, Piece
from server.generation.plan import GenerationPlan
from server.generation.record import RequestRecord
from server.state import ServedModel, ServerState

_sequence = itertools.count()


class Event(NamedTuple):
    """What the choice of this index gained."""

    choice: int
    piece: Piece


class Usage(NamedTuple):
    """Tokens so far; each prompt counts once, whatever n is."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


class Generation:
    """Runs a plan's choices; an async context manager whose exit aborts what still runs.

    Leaving it, for whatever reason, closes every engine request, so that a client that goes away
    frees its pages.
    """

    def __init__(
        self,
        state: ServerState,
        model: ServedModel,
        plan: GenerationPlan,
        receive: Receive,
        record: RequestRecord,
    ) -> None:
        self.plan = plan
        self._state = state
        self._metrics = state.metrics
        self._model = model
        self._receive = receive
        self._record = record
        self._queue: asyncio.Queue[Event | Exception] = asyncio.Queue()
        self._streams: list[DeltaStream] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._decoders = [
            ChoiceDecoder(model.tokenizer, plan.text) for _ in range(plan.num_choices)
        ]
        self._cached_tokens = [0] * len(plan.prompts)
        self._unfinished = plan.num_choices

    async def __aenter__(self) -> Self:
        """Submits every choice, or none. Raises `QueueFull` or `NotReady` of `engine.errors`."""
        try:
            self._submit()
        except Exception as error:
            await self.__aexit__(type(error), error, error.__traceback__)
            raise
        return self

    def _submit(self) -> None:
        engine, plan = self._model.engine, self.plan
        engine.check_admission(plan.num_choices)
        self._state.in_flight.add(self)
        unique = next(_sequence)
        for index in range(plan.num_choices):
            name = f"{plan.request_id}/{unique}/{index}"
            ids = plan.prompts[index // plan.n].ids
            self._streams.append(engine.generate(name, ids, plan.params_of(index)))
            self._tasks.append(asyncio.create_task(self._pump(index), name=name))
        self._tasks.append(asyncio.create_task(self._watch_client()))
        self._metrics.request_params_n.observe(plan.n)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for stream in self._streams:
            await stream.aclose()
        self._state.in_flight.discard(self)
        self._account(error)

    @property
    def done(self) -> bool:
        """Whether every choice has given its last piece."""
        return self._unfinished == 0

    def fail(self, error: Exception) -> None:
        """Ends the request with `error`, from outside."""
        self._queue.put_nowait(error)

    async def next(self, timeout_s: float | None = None) -> list[Event]:
        """All events there are, once there is one; empty if there is none within `timeout_s`.

        Raises whatever ended the request early.
        """
        try:
            async with asyncio.timeout(timeout_s):
                items = [await self._queue.get()]
        except TimeoutError:
            return []
        while not self._queue.empty():
            items.append(self._queue.get_nowait())
        events = []
        for item in items:
            if isinstance(item, Exception):
                raise item
            self._unfinished -= item.piece.finish_reason is not None
            events.append(item)
        return events

    def usage(self) -> Usage:
        return Usage(
            sum(len(prompt.ids) for prompt in self.plan.prompts),
            sum(decoder.completion_tokens for decoder in self._decoders),
            sum(self._cached_tokens),
        )

    async def _pump(self, index: int) -> None:
        """Feeds one choice's deltas to its decoder until either has had enough."""
        decoder, stream = self._decoders[index], self._streams[index]
        clock = _ChoiceClock(self._record.arrived_s)
        try:
            async for delta in stream:
                if clock.first_delta:
                    clock.first_delta = False
                    self._admitted(index, delta)
                before = decoder.completion_tokens
                piece = decoder.push(delta)
                self._observe_tokens(clock, decoder.completion_tokens - before)
                if decoder.finish_reason in ("error", "abort"):
                    raise engine_failure(delta)
                if piece is not None:
                    self._queue.put_nowait(Event(index, piece))
                if decoder.finish_reason is not None:
                    self._observe_end(clock, decoder, delta)
                    await stream.aclose()
                    return
            raise RuntimeError(f"choice {index}: the engine's deltas ended without a reason")
        except Exception as error:
            self._queue.put_nowait(error)

    async def _watch_client(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._queue.put_nowait(ClientDisconnected())

    def _admitted(self, index: int, delta: Delta) -> None:
        prompt_index, k = divmod(index, self.plan.n)
        prompt = self.plan.prompts[prompt_index]
        self._metrics.request_params_max_tokens.observe(prompt.max_tokens)
        if k > 0:
            return
        self._cached_tokens[prompt_index] = delta.cached_tokens
        self._metrics.prompt_tokens.inc(len(prompt.ids))
        self._metrics.prompt_tokens_cached.inc(delta.cached_tokens)
        self._metrics.request_prompt_tokens.observe(len(prompt.ids))

    def _observe_tokens(self, clock: "_ChoiceClock", new_tokens: int) -> None:
        if not new_tokens:
            return
        now_s = time.monotonic()
        if clock.first_token_s is None:
            clock.first_token_s = now_s
            self._metrics.time_to_first_token.observe(now_s - clock.arrived_s)
            self._record.first_token(now_s)
        else:
            self._metrics.inter_token_latency.observe(now_s - clock.last_token_s)
        clock.last_token_s = now_s
        self._metrics.generation_tokens.inc(new_tokens)

    def _observe_end(self, clock: "_ChoiceClock", decoder: ChoiceDecoder, delta: Delta) -> None:
        metrics = self._metrics
        assert decoder.finish_reason is not None
        metrics.finished(decoder.finish_reason)
        metrics.request_generation_tokens.observe(decoder.completion_tokens)
        metrics.e2e_latency.observe(time.monotonic() - clock.arrived_s)
        if delta.timings is not None:
            metrics.queue_time.observe(delta.timings.queue_s)
            metrics.prefill_time.observe(delta.timings.prefill_s)
            metrics.decode_time.observe(delta.timings.decode_s)
            self._record.queued(delta.timings.queue_s)
        if clock.first_token_s is not None and decoder.completion_tokens > 1:
            gap_s = (clock.last_token_s - clock.first_token_s) / (decoder.completion_tokens - 1)
            metrics.time_per_output_token.observe(gap_s)
            self._record.token_gap(gap_s)

    def _account(self, error: BaseException | None) -> None:
        """Books the choices that did not end by themselves, and the request's record."""
        gone = error is None or isinstance(
            error, ClientDisconnected | asyncio.CancelledError | GeneratorExit
        )
        unfinished = "abort" if gone else "error"
        reasons = [decoder.finish_reason or unfinished for decoder in self._decoders]
        if isinstance(error, QueueFull):
            self._metrics.rejected("queue_full")
        elif isinstance(error, NotReady):
            self._metrics.rejected("not_ready")
        else:
            for reason in reasons:
                if reason in ("abort", "error"):
                    self._metrics.finished(reason)
        self._record.ended(self.usage(), reasons)


class _ChoiceClock:
    """When one choice's tokens came, in `time.monotonic` seconds."""

    __slots__ = ("arrived_s", "first_delta", "first_token_s", "last_token_s")

    def __init__(self, arrived_s: float) -> None:
        self.arrived_s = arrived_s
        self.first_delta = True
        self.first_token_s: float | None = None
        self.last_token_s = arrived_s


def engine_failure(delta: Delta) -> APIError:
    """The answer for a choice that the engine itself ended."""
    if delta.finish_reason == "abort":
        return unavailable("The request was aborted by the server.", "aborted")
    message = delta.error or "The engine could not go on with this request."
    return APIError(500, message, type="server_error", code="engine_error")
