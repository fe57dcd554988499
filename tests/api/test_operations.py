"""Health, readiness, metrics, keys: what orchestrators and dashboards see."""

import json
import logging
import re

import httpx
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families
from scripted import EOS, ScriptedEngine, bytes_of
from served import ServedScript, ServeScript, eventually

from engine.messages import Progress

COMPLETION = {"model": "tiny", "prompt": "x"}


class TestHealth:
    @pytest.mark.parametrize(
        ("state", "health", "ready"),
        [
            ("starting", 200, 503),
            ("ready", 200, 200),
            ("draining", 200, 503),
            ("unresponsive", 503, 503),
            ("restarting", 503, 503),
            ("failed", 503, 503),
        ],
    )
    def test_by_engine_state(
        self, http: httpx.Client, engine: ScriptedEngine, state: str, health: int, ready: int
    ) -> None:
        engine.state = state
        assert http.get("/health").status_code == health
        response = http.get("/ready")
        assert response.status_code == ready
        assert response.json()["status"] == state
        answer = http.post("/v1/completions", json=COMPLETION)
        assert answer.status_code == ready
        if ready == 503:
            assert int(answer.headers["retry-after"]) > 0
            assert answer.json()["error"]["code"] == "not_ready"

    def test_progress_of_a_start(self, http: httpx.Client, engine: ScriptedEngine) -> None:
        engine.state = "starting"
        engine.progress = Progress("search", 3, 10)
        assert http.get("/ready").json() == {
            "status": "starting",
            "stage": "search",
            "done": 3,
            "total": 10,
        }

    def test_before_there_is_a_model(self, serve_script: ServeScript) -> None:
        served = serve_script()
        served.state.model = None
        with served.http() as http:
            assert http.get("/health").status_code == 200
            assert http.get("/ready").status_code == 503
            assert http.get("/metrics").status_code == 200
            for path in ("/v1/completions", "/v1/chat/completions", "/tokenize"):
                body = COMPLETION | {"messages": [{"role": "user", "content": "x"}]}
                assert http.post(path, json=body).status_code == 503
            assert http.get("/v1/models").status_code == 503


class TestMetrics:
    def test_every_family_from_the_start(self, serve_script: ServeScript) -> None:
        with serve_script(metrics_compat="vllm").http() as http:
            response = http.get("/metrics")
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
        families = {f.name: f for f in text_string_to_metric_families(response.text)}
        for name in (
            "num_requests_running",
            "num_requests_waiting",
            "prompt_tokens",
            "generation_tokens",
            "request_success",
            "time_to_first_token_seconds",
            "inter_token_latency_seconds",
            "e2e_request_latency_seconds",
            "request_queue_time_seconds",
            "num_preemptions",
            "prefix_cache_queries",
            "prefix_cache_hits",
        ):
            for family in (families[f"egglm_{name}"], families[f"vllm:{name}"]):
                values = [s.value for s in family.samples if not s.name.endswith("_created")]
                assert values, family.name
                assert not any(values), family.name
        reasons = {s.labels["finished_reason"] for s in families["vllm:request_success"].samples}
        assert reasons == {"stop", "length", "abort", "error"}
        assert families["vllm:kv_cache_usage_perc"].samples[0].labels == {
            "model_name": "tiny",
            "engine": "0",
        }

    def test_our_names_alone_by_default(self, http: httpx.Client) -> None:
        assert "vllm:" not in http.get("/metrics").text

    def test_counts_are_the_sum_of_usage(self, serve_script: ServeScript) -> None:
        served = serve_script()
        served.engine.script = lambda ids, params: [*bytes_of("some text"), EOS]
        client = served.client()
        usages = [
            client.completions.create(model="tiny", prompt=["a", "bc"], n=2).usage,
            client.completions.create(model="tiny", prompt="x", stop="t").usage,
            client.completions.create(model="tiny", prompt="x", max_tokens=3).usage,
        ]
        labels = '{model_name="tiny"}'
        prompts = served.metric(f"egglm_prompt_tokens_total{labels}")
        assert prompts == sum(usage.prompt_tokens for usage in usages)
        generated = served.metric(f"egglm_generation_tokens_total{labels}")
        assert generated == sum(usage.completion_tokens for usage in usages)
        for reason, count in (("stop", 5), ("length", 1), ("abort", 0), ("error", 0)):
            sample = f'egglm_request_success_total{{finished_reason="{reason}",model_name="tiny"}}'
            assert served.metric(sample) == count
        assert served.metric(f"egglm_time_to_first_token_seconds_count{labels}") == 6
        assert served.metric('egglm_http_responses_total{path="/v1/completions",status="200"}') == 3

    def test_made_up_paths_make_no_series(self, http: httpx.Client) -> None:
        http.get("/made/up")
        assert "/made/up" not in http.get("/metrics").text


