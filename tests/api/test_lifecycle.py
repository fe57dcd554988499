"""What the server does when clients leave, the queue is full, the engine dies, or it must stop."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest
from scripted import bytes_of
from served import ServedScript, ServeScript, eventually

from server.shutdown import Shutdown

COMPLETION = {"model": "tiny", "prompt": "x", "max_tokens": 50}


def abort_count(served: ServedScript) -> float:
    return served.metric('egglm_request_success_total{finished_reason="abort",model_name="tiny"}')


@pytest.fixture
def endless(serve_script: ServeScript) -> ServedScript:
    """A server whose requests generate until their limit, once the engine's gate is open."""
    served = serve_script()
    served.engine.script = lambda ids, params: bytes_of("a")
    served.engine.gate.clear()
    return served


class TestDisconnect:
    @pytest.mark.parametrize("stream", [False, True])
    @pytest.mark.parametrize("n", [1, 4])
    def test_while_nothing_has_come(self, endless: ServedScript, stream: bool, n: int) -> None:
        body = COMPLETION | {"stream": stream, "n": n}
        with httpx.Client() as http, pytest.raises(httpx.ReadTimeout):
            http.post(f"{endless.url}/v1/completions", json=body, timeout=0.3)
        eventually(lambda: not endless.engine.active, 1.0)
        eventually(lambda: abort_count(endless) == n, 1.0)
        assert not endless.state.in_flight

    def test_mid_stream(self, endless: ServedScript) -> None:
        endless.engine.pass_first = 2
        body = COMPLETION | {"stream": True}
        with endless.http() as http, http.stream("POST", "/v1/completions", json=body) as response:
            next(response.iter_lines())
        eventually(lambda: not endless.engine.active, 1.0)

    def test_two_hundred_times(self, endless: ServedScript) -> None:
        endless.engine.queue_limit = 1000

        def give_up(_: int) -> None:
            with httpx.Client(base_url=endless.url) as http, pytest.raises(httpx.ReadTimeout):
                http.post("/v1/completions", json=COMPLETION | {"stream": True}, timeout=0.5)

        with ThreadPoolExecutor(50) as pool:
            list(pool.map(give_up, range(200)))
        eventually(lambda: not endless.engine.active and not endless.state.in_flight, 2.0)
        endless.engine.gate.set()
        assert endless.client().completions.create(**COMPLETION).choices[0].text


class TestFullQueue:
    def test_the_rest_is_turned_away(self, endless: ServedScript) -> None:
        endless.engine.queue_limit = 4

        def send(_: int) -> httpx.Response:
            return httpx.post(f"{endless.url}/v1/completions", json=COMPLETION, timeout=10)

        with ThreadPoolExecutor(20) as pool:
            answers = [pool.submit(send, i) for i in range(20)]
            eventually(lambda: sum(answer.done() for answer in answers) == 16)
            endless.engine.gate.set()
            responses = [answer.result() for answer in answers]
        refused = [response for response in responses if response.status_code == 429]
        assert len(refused) == 16
        assert all(int(response.headers["retry-after"]) >= 1 for response in refused)
        assert refused[0].json()["error"]["code"] == "queue_full"
        accepted = [r for r in responses if r.status_code == 200]
        assert len(accepted) == 4
        sample = 'egglm_admission_rejections_total{model_name="tiny",reason="queue_full"}'
        assert endless.metric(sample) == 16

    @pytest.mark.parametrize("stream", [False, True])
    def test_choices_count_each_and_go_in_together(
        self, endless: ServedScript, stream: bool
    ) -> None:
        endless.engine.queue_limit = 3
        with pytest.raises(openai.RateLimitError):
            endless.client().completions.create(n=4, stream=stream, **COMPLETION)
        assert not endless.engine.seen
        endless.engine.gate.set()
        assert len(endless.client().completions.create(n=3, **COMPLETION).choices) == 3


