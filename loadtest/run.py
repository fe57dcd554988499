"""Sends the requests of a workload when they are due and gathers what became of them."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter, process_time

import httpx

from loadtest.chat_client import Reply, RequestFailed, stream_chat


@dataclass(frozen=True, slots=True)
class Outcome:
    """One request: when it was due and when it was sent, in seconds from the start of the run."""

    due_s: float
    sent_s: float
    result: Reply | RequestFailed


@dataclass(frozen=True)
class Run:
    """A whole run; `outcomes` are in the order in which the requests were due."""

    started_s: float
    """On the clock of `time.perf_counter`, like the times of replies."""
    duration_s: float
    """From the start until the last request has ended."""
    client_cpu_s: float
    """Processor time that this client took meanwhile."""
    outcomes: tuple[Outcome, ...]


async def run_load(
    http: httpx.AsyncClient,
    bodies: Sequence[bytes],
    due_s: Sequence[float],
    *,
    max_concurrency: int | None,
    timeout_s: float,
    ended: Callable[[], None],
) -> Run:
    """Sends `bodies[i]` at `due_s[i]` seconds, however many are unanswered by then.

    Only `max_concurrency` holds requests back; the time that they wait for it is not part of their
    latency but shows in `sent_s`. `ended` is called after each.
    """
    gate = asyncio.Semaphore(max_concurrency) if max_concurrency else contextlib.nullcontext()
    started_s, started_cpu_s = perf_counter(), process_time()

    async def send(body: bytes, due: float) -> Outcome:
        async with gate:
            sent_s = perf_counter() - started_s
            result: Reply | RequestFailed
            try:
                result = await stream_chat(http, body, timeout_s)
            except RequestFailed as failure:
                result = failure
        ended()
        return Outcome(due, sent_s, result)

    async with asyncio.TaskGroup() as group:
        tasks = []
        for body, due in zip(bodies, due_s, strict=True):
            wait_s = due - (perf_counter() - started_s)
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            tasks.append(group.create_task(send(body, due)))
    return Run(
        started_s,
        perf_counter() - started_s,
        process_time() - started_cpu_s,
        tuple(task.result() for task in tasks),
    )
