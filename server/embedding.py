"""Prompts to embeddings: an engine request each, a clean end."""

import asyncio
import itertools
import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from starlette.types import Receive

from engine.errors import NotReady, QueueFull
from engine.messages import SamplingParams
from server.errors import ClientDisconnected
from server.generation.record import RequestRecord
from server.generation.run import Usage, engine_failure
from server.state import ServedModel, ServerState

_sequence = itertools.count()


class Embedding:
    """Runs prompts, so many at a time as the engine runs; whatever ends it aborts what still runs."""

    def __init__(
        self,
        state: ServerState,
        model: ServedModel,
        prompts: Sequence[list[int]],
        receive: Receive,
        record: RequestRecord,
    ) -> None:
        self._state, self._model, self._prompts = state, model, prompts
        self._receive, self._record = receive, record
        self._places = asyncio.Semaphore(state.settings.max_num_seqs)
        self._failure: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()

    def fail(self, error: Exception) -> None:
        if not self._failure.done():
            self._failure.set_result(error)

    async def run(self) -> list[NDArray[np.float32]]:
        """The embedding of each prompt. Raises `QueueFull`, `NotReady`, or what ended it early."""
        metrics, error = self._state.metrics, None
        tasks: list[asyncio.Task[NDArray[np.float32]]] = []
        watcher = asyncio.create_task(self._watch_client())
        self._state.in_flight.add(self)
        try:
            wanted = min(len(self._prompts), self._state.settings.max_num_seqs)
            self._model.engine.check_admission(wanted)
            unique = next(_sequence)
            for index, ids in enumerate(self._prompts):
                name = f"{self._record.request_id}/{unique}/{index}"
                tasks.append(asyncio.create_task(self._embed(name, ids), name=name))
            work = asyncio.gather(*tasks)
            await asyncio.wait((work, self._failure), return_when=asyncio.FIRST_COMPLETED)
            if self._failure.done():
                work.cancel()
                raise self._failure.result()
            return work.result()
        except BaseException as raised:
            error = raised
            raise
        finally:
            for task in (watcher, *tasks):
                task.cancel()
            await asyncio.gather(watcher, *tasks, return_exceptions=True)
            self._state.in_flight.discard(self)
            if isinstance(error, QueueFull):
                metrics.rejected("queue_full")
            elif isinstance(error, NotReady):
                metrics.rejected("not_ready")
            gone = isinstance(error, ClientDisconnected | asyncio.CancelledError)
            reason = "stop" if error is None else "abort" if gone else "error"
            self._record.ended(Usage(sum(map(len, self._prompts)), 0, 0), [reason])

    async def _embed(self, name: str, ids: list[int]) -> NDArray[np.float32]:
        metrics = self._state.metrics
        async with self._places:
            stream = self._model.engine.generate(name, ids, SamplingParams(max_tokens=0))
            try:
                async for delta in stream:
                    if delta.finish_reason in ("error", "abort"):
                        raise engine_failure(delta)
                    assert delta.embedding is not None
                    assert delta.timings is not None
                    metrics.finished("stop")
                    metrics.prompt_tokens.inc(len(ids))
                    metrics.request_prompt_tokens.observe(len(ids))
                    metrics.queue_time.observe(delta.timings.queue_s)
                    metrics.prefill_time.observe(delta.timings.prefill_s)
                    metrics.e2e_latency.observe(time.monotonic() - self._record.arrived_s)
                    self._record.queued(delta.timings.queue_s)
                    return np.frombuffer(delta.embedding, np.float32)
                raise RuntimeError(f"{name}: the engine's deltas ended without an embedding")
            finally:
                await stream.aclose()

    async def _watch_client(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.fail(ClientDisconnected())
