"""The engine as the server uses it: submits requests, streams deltas, keeps the process alive."""

import asyncio
import logging
import math
from collections.abc import Sequence
from time import monotonic
from typing import Literal

from msgspec.structs import replace

from engine.config import EngineConfig
from engine.errors import EngineDied, EngineError, EngineFailed, NotReady, QueueFull
from engine.generation import Generation, Inbox
from engine.limits import check_size
from engine.link import POLL_S, EngineLink
from engine.messages import (
    Abort,
    Counters,
    Delta,
    Deltas,
    EngineInfo,
    Failed,
    FromEngine,
    Generate,
    Progress,
    Ready,
    SamplingParams,
    Stats,
)
from engine.process import HEARTBEAT_S, LoadModel, RunnerFactory

logger = logging.getLogger(__name__)

State = Literal["starting", "ready", "unresponsive", "draining", "restarting", "failed"]

_FIRST_DELAY_S = 0.25
_LAST_DELAY_S = 30.0
_STABLE_S = 60.0
"""After so long in service a crash counts as the first again."""
_STOP_GRACE_S = 2.0


class EngineClient:
    """A handle of one engine process, for one event loop.

    A process that dies is restarted, after a delay that doubles from crash to crash. A process that
    cannot be loaded the first time is not: the state is then "failed", the cause in `failure`.

    `load_model` runs in the engine process and must be picklable, as must `make_runner`, which
    replaces the compiling runner in tests.
    """

    def __init__(
        self,
        load_model: LoadModel,
        config: EngineConfig,
        make_runner: RunnerFactory | None = None,
    ) -> None:
        self.config = config
        self.info: EngineInfo | None = None
        """What was loaded; set at the first `Ready` and kept through restarts."""
        self.progress: Progress | None = None
        """How far loading is; None when it is done."""
        self.failure: str | None = None
        """Why the last process ended, in one line; None again when the next one is ready."""
        self._load_model = load_model
        self._make_runner = make_runner
        self._state: State = "starting"
        self._settled = asyncio.Event()
        self._link: EngineLink | None = None
        self._inboxes: dict[str, Inbox] = {}
        self._cause: str | None = None
        self._stats = Stats()
        self._past = Counters()
        self._silent_s = 0.0
        self._stalled_s = 0.0
        self._supervisor: asyncio.Task[None] | None = None
        self._closer: asyncio.Task[None] | None = None
        self._drain_until = math.inf

    @property
    def state(self) -> State:
        """Requests are taken only in state "ready"."""
        if self._state == "ready" and self._silent_s > self.config.silence_limit_s:
            return "unresponsive"
        return self._state

    @property
    def stats(self) -> Stats:
        """The latest gauges, and totals that keep growing through restarts.

        What a process counted in its last second, before it was killed, is not in the totals.
        """
        return replace(self._stats, counters=self._past + self._stats.counters)

    @property
    def in_flight(self) -> int:
        """Requests that the engine has been given and has not ended."""
        return len(self._inboxes)

    @property
    def pid(self) -> int | None:
        """The engine process, None while there is none."""
        return None if self._link is None else self._link.pid

    async def start(self) -> None:
        """Spawns the process; loading goes on in the background."""
        link = self._spawn()
        self._supervisor = asyncio.create_task(self._supervise(link), name="engine-supervisor")

    async def wait_ready(self, timeout_s: float | None = None) -> EngineInfo:
        """Waits until requests are taken.

        Raises `EngineFailed` when the model cannot be loaded, `NotReady` when the client is closed
        meanwhile, `TimeoutError` after `timeout_s`. Without a limit it ends with the process.
        """
        async with asyncio.timeout(timeout_s):
            await self._settled.wait()
        if self._state == "failed":
            raise EngineFailed(self.failure)
        if self._state != "ready" or self.info is None:
            raise NotReady(self._state)
        return self.info

    def check_admission(self, count: int = 1) -> None:
        """Raises `NotReady` or `QueueFull` unless `count` more requests would be taken now."""
        if self.state != "ready":
            raise NotReady(self.state)
        limit = self.config.max_num_seqs + self.config.max_queue
        if self.in_flight + count > limit:
            raise QueueFull(self.in_flight, limit)

    def generate(
        self,
        request_id: str,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        priority: int = 0,
    ) -> Generation:
        """Submits a request, and returns the stream of its deltas.

        Raises `NotReady`, `QueueFull`, `RequestTooLarge`, or `ValueError` for an empty prompt or an
        id in use; the stream raises `EngineDied` when the process ends first.
        """
        self.check_admission()
        assert self.info is not None
        assert self._link is not None
        if request_id in self._inboxes:
            raise ValueError(f"request id {request_id!r} is already in use")
        check_size(len(prompt_ids), params.max_tokens, self.info)
        self._link.send(Generate(request_id, list(prompt_ids), params, priority, monotonic()))
        inbox = self._inboxes[request_id] = Inbox()
        return Generation(request_id, inbox, self.abort)

    def abort(self, request_id: str) -> None:
        """Ends a request at the next step; its last delta has `finish_reason` "abort"."""
        if request_id in self._inboxes and self._link is not None:
            self._link.send(Abort(request_id))

    async def close(self, drain_s: float = 0.0) -> None:
        """Takes no more requests, lets those in flight go on for `drain_s`, and ends the process.

        What is still in flight then raises `EngineDied`. A second call can only shorten the wait.
        """
        self._drain_until = min(self._drain_until, monotonic() + drain_s)
        if self._closer is None:
            self._closer = asyncio.create_task(self._close(), name="engine-close")
        await asyncio.shield(self._closer)

    async def _close(self) -> None:
        self._state = "draining"
        self._settled.set()
        while self._inboxes and monotonic() < self._drain_until:
            await asyncio.sleep(0.02)
        self._drop_requests(EngineDied("the server is shutting down"))
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.wait([self._supervisor])
        if self._link is not None:
            await self._link.stop(_STOP_GRACE_S if self.info is not None else 0.0)
            self._link = None

    def _spawn(self) -> EngineLink:
        self._cause = None
        self._silent_s = self._stalled_s = 0.0
        self._link = EngineLink(self._load_model, self.config, self._make_runner)
        return self._link

    async def _supervise(self, link: EngineLink) -> None:
        try:
            delay_s = _FIRST_DELAY_S
            while True:
                served_s = await self._follow(link)
                self.failure = self._cause or link.ending()
                await link.stop(0.0)
                self._link = None
                self._past += self._stats.counters
                self._stats = Stats(kv_pages_total=self._stats.kv_pages_total)
                if self._state == "draining":
                    return
                if self.info is None:
                    self._fail(self.failure)
                    return
                self._state = "restarting"
                self._settled.clear()
                self._drop_requests(EngineDied(f"the engine process ended: {self.failure}"))
                delay_s = _FIRST_DELAY_S if served_s > _STABLE_S else delay_s
                link, delay_s = await self._respawn(delay_s)
        except Exception as error:
            logger.exception("the engine's supervisor ends")
            self._fail(str(error))
            raise
        finally:
            self._drop_requests(EngineDied(f"the engine process ended: {self.failure}"))

    async def _respawn(self, delay_s: float) -> tuple[EngineLink, float]:
        while True:
            logger.error("engine ended: %s; restart in %.2f s", self.failure, delay_s)
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, _LAST_DELAY_S)
            try:
                return self._spawn(), delay_s
            except OSError as error:
                self.failure = str(error)

    def _fail(self, cause: str) -> None:
        self.failure = cause
        self._state = "failed"
        self._settled.set()

    async def _follow(self, link: EngineLink) -> float:
        """Handles what the process sends until it ends; returns the seconds since it was ready."""
        ready_at = math.inf
        async for message in link.messages():
            if message is None:
                self._silent_s += POLL_S
            else:
                self._silent_s = 0.0
                self._handle(message)
                if isinstance(message, Ready):
                    ready_at = monotonic()
            stuck_s = max(self._silent_s, self._stalled_s)
            if ready_at < math.inf and stuck_s > self.config.hang_limit_s:
                logger.error("engine stuck for %.0f s, killing it", stuck_s)
                self._cause = f"no sign of progress for {stuck_s:.0f} s"
                link.kill()
                self._silent_s = self._stalled_s = 0.0
        return monotonic() - ready_at

    def _handle(self, message: FromEngine) -> None:
        if isinstance(message, Deltas):
            for delta in message.deltas:
                self._deliver(delta)
        elif isinstance(message, Stats):
            steps = message.counters.steps
            moved = message.running == 0 or steps != self._stats.counters.steps
            self._stalled_s = 0.0 if moved else self._stalled_s + HEARTBEAT_S
            self._stats = message
        elif isinstance(message, Progress):
            self.progress = message
        elif isinstance(message, Failed):
            self._cause = message.message
        else:
            self.info = message.info
            self.progress = self.failure = None
            if self._state != "draining":
                self._state = "ready"
                self._settled.set()

    def _deliver(self, delta: Delta) -> None:
        inbox = self._inboxes.get(delta.request_id)
        if inbox is None:
            return
        if delta.finish_reason is not None:
            del self._inboxes[delta.request_id]
        inbox.put_nowait(delta)

    def _drop_requests(self, error: EngineError) -> None:
        for inbox in self._inboxes.values():
            inbox.put_nowait(error)
        self._inboxes.clear()
