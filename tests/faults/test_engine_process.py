"""The engine process and its client over real sockets: death, silence, abort, overload, drain."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import psutil
import pytest
from scripted_runner import CRASH, KILL, MAX_MODEL_LEN, NOT_A_NUMBER, Script, make_runner

from engine.client import EngineClient
from engine.config import EngineConfig
from engine.errors import EngineDied, EngineFailed, NotReady, QueueFull, RequestTooLarge
from engine.generation import Generation
from engine.messages import Delta, SamplingParams

LIMIT_S = 60.0
"""How long any condition may take on a busy machine before a test fails."""
DEATH_S = 2.0
"""How soon a request learns that its engine died."""


def make_client(script: Script, **settings: Any) -> EngineClient:
    config = EngineConfig(cache_dir=Path(), **settings)
    return EngineClient(script, config, make_runner)  # type: ignore[arg-type]


@asynccontextmanager
async def running(script: Script | None = None, **settings: Any) -> AsyncIterator[EngineClient]:
    client = make_client(script or Script(), **settings)
    async with asyncio.timeout(LIMIT_S):
        await client.start()
        try:
            await client.wait_ready()
            yield client
        finally:
            await client.close()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


def generate(
    client: EngineClient, name: str, prompt: list[int], max_tokens: int, **params: Any
) -> Generation:
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, **params)
    return client.generate(name, prompt, sampling)


async def collect(stream: Generation) -> tuple[list[int], Delta]:
    tokens: list[int] = []
    last = None
    async for delta in stream:
        tokens += delta.token_ids
        last = delta
    assert last is not None
    return tokens, last


def engine_pid(client: EngineClient) -> int:
    assert client.pid is not None
    return client.pid


async def test_streams_tokens_and_counts_them() -> None:
    async with running() as client:
        assert client.info is not None
        assert client.info.model == "scripted"
        assert client.progress is None
        streams = [generate(client, str(i), [i], 10 + i, logprobs=1) for i in range(8)]
        for i, stream in enumerate(streams):
            tokens, last = await collect(stream)
            assert tokens == [i + 1 + k for k in range(10 + i)]
            assert last.finish_reason == "length"
            assert last.logprobs is not None
            assert last.logprobs[0].token_id == tokens[-1]
            assert last.timings is not None
            assert last.timings.queue_s >= 0
        await until(lambda: client.stats.counters.generation_tokens == sum(range(10, 18)))
        await until(lambda: client.stats.running == 0 and client.stats.kv_usage == 0.0)
        assert client.stats.counters.prompt_tokens == 8
        assert client.in_flight == 0


async def test_killed_engine_ends_every_stream_and_comes_back() -> None:
    async with running(Script(step_s=0.02)) as client:
        tokens, _ = await collect(generate(client, "first", [1], 3))
        await until(lambda: client.stats.counters.generation_tokens == 3)
        streams = [generate(client, str(i), [i], 400) for i in range(8)]
        for stream in streams:
            await anext(stream)
        pid = engine_pid(client)
        os.kill(pid, signal.SIGKILL)
        killed = monotonic()
        for stream in streams:
            with pytest.raises(EngineDied, match="SIGKILL"):
                await collect(stream)
        assert monotonic() - killed < DEATH_S
        assert client.state == "restarting"
        assert client.in_flight == 0
        with pytest.raises(NotReady, match="restarting"):
            generate(client, "meanwhile", [1], 3)
        await client.wait_ready()
        assert client.pid != pid
        assert (await collect(generate(client, "first", [1], 3)))[0] == tokens
        await until(lambda: client.stats.counters.generation_tokens > 3)


async def test_exception_in_a_step_is_the_error_of_the_streams() -> None:
    async with running() as client:
        with pytest.raises(EngineDied, match="the device is on fire"):
            await collect(generate(client, "bad", [CRASH], 5))
        await client.wait_ready()
        assert (await collect(generate(client, "good", [1], 2)))[0] == [2, 3]


async def test_crash_after_crash_is_survived() -> None:
    async with running() as client:
        for i in range(3):
            with pytest.raises(EngineDied):
                await collect(generate(client, str(i), [KILL], 5))
            await client.wait_ready()


async def test_a_request_whose_sampling_fails_ends_alone() -> None:
    async with running(Script(step_s=0.01)) as client:
        good = generate(client, "good", [1], 20)
        await anext(good)
        _, last = await collect(generate(client, "bad", [NOT_A_NUMBER], 5))
        assert last.finish_reason == "error"
        assert last.error is not None
        assert "SamplingError" in last.error
        tokens, _ = await collect(good)
        assert tokens == list(range(3, 22))


async def test_stopped_engine_is_unresponsive_until_it_goes_on() -> None:
    async with running(Script(step_s=0.01), silence_limit_s=1.5) as client:
        stream = generate(client, "r", [1], 100)
        await anext(stream)
        os.kill(engine_pid(client), signal.SIGSTOP)
        try:
            await until(lambda: client.state == "unresponsive")
            with pytest.raises(NotReady, match="unresponsive"):
                generate(client, "meanwhile", [1], 3)
        finally:
            os.kill(engine_pid(client), signal.SIGCONT)
        await until(lambda: client.state == "ready")
        tokens, _ = await collect(stream)
        assert tokens == list(range(3, 102))


async def test_engine_stopped_for_too_long_is_replaced() -> None:
    async with running(Script(step_s=0.01), silence_limit_s=0.5, hang_limit_s=2.0) as client:
        stream = generate(client, "r", [1], 300)
        await anext(stream)
        pid = engine_pid(client)
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(EngineDied, match="no sign of progress"):
            await collect(stream)
        await client.wait_ready()
        assert client.pid != pid


async def test_engine_beats_during_a_long_step() -> None:
    async with running(Script(step_s=4.0), silence_limit_s=2.5) as client:
        states = set()
        stream = asyncio.create_task(collect(generate(client, "r", [1], 1)))
        while not stream.done():
            states.add(client.state)
            await asyncio.sleep(0.05)
        assert states == {"ready"}


async def test_a_step_that_never_ends_gets_the_engine_replaced() -> None:
    async with running(Script(step_s=1000.0), hang_limit_s=2.0) as client:
        with pytest.raises(EngineDied, match="no sign of progress"):
            await collect(generate(client, "r", [1], 1))
        await client.wait_ready()


async def test_abort_gives_a_last_delta_and_frees_the_pages() -> None:
    async with running(Script(step_s=0.01)) as client:
        stream = generate(client, "r", [1] * 100, 300)
        await anext(stream)
        client.abort("r")
        _, last = await collect(stream)
        assert last.finish_reason == "abort"
        await until(lambda: client.stats.running == 0 and client.stats.kv_usage == 0.0)
        client.abort("r")
        client.abort("unknown")
        assert (await collect(generate(client, "r", [1], 1)))[0] == [2]


@pytest.mark.parametrize("how", ["aclose", "cancel", "drop"])
async def test_a_stream_that_is_left_aborts_its_request(how: str) -> None:
    async with running(Script(step_s=0.01), max_num_seqs=2) as client:
        streams = [generate(client, str(i), [1] * 50, 400) for i in range(4)]
        await anext(streams[0])  # two run, two wait
        if how == "aclose":
            for stream in streams:
                await stream.aclose()
            with pytest.raises(StopAsyncIteration):
                await anext(streams[0])
        elif how == "cancel":
            readers = [asyncio.create_task(collect(stream)) for stream in streams]
            await asyncio.sleep(0)
            for reader in readers:
                reader.cancel()
            await asyncio.wait(readers)
        else:
            del streams
        await until(lambda: client.in_flight == 0)
        await until(lambda: client.stats.running == client.stats.waiting == 0)
        assert client.stats.kv_usage == 0.0


async def test_beyond_running_and_queued_requests_is_refused() -> None:
    async with running(Script(step_s=0.01), max_num_seqs=2, max_queue=3) as client:
        client.check_admission(5)
        with pytest.raises(QueueFull):
            client.check_admission(6)
        streams = [generate(client, str(i), [1], 30) for i in range(5)]
        with pytest.raises(QueueFull, match="5 requests in flight, the limit is 5"):
            generate(client, "one too many", [1], 30)
        for stream in streams:
            assert (await collect(stream))[0] == list(range(2, 32))
        assert (await collect(generate(client, "later", [1], 2)))[0] == [2, 3]


async def test_what_can_never_run_is_refused_at_submission() -> None:
    async with running() as client:
        with pytest.raises(RequestTooLarge) as refused:
            generate(client, "long", [1] * MAX_MODEL_LEN, 1)
        assert (refused.value.tokens, refused.value.limit) == (MAX_MODEL_LEN + 1, MAX_MODEL_LEN)
        with pytest.raises(ValueError, match="at least one token"):
            generate(client, "empty", [], 1)
        assert client.in_flight == 0


async def test_an_id_in_use_is_refused() -> None:
    async with running(Script(step_s=0.01)) as client:
        stream = generate(client, "r", [1], 20)
        with pytest.raises(ValueError, match="already in use"):
            generate(client, "r", [1], 20)
        assert len((await collect(stream))[0]) == 20


async def test_failing_load_gives_the_cause_in_one_line() -> None:
    client = make_client(Script(load_error="no such file:\n  /models/x"))
    async with asyncio.timeout(LIMIT_S):
        await client.start()
        pid = engine_pid(client)
        with pytest.raises(EngineFailed, match="no such file: /models/x"):
            await client.wait_ready()
        assert client.state == "failed"
        assert client.failure == "no such file: /models/x"
        with pytest.raises(NotReady, match="failed"):
            generate(client, "r", [1], 1)
        assert not psutil.pid_exists(pid)
        await client.close()


async def test_engine_killed_in_its_first_load_is_a_failure() -> None:
    client = make_client(Script(killed_in_load=True))
    async with asyncio.timeout(LIMIT_S):
        await client.start()
        with pytest.raises(EngineFailed, match="SIGKILL"):
            await client.wait_ready()
        await client.close()


async def test_a_restart_whose_load_fails_is_tried_again(tmp_path: Path) -> None:
    obstacle = tmp_path / "obstacle"
    async with running(Script(fails_while=obstacle)) as client:
        obstacle.touch()
        with pytest.raises(EngineDied):
            await collect(generate(client, "bad", [KILL], 5))
        await until(lambda: client.failure == "the file is in the way")
        assert client.state == "restarting"
        obstacle.unlink()
        await client.wait_ready()
        assert (await collect(generate(client, "good", [1], 2)))[0] == [2, 3]


async def test_close_drains_what_runs_and_refuses_what_comes() -> None:
    async with running(Script(step_s=0.01)) as client:
        pid = engine_pid(client)
        reader = asyncio.create_task(collect(generate(client, "r", [1], 50)))
        closing = asyncio.create_task(client.close(drain_s=LIMIT_S))
        await until(lambda: client.state == "draining")
        with pytest.raises(NotReady, match="draining"):
            generate(client, "late", [1], 1)
        assert (await reader)[0] == list(range(2, 52))
        await closing
        assert not psutil.pid_exists(pid)


async def test_a_second_close_cuts_the_drain_short() -> None:
    async with running(Script(step_s=0.05)) as client:
        reader = asyncio.create_task(collect(generate(client, "r", [1], 500)))
        first = asyncio.create_task(client.close(drain_s=LIMIT_S))
        await until(lambda: client.state == "draining")
        await client.close(drain_s=0.0)
        with pytest.raises(EngineDied, match="shutting down"):
            await reader
        await first


async def test_close_while_loading_ends_the_process_at_once() -> None:
    client = make_client(Script(load_s=1000.0))
    async with asyncio.timeout(LIMIT_S):
        await client.start()
        pid = engine_pid(client)
        waiter = asyncio.create_task(client.wait_ready())
        await asyncio.sleep(0)
        await client.close()
        with pytest.raises(NotReady):
            await waiter
        assert not psutil.pid_exists(pid)


async def test_what_cannot_be_pickled_is_an_error_at_start() -> None:
    client = EngineClient(lambda: None, EngineConfig(cache_dir=Path()))  # type: ignore[arg-type, return-value]
    with pytest.raises(Exception, match=r"pickle|lambda"):
        await client.start()
    await client.close()


async def test_an_interrupt_of_the_process_group_leaves_the_engine_to_its_parent() -> None:
    async with running(Script(step_s=0.01)) as client:
        stream = generate(client, "r", [1], 30)
        await anext(stream)
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(engine_pid(client), number)
        assert (await collect(stream))[0] == list(range(3, 32))


async def test_an_idle_engine_uses_no_cpu() -> None:
    async with running() as client:
        await collect(generate(client, "r", [1], 3))
        process = psutil.Process(engine_pid(client))
        before = process.cpu_times()
        await asyncio.sleep(2.0)
        after = process.cpu_times()
        assert after.user + after.system - before.user - before.system < 0.1


PARENT = """
import asyncio, sys
from pathlib import Path
from scripted_runner import Script, make_runner
from engine.client import EngineClient
from engine.config import EngineConfig

async def main():
    client = EngineClient(Script(step_s=0.01), EngineConfig(cache_dir=Path()), make_runner)
    await client.start()
    await client.wait_ready()
    print(client.pid, flush=True)
    await asyncio.sleep(1000)

asyncio.run(main())
"""


def test_a_killed_parent_leaves_no_orphan_and_no_sockets(tmp_path: Path) -> None:
    here = Path(__file__).parent
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(here), str(here.parents[1])]),
        "TMPDIR": str(tmp_path),
    }
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    engine = psutil.Process(pid)
    assert list(tmp_path.glob("egglm-*"))
    parent.kill()
    parent.wait()
    parent.stdout.close()
    engine.wait(timeout=LIMIT_S)
    assert not list(tmp_path.glob("egglm-*"))