class TestKeys:
    @pytest.fixture
    def locked(self, serve_script: ServeScript) -> ServedScript:
        return serve_script(api_key=["first", "sécond"])

    @pytest.mark.parametrize(
        ("authorization", "status"),
        [
            (None, 401),
            ("Bearer wrong", 401),
            ("Basic first", 401),
            ("first", 401),
            ("Bearer", 401),
            ("Bearer first", 200),
            ("bearer first", 200),
            ("BEARER sécond", 200),
        ],
    )
    def test_every_path_needs_one(
        self, locked: ServedScript, authorization: str | None, status: int
    ) -> None:
        headers = {"Authorization": authorization.encode()} if authorization else {}
        with locked.http() as http:
            for path in ("/v1/completions", "/tokenize"):
                assert http.post(path, json=COMPLETION, headers=headers).status_code == status
            for path in ("/v1/models", "/version", "/openapi.json"):
                assert http.get(path, headers=headers).status_code == status
            assert http.get("/nowhere", headers=headers).status_code == (
                404 if status == 200 else 401
            )

    def test_what_orchestrators_ask_is_open(self, locked: ServedScript) -> None:
        with locked.http() as http:
            for path in ("/health", "/ready", "/metrics"):
                assert http.get(path).status_code == 200

    def test_official_client(self, locked: ServedScript) -> None:
        assert locked.client(api_key="first").completions.create(**COMPLETION)
        with pytest.raises(openai.AuthenticationError) as caught:
            locked.client(api_key="wrong").completions.create(**COMPLETION)
        assert caught.value.code == "invalid_api_key"


class TestRequestLog:
    def test_one_json_line_a_request_without_its_text(
        self, serve_script: ServeScript, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO, logger="egglm.request")
        served = serve_script()
        with served.http() as http:
            body = COMPLETION | {"prompt": "secret", "request_id": "r7", "n": 2}
            http.post("/v1/completions", json=body)
            http.get("/health")
            http.post("/v1/completions", json=COMPLETION | {"temperature": 5})
        eventually(lambda: len(self.lines(caplog)) == 2)
        good, bad = self.lines(caplog)
        assert good["id"] == "r7"
        assert (good["status"], bad["status"]) == (200, 400)
        assert good["path"] == "/v1/completions"
        assert (good["prompt_tokens"], good["completion_tokens"]) == (7, 6)
        assert good["cached_tokens"] == 0
        assert good["finish_reason"] == "stop"
        assert {"queue_s", "ttft_s", "itl_s", "e2e_s"} <= good.keys()
        assert "secret" not in json.dumps(good)

    def lines(self, caplog: pytest.LogCaptureFixture) -> list[dict]:
        records = [r for r in caplog.records if r.name == "egglm.request"]
        return [json.loads(record.getMessage()) for record in records]


def test_version(http: httpx.Client) -> None:
    assert set(http.get("/version").json()) == {"version"}


def test_the_description_has_the_bodies(http: httpx.Client) -> None:
    described = http.get("/openapi.json").json()
    assert {"/v1/completions", "/v1/chat/completions", "/v1/models"} <= described["paths"].keys()
    chat = described["components"]["schemas"]["ChatRequest"]
    assert {"messages", "temperature", "top_logprobs"} <= chat["properties"].keys()
    for reference in re.findall(r'"\$ref": "#/components/schemas/(\w+)"', json.dumps(described)):
        assert reference in described["components"]["schemas"]
    assert "swagger" in http.get("/docs").text
