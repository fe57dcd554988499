"""Prometheus metrics: what the server measures itself, and the engine's latest figures.

Every family has its zeros from the start. The names are vLLM's behind our own prefix, so that
`--metrics-compat vllm` can offer them under vLLM's too, and its dashboards and autoscalers work
unchanged.
"""

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from engine.messages import Stats

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
PREFIX = "egglm_"
FINISH_REASONS = ("stop", "length", "abort", "error")
REJECTIONS = ("queue_full", "not_ready", "shutting_down")

LATENCY_BUCKETS_S = (
    *(0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
FIRST_TOKEN_BUCKETS_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
TOKEN_GAP_BUCKETS_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0),
    *(2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
TOKEN_BUCKETS = tuple(float(m * 10**e) for e in range(6) for m in (1, 2, 5))
CHOICE_BUCKETS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 128.0)


class Metrics:
    """The metrics of one served model, in a registry of their own."""

    def __init__(self, model_name: str) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._engine = _EngineCollector(model_name)
        self.registry.register(self._engine)
        self._model_name = model_name

        self.prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of admitted requests")
        self.prompt_tokens_cached = self._counter(
            "prompt_tokens_cached", "Prompt tokens that were found in the prefix cache"
        )
        self.generation_tokens = self._counter("generation_tokens", "Tokens generated")
        self._success = self._counter_by(
            "request_success", "Choices that ended, by how", "finished_reason", FINISH_REASONS
        )
        self._rejections = self._counter_by(
            "admission_rejections", "Requests that were turned away, by why", "reason", REJECTIONS
        )
        self._responses = Counter(
            f"{PREFIX}http_responses",
            "Answers by path and status",
            ("path", "status"),
            registry=self.registry,
        )
        self.time_to_first_token = self._histogram(
            "time_to_first_token_seconds", "Arrival to first token", FIRST_TOKEN_BUCKETS_S
        )
        self.inter_token_latency = self._histogram(
            "inter_token_latency_seconds", "Gap between tokens of a choice", TOKEN_GAP_BUCKETS_S
        )
        self.time_per_output_token = self._histogram(
            "request_time_per_output_token_seconds",
            "Mean gap between tokens, a choice",
            TOKEN_GAP_BUCKETS_S,
        )
        self.e2e_latency = self._histogram(
            "e2e_request_latency_seconds", "Arrival to last token", LATENCY_BUCKETS_S
        )
        self.queue_time = self._histogram(
            "request_queue_time_seconds", "Time in the engine's queue", LATENCY_BUCKETS_S
        )
        self.prefill_time = self._histogram(
            "request_prefill_time_seconds", "First computation to first token", LATENCY_BUCKETS_S
        )
        self.decode_time = self._histogram(
            "request_decode_time_seconds", "First token to last", LATENCY_BUCKETS_S
        )
        self.request_prompt_tokens = self._histogram(
            "request_prompt_tokens", "Prompt tokens, a prompt", TOKEN_BUCKETS
        )
        self.request_generation_tokens = self._histogram(
            "request_generation_tokens", "Generated tokens, a choice", TOKEN_BUCKETS
        )
        self.request_params_n = self._histogram(
            "request_params_n", "The n of requests", CHOICE_BUCKETS
        )
        self.request_params_max_tokens = self._histogram(
            "request_params_max_tokens", "The max_tokens of requests", TOKEN_BUCKETS
        )

    def watch(self, stats: Callable[[], Stats]) -> None:
        """Takes the engine's figures from `stats()` from now on."""
        self._engine.stats = stats

    def finished(self, reason: str) -> None:
        """Counts a choice that ended by `reason`, one of `FINISH_REASONS`."""
        self._success[reason].inc()

    def rejected(self, reason: str) -> None:
        """Counts a request that was turned away for `reason`, one of `REJECTIONS`."""
        self._rejections[reason].inc()

    def responded(self, path: str, status: int) -> None:
        """Counts an answer; `path` is a route's, so that clients cannot make up series."""
        self._responses.labels(path, str(status)).inc()

    def render(self, vllm_names: bool) -> bytes:
        """The text for Prometheus; with `vllm_names` each family under vLLM's name too."""
        text = generate_latest(self.registry)
        if vllm_names:
            renamed = CollectorRegistry(auto_describe=False)
            renamed.register(_VllmNames(self.registry))
            text += generate_latest(renamed)
        return text

    def _counter(self, name: str, doc: str) -> Counter:
        family = Counter(PREFIX + name, doc, ("model_name",), registry=self.registry)
        return family.labels(self._model_name)

    def _counter_by(
        self, name: str, doc: str, label: str, values: Iterable[str]
    ) -> dict[str, Counter]:
        family = Counter(PREFIX + name, doc, ("model_name", label), registry=self.registry)
        return {value: family.labels(self._model_name, value) for value in values}

    def _histogram(self, name: str, doc: str, buckets: tuple[float, ...]) -> Histogram:
        family = Histogram(
            PREFIX + name, doc, ("model_name",), registry=self.registry, buckets=buckets
        )
        return family.labels(self._model_name)


class _EngineCollector(Collector):
    """The engine's last heartbeat as gauges and counters; zeros before the first."""

    def __init__(self, model_name: str) -> None:
        self._model_name = model_name
        self.stats: Callable[[], Stats] = Stats

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterable[Metric]:
        stats = self.stats()
        totals = stats.counters
        for name, doc, value in (
            ("num_requests_running", "Requests in the running batch", stats.running),
            ("num_requests_waiting", "Requests in the queue", stats.waiting),
            ("kv_cache_usage_ratio", "KV pages that requests hold, 0 to 1", stats.kv_usage),
            ("kv_cache_pages", "KV pages there are", stats.kv_pages_total),
        ):
            gauge = GaugeMetricFamily(PREFIX + name, doc, labels=("model_name",))
            gauge.add_metric((self._model_name,), value)
            yield gauge
        for name, doc, value in (
            ("num_preemptions", "Requests preempted for pages", totals.preemptions),
            ("prefix_cache_queries", "Prompt tokens looked up for reuse", totals.prefix_queries),
            ("prefix_cache_hits", "Prompt tokens found for reuse", totals.prefix_hits),
            ("engine_steps", "Steps of the engine", totals.steps),
        ):
            counter = CounterMetricFamily(PREFIX + name, doc, labels=("model_name",))
            counter.add_metric((self._model_name,), value)
            yield counter


class _VllmNames(Collector):
    """Our families again, named as vLLM's dashboards expect."""

    DIFFERENT = {"kv_cache_usage_ratio": "kv_cache_usage_perc"}  # noqa: RUF012

    def __init__(self, source: CollectorRegistry) -> None:
        self._source = source

    def collect(self) -> Iterable[Metric]:
        for metric in self._source.collect():
            if not metric.name.startswith(PREFIX):
                continue
            name = metric.name.removeprefix(PREFIX)
            copy = Metric(
                f"vllm:{self.DIFFERENT.get(name, name)}", metric.documentation, metric.type
            )
            for sample in metric.samples:
                suffix = sample.name.removeprefix(metric.name)
                labels = sample.labels | {"engine": "0"}
                copy.samples.append(Sample(copy.name + suffix, labels, sample.value))
            yield copy
