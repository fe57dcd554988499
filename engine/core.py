"""The engine without its process: requests go in, steps are made, deltas come out."""

import itertools
import logging
from time import monotonic
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from engine.batch import Batch, Chunk, build_batch
from engine.config import EngineConfig
from engine.kv_cache import PagePool
from engine.limits import check_size
from engine.logprobs import token_logprobs
from engine.messages import Counters, Delta, EngineInfo, FinishReason, Generate, Stats
from engine.pooling import Pooling, for_embeddings
from engine.request import Request
from engine.sampling import Sampler, choose_tokens
from engine.scheduler import Scheduler

logger = logging.getLogger(__name__)


class StepRunner(Protocol):
    """What the engine asks of a loaded model."""

    @property
    def num_pages(self) -> int: ...

    @property
    def info(self) -> EngineInfo: ...

    def step(self, batch: Batch) -> NDArray[np.float32]:
        """Computes a batch; logits [o, vocab] f32, valid until the next step."""
        ...


class EngineCore:
    """Schedules requests on one runner. Not thread-safe, but for `stats`."""

    def __init__(self, runner: StepRunner, config: EngineConfig) -> None:
        self._runner = runner
        self._info = runner.info
        if self._info.pooling is not None:
            config = for_embeddings(config, self._info.max_model_len)
        self._pool = PagePool(runner.num_pages)
        self._scheduler = Scheduler(config, self._pool)
        self._requests: dict[str, Request] = {}
        self._arrivals = itertools.count()
        self._prompt_tokens = 0
        self._generation_tokens = 0
        self._steps = 0

    @property
    def busy(self) -> bool:
        return bool(self._requests)

    def add(self, message: Generate) -> Delta | None:
        """Queues a request; the error delta that ends it when it cannot be served."""
        try:
            request = self._accept(message)
        except Exception as error:
            logger.warning("request %s refused: %s", message.request_id, error)
            return Delta(message.request_id, [], finish_reason="error", error=str(error))
        self._requests[request.request_id] = request
        self._scheduler.add(request)
        return None

    def abort(self, request_id: str) -> Delta | None:
        """Ends a request and frees its pages; None when it has already ended."""
        request = self._requests.get(request_id)
        if request is None:
            return None
        return self._finish(request, Delta(request_id, []), "abort")

    def step(self) -> list[Delta]:
        """Makes one step, and returns what is new for each request that it moved on."""
        chunks = self._scheduler.schedule()
        if not chunks:
            return []
        now = monotonic()
        for chunk in chunks:
            if chunk.request.started_s is None:
                chunk.request.started_s = now
                self._prompt_tokens += chunk.request.prompt_len
        batch, first_rows = build_batch(chunks)
        logits = self._runner.step(batch)
        self._scheduler.complete(chunks)
        self._steps += 1
        if self._info.pooling is not None:
            return self._embed(self._info.pooling, chunks, first_rows, logits)
        return self._advance(chunks, first_rows, logits)

    def stats(self) -> Stats:
        """Gauges and totals; may be called from another thread, then each figure is a moment's."""
        scheduler, pool = self._scheduler, self._pool
        return Stats(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            kv_usage=pool.num_used / pool.num_pages,
            kv_pages_total=pool.num_pages,
            counters=Counters(
                preemptions=scheduler.preemptions,
                prefix_queries=scheduler.prefix_queries,
                prefix_hits=scheduler.prefix_hits,
                prompt_tokens=self._prompt_tokens,
                generation_tokens=self._generation_tokens,
                steps=self._steps,
            ),
        )

    def _accept(self, message: Generate) -> Request:
        params, limit = message.params, self._info.max_model_len
        if message.request_id in self._requests:
            raise ValueError(f"request id {message.request_id!r} is already in use")
        check_size(len(message.prompt_ids), params.max_tokens, self._info)
        prompt = np.array(message.prompt_ids, np.int64)
        outside = prompt[(prompt < 0) | (prompt >= self._info.vocab_size)]
        if len(outside):
            raise ValueError(
                f"prompt holds token {outside[0]}, the vocabulary has {self._info.vocab_size}"
            )
        sampler = Sampler(params, prompt.astype(np.int32), self._info.vocab_size)
        return Request(message, next(self._arrivals), limit, sampler)

    def _advance(
        self, chunks: list[Chunk], first_rows: list[int], logits: NDArray[np.float32]
    ) -> list[Delta]:
        deltas = []
        sampled: list[Request] = []
        rows: list[int] = []
        for chunk, row in zip(chunks, first_rows, strict=True):
            request = chunk.request
            if request.wants_prompt_rows and chunk.num_rows:
                try:
                    _collect_prompt_logprobs(chunk, logits[row : row + chunk.num_rows])
                except Exception as error:
                    deltas.append(self._fail(request, error))
                    continue
            if request.num_remaining == 0:
                if request.max_tokens == 0:
                    deltas.append(self._finish(request, self._delta(request, []), "length"))
                else:
                    sampled.append(request)
                    rows.append(row + chunk.num_rows - 1)
        if not sampled:
            return deltas
        tokens = choose_tokens(logits, rows, [request.sampler for request in sampled])
        for request, row, token in zip(sampled, rows, tokens, strict=True):
            try:
                if isinstance(token, Exception):
                    raise token
                deltas.append(self._accept_token(request, token, logits[row]))
            except Exception as error:
                deltas.append(self._fail(request, error))
        return deltas

    def _embed(
        self,
        pooling: Pooling,
        chunks: list[Chunk],
        first_rows: list[int],
        states: NDArray[np.float32],
    ) -> list[Delta]:
        """Ends the requests whose prompts were computed, with their embeddings."""
        deltas = []
        for chunk, row in zip(chunks, first_rows, strict=True):
            delta = Delta(chunk.request.request_id, [])
            delta.embedding = pooling.embedding(states[row : row + chunk.num_rows]).tobytes()
            deltas.append(self._finish(chunk.request, delta, "stop"))
        return deltas

    def _accept_token(self, request: Request, token_id: int, logits: NDArray[np.float32]) -> Delta:
        params = request.params
        delta = self._delta(request, [token_id])
        if params.logprobs is not None:
            delta.logprobs = [token_logprobs(logits, token_id, params.logprobs)]
        request.append_token(token_id)
        request.sampler.observe(token_id)
        if request.first_token_s is None:
            request.first_token_s = monotonic()
        self._generation_tokens += 1
        if token_id in params.eos_token_ids:
            return self._finish(request, delta, "stop")
        if token_id in params.stop_token_ids:
            delta.stop_token_id = token_id
            return self._finish(request, delta, "stop")
        if request.num_output >= request.max_tokens:
            return self._finish(request, delta, "length")
        return delta

    def _delta(self, request: Request, token_ids: list[int]) -> Delta:
        delta = Delta(request.request_id, token_ids, cached_tokens=request.cached_tokens)
        if not request.delivered_prompt_logprobs:
            delta.prompt_logprobs = request.prompt_logprobs
            request.delivered_prompt_logprobs = True
        return delta

    def _fail(self, request: Request, error: Exception) -> Delta:
        logger.error("request %s failed", request.request_id, exc_info=error)
        message = f"{type(error).__name__}: {error}"
        return self._finish(request, Delta(request.request_id, [], error=message), "error")

    def _finish(self, request: Request, delta: Delta, reason: FinishReason) -> Delta:
        self._scheduler.remove(request)
        del self._requests[request.request_id]
        delta.finish_reason = reason
        delta.cached_tokens = request.cached_tokens
        delta.timings = request.timings()
        return delta


def _collect_prompt_logprobs(chunk: Chunk, logits: NDArray[np.float32]) -> None:
    """Appends the log-probabilities of the prompt tokens after the chunk's last rows."""
    request = chunk.request
    collected, top = request.prompt_logprobs, request.params.prompt_logprobs
    assert collected is not None
    assert top is not None
    start = chunk.end - chunk.num_rows
    for position in range(start, min(chunk.end, request.prompt_len - 1)):
        token_id = int(request.tokens[position + 1])
        collected.append(token_logprobs(logits[position - start], token_id, top))