class TestDeadEngine:
    def test_streams_end_with_an_error_event(self, endless: ServedScript) -> None:
        endless.engine.pass_first = 2
        body = COMPLETION | {"stream": True}
        with endless.http() as http, http.stream("POST", "/v1/completions", json=body) as response:
            lines = (line.removeprefix("data: ") for line in response.iter_lines() if line)
            assert json.loads(next(lines))["choices"]
            endless.engine.die()
            *_, last_but_one, last = lines
        assert last == "[DONE]"
        error = json.loads(last_but_one)["error"]
        assert error["code"] == "engine_died"
        assert error["type"] == "server_error"

    def test_the_official_client_raises(self, endless: ServedScript) -> None:
        endless.engine.pass_first = 2
        stream = endless.client().chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "x"}], stream=True
        )
        next(stream)
        endless.engine.die()
        with pytest.raises(openai.APIError, match="engine stopped"):
            list(stream)

    @pytest.mark.parametrize("stream", [False, True])
    def test_before_the_first_token_it_is_a_503(self, endless: ServedScript, stream: bool) -> None:
        def die_when_it_is_asked() -> None:
            while not endless.engine.active:
                time.sleep(0.005)
            endless.engine.die()

        threading.Thread(target=die_when_it_is_asked, daemon=True).start()
        with pytest.raises(openai.APIStatusError) as caught:
            endless.client().completions.create(stream=stream, **COMPLETION)
        assert caught.value.status_code == 503
        assert caught.value.response.headers["retry-after"]

    def test_after_a_keep_alive_it_is_an_event(self, serve_script: ServeScript) -> None:
        served = serve_script(sse_keep_alive=0.05)
        served.engine.gate.clear()
        with served.http() as http:
            body = COMPLETION | {"stream": True}
            lines = []
            with http.stream("POST", "/v1/completions", json=body) as response:
                assert response.status_code == 200
                served.engine.die()
                lines = [line for line in response.iter_lines() if line.startswith("data")]
        assert "engine_died" in lines[0]
        assert lines[1] == "data: [DONE]"


class TestShutdown:
    """The drain, as the first and the second signal start it."""

    def signal(self, served: ServedScript, shutdown: Shutdown) -> None:
        served.loop.call_soon_threadsafe(shutdown.signalled)

    def test_running_requests_finish_and_new_ones_are_refused(self, endless: ServedScript) -> None:
        shutdown = Shutdown(endless.state, endless.server)
        with ThreadPoolExecutor(3) as pool:
            answers = [
                pool.submit(endless.client().completions.create, **COMPLETION) for _ in range(3)
            ]
            eventually(lambda: len(endless.engine.active) == 3)
            self.signal(endless, shutdown)
            with endless.http() as http:
                eventually(lambda: http.get("/ready").json()["status"] == "draining")
                assert http.get("/health").status_code == 200
                refused = http.post("/v1/completions", json=COMPLETION)
                assert refused.status_code == 503
                assert refused.json()["error"]["code"] == "shutting_down"
                assert refused.headers["retry-after"]
            endless.engine.gate.set()
            assert all(answer.result().choices[0].text for answer in answers)
        endless.join()

    def test_a_second_signal_aborts(self, endless: ServedScript) -> None:
        endless.engine.pass_first = 2
        stream = endless.client().completions.create(stream=True, **COMPLETION)
        next(stream)
        shutdown = Shutdown(endless.state, endless.server)
        self.signal(endless, shutdown)
        eventually(lambda: endless.state.draining)
        assert endless.state.in_flight
        started_s = time.monotonic()
        self.signal(endless, shutdown)
        with pytest.raises(openai.APIError, match="shutting down"):
            list(stream)
        endless.join()
        assert time.monotonic() - started_s < 3

    def test_the_time_limit_aborts(self, serve_script: ServeScript) -> None:
        served = serve_script(drain_timeout=0.1)
        served.engine.script = lambda ids, params: bytes_of("a")
        served.engine.gate.clear()
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(served.client().completions.create, **COMPLETION)
            eventually(lambda: bool(served.engine.active))
            self.signal(served, Shutdown(served.state, served.server))
            with pytest.raises(openai.APIStatusError) as caught:
                answer.result()
        assert caught.value.status_code == 503
        served.join()
