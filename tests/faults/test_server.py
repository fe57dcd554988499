"""Faults of the whole server: killed engines, signals, models that cannot be loaded."""

import json
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import openai
import psutil
import pytest
from real_server import RealServer, small_model

LONG = {"model": "stories", "prompt": "Once upon a time", "max_tokens": 400}
BUSY = {**LONG, "n": 4, "extra_body": {"ignore_eos": True}}
"""Keeps the small model's engine busy for seconds."""


@pytest.fixture
def server() -> Iterator[RealServer]:
    """A ready server with a small model under the name `stories`."""
    model = small_model()
    if model is None:
        pytest.skip("the small model is not at hand")
    with RealServer(str(model), "--served-model-name", "stories") as running:
        running.wait_ready()
        yield running


def eventually(holds: Callable[[], bool], deadline_s: float) -> float:
    """Polls until `holds()`; returns the seconds it took."""
    started_s = time.monotonic()
    while not holds():
        assert time.monotonic() - started_s < deadline_s, "the condition did not come to hold"
        time.sleep(0.02)
    return time.monotonic() - started_s


def gone(family: list[psutil.Process]) -> bool:
    return not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in family)


class TestKilledEngine:
    def test_streams_end_and_the_engine_comes_back(self, server: RealServer) -> None:
        def read(_: int) -> list[str]:
            body = {**LONG, "max_tokens": 2000, "n": 8, "ignore_eos": True, "stream": True}
            url = f"{server.url}/v1/completions"
            with httpx.stream("POST", url, json=body, timeout=30) as response:
                return [line for line in response.iter_lines() if line.startswith("data: ")]

        with ThreadPoolExecutor(9) as pool:
            streams = [pool.submit(read, i) for i in range(8)]
            eventually(lambda: server.metric("egglm_request_params_n_count") == 8, 5)
            whole = pool.submit(server.client().completions.create, **{**BUSY, "max_tokens": 2000})
            eventually(lambda: server.metric("egglm_request_params_n_count") == 9, 5)
            eventually(lambda: server.metric("egglm_generation_tokens_total") >= 64, 20)
            killed_s = time.monotonic()
            server.engine().kill()
            for stream in streams:
                lines = stream.result(timeout=10)
                assert lines[-1] == "data: [DONE]"
                error = json.loads(lines[-2].removeprefix("data: "))["error"]
                assert error["type"] == "server_error"
            with pytest.raises(openai.APIStatusError) as caught:
                whole.result(timeout=10)
            assert caught.value.status_code == 503
            assert time.monotonic() - killed_s < 2 + 2
        assert server.process.poll() is None
        eventually(server.is_ready, 60)
        assert server.status("/health") == 200
        assert server.client().completions.create(**LONG).choices[0].text

    def test_health_tells_the_truth_meanwhile(self, server: RealServer) -> None:
        server.engine().kill()
        eventually(lambda: server.status("/health") == 503, 2)
        assert server.status("/ready") == 503
        with pytest.raises(openai.APIStatusError) as caught:
            server.client().completions.create(**LONG)
        assert caught.value.status_code == 503
        eventually(server.is_ready, 60)
        assert server.status("/health") == 200


def test_a_stopped_engine_is_noticed_and_recovers(server: RealServer) -> None:
    engine = server.engine()
    engine.suspend()
    try:
        eventually(lambda: server.status("/health") == 503, 15)
        assert server.status("/ready") == 503
    finally:
        engine.resume()
    eventually(server.is_ready, 5)
    assert server.client().completions.create(**LONG).choices[0].text


class TestSignals:
    def test_running_requests_finish(self, server: RealServer) -> None:
        family = server.family()
        with ThreadPoolExecutor(3) as pool:
            client = server.client()
            answers = [pool.submit(client.completions.create, **BUSY) for _ in range(3)]
            eventually(lambda: server.metric("egglm_request_params_n_count") == 3, 5)
            server.signal(signal.SIGTERM)
            eventually(lambda: server.status("/ready") != 200, 2)
            assert all(a.result().usage.completion_tokens == 4 * 400 for a in answers)
        assert server.wait_ended(10) == 0
        eventually(lambda: gone(family), 5)

    def test_a_second_signal_aborts(self, server: RealServer) -> None:
        stream = server.client().completions.create(stream=True, **{**BUSY, "n": 64})
        next(stream)
        server.signal(signal.SIGTERM)
        eventually(lambda: server.status("/ready") == 503, 2)
        server.signal(signal.SIGTERM)
        with pytest.raises(openai.APIError):
            list(stream)
        assert server.wait_ended(10) == 0

    def test_while_the_model_is_loaded(self, tmp_path: Path) -> None:
        model = small_model()
        if model is None:
            pytest.skip("the small model is not at hand")
        with RealServer(str(model), EGGLM_CACHE_DIR=str(tmp_path)) as server:
            eventually(lambda: server.status("/health") == 200, 20)
            family = server.family()
            server.signal(signal.SIGTERM)
            assert server.wait_ended(10) == 0
            eventually(lambda: gone(family), 5)


class TestFailedStart:
    """Each ends soon, with the cause as the last line and nothing left running."""

    def last_line(self, server: RealServer, deadline_s: float = 20) -> str:
        family = server.family()
        assert server.wait_ended(deadline_s) == 1
        eventually(lambda: gone(family), 5)
        with socket.create_server(("127.0.0.1", server.port)):
            pass
        return server.output.splitlines()[-1]

    @pytest.mark.parametrize(
        "content", [b"", b"GGUF", b"no model at all" * 100], ids=["empty", "header", "text"]
    )
    def test_a_broken_file(self, tmp_path: Path, content: bytes) -> None:
        path = tmp_path / "broken.gguf"
        path.write_bytes(content)
        with RealServer(str(path)) as server:
            assert "broken.gguf" in self.last_line(server)
            assert "Traceback" not in server.output

    def test_a_truncated_file(self, tmp_path: Path) -> None:
        model = small_model()
        if model is None:
            pytest.skip("the small model is not at hand")
        path = tmp_path / "short.gguf"
        path.write_bytes(model.read_bytes()[: model.stat().st_size // 2])
        with RealServer(str(path)) as server:
            assert "short.gguf" in self.last_line(server)
            assert "Traceback" not in server.output

    def test_no_memory_for_the_kv_cache(self) -> None:
        model = small_model()
        if model is None:
            pytest.skip("the small model is not at hand")
        with RealServer(str(model), "--kv-cache-memory", "100TB") as server:
            assert "KV" in self.last_line(server)
