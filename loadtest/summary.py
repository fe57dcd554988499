"""The figures of a run, defined as in vLLM's serving benchmark.

TTFT runs from sending a request to its first chunk with text, ITL from chunk to chunk, E2EL to the
last byte; TPOT is (E2EL - TTFT) / (output tokens - 1), of answers with more than one token.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from loadtest.chat_client import Reply, RequestFailed
from loadtest.run import Outcome, Run

PERCENTILES = (50, 90, 95, 99)
SLO_NAMES = ("ttft", "tpot", "e2el")


@dataclass(frozen=True)
class Distribution:
    """Of one latency, in milliseconds; all are NaN where nothing was measured."""

    mean: float
    median: float
    std: float
    percentiles: tuple[float, ...]
    """At `PERCENTILES`, with linear interpolation."""


@dataclass(frozen=True)
class Timing:
    """Latencies of one request in seconds; `tpot_s` is None of an answer of one token."""

    ttft_s: float
    tpot_s: float | None
    e2el_s: float
    itls_s: tuple[float, ...]


@dataclass(frozen=True)
class Summary:
    """Rates are per second of the run's duration, and only completed requests count in them."""

    duration_s: float
    completed: int
    failures: Mapping[str, int]
    """Number of failed requests by kind, the most frequent first."""
    total_input_tokens: int
    total_output_tokens: int
    request_goodput: float | None
    """Requests a second that met every objective, None without objectives."""
    max_output_tokens_per_s: float
    """The most in one second of the run; an answer's tokens are shared evenly by its chunks."""
    max_concurrent_requests: int
    client_cpu_cores: float
    ttft: Distribution
    tpot: Distribution
    itl: Distribution
    e2el: Distribution
    schedule_lag: Distribution
    """From the moment a request was due to that of sending it, failed ones included."""

    @property
    def failed(self) -> int:
        return sum(self.failures.values())

    @property
    def request_throughput(self) -> float:
        return self.completed / self.duration_s

    @property
    def output_throughput(self) -> float:
        return self.total_output_tokens / self.duration_s

    @property
    def total_token_throughput(self) -> float:
        return (self.total_input_tokens + self.total_output_tokens) / self.duration_s


def summarise(run: Run, objectives_ms: Mapping[str, float]) -> Summary:
    """The figures of `run`; `objectives_ms` has upper limits for some of `SLO_NAMES`."""
    replies = [o.result for o in run.outcomes if isinstance(o.result, Reply)]
    failures = Counter(o.result.kind for o in run.outcomes if isinstance(o.result, RequestFailed))
    timings = [t for o in run.outcomes if (t := timing(run, o)) is not None]
    goodput = None
    if objectives_ms:
        goodput = sum(_meets(t, objectives_ms) for t in timings) / run.duration_s
    return Summary(
        duration_s=run.duration_s,
        completed=len(replies),
        failures=dict(failures.most_common()),
        total_input_tokens=sum(reply.input_tokens for reply in replies),
        total_output_tokens=sum(reply.output_tokens for reply in replies),
        request_goodput=goodput,
        max_output_tokens_per_s=_peak_token_rate(run, replies),
        max_concurrent_requests=_peak_concurrency(run),
        client_cpu_cores=run.client_cpu_s / run.duration_s,
        ttft=distribution([t.ttft_s for t in timings]),
        tpot=distribution([t.tpot_s for t in timings if t.tpot_s is not None]),
        itl=distribution([gap for t in timings for gap in t.itls_s]),
        e2el=distribution([t.e2el_s for t in timings]),
        schedule_lag=distribution([o.sent_s - o.due_s for o in run.outcomes]),
    )


def timing(run: Run, outcome: Outcome) -> Timing | None:
    """The latencies of a completed request, None of a failed one."""
    reply = outcome.result
    if not isinstance(reply, Reply):
        return None
    sent_s = run.started_s + outcome.sent_s
    ttft_s = reply.chunk_times_s[0] - sent_s
    e2el_s = reply.end_s - sent_s
    after_first = reply.output_tokens - 1
    return Timing(
        ttft_s,
        (e2el_s - ttft_s) / after_first if after_first > 0 else None,
        e2el_s,
        tuple(np.diff(reply.chunk_times_s).tolist()),
    )


def distribution(values_s: Sequence[float]) -> Distribution:
    """In milliseconds, of values in seconds; the deviation is the population's."""
    if not values_s:
        return Distribution(math.nan, math.nan, math.nan, (math.nan,) * len(PERCENTILES))
    ms = np.array(values_s) * 1000
    return Distribution(
        float(ms.mean()),
        float(np.median(ms)),
        float(ms.std()),
        tuple(np.percentile(ms, PERCENTILES).tolist()),
    )


def _meets(timing: Timing, objectives_ms: Mapping[str, float]) -> bool:
    measured = {"ttft": timing.ttft_s, "tpot": timing.tpot_s or 0.0, "e2el": timing.e2el_s}
    return all(measured[name] * 1000 <= limit for name, limit in objectives_ms.items())


def _peak_token_rate(run: Run, replies: Sequence[Reply]) -> float:
    seconds: defaultdict[int, float] = defaultdict(float)
    for reply in replies:
        share = reply.output_tokens / len(reply.chunk_times_s)
        for time_s in reply.chunk_times_s:
            seconds[int(time_s - run.started_s)] += share
    return max(seconds.values(), default=0.0)


def _peak_concurrency(run: Run) -> int:
    """Of completed requests, as the server saw them."""
    changes = []
    for outcome in run.outcomes:
        if isinstance(outcome.result, Reply):
            changes += [(outcome.sent_s, 1), (outcome.result.end_s - run.started_s, -1)]
    running = np.cumsum([change for _, change in sorted(changes)])
    return int(running.max(initial=0))
