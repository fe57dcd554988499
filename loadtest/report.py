"""A run as a table for people and as JSON under the field names of vLLM's serving benchmark."""

import math
from dataclasses import dataclass
from datetime import datetime

from rich.markup import escape
from rich.table import Table

from loadtest.chat_client import Reply, RequestFailed
from loadtest.run import Run
from loadtest.summary import PERCENTILES, Distribution, Summary, timing

_LATENCIES = {
    "ttft": "TTFT",
    "tpot": "TPOT",
    "itl": "ITL",
    "e2el": "E2EL",
    "schedule_lag": "sent late",
}


@dataclass(frozen=True)
class Conditions:
    """What a run was asked to do."""

    base_url: str
    model: str
    mix: str
    request_rate: float
    max_concurrency: int | None
    seed: int
    ignore_eos: bool


def tables(run: Run, summary: Summary) -> list[Table]:
    """Counts and rates, latencies, and failures if there were any, with the first of each kind."""
    rates = Table(show_header=False, box=None)
    for label, value in (
        ("completed", f"{summary.completed}"),
        ("failed", f"{summary.failed}"),
        ("duration", f"{summary.duration_s:.2f} s"),
        ("requests", f"{summary.request_throughput:.2f} /s"),
        ("goodput", _or_dash(summary.request_goodput, "/s")),
        ("input tokens", f"{summary.total_input_tokens}"),
        ("output tokens", f"{summary.total_output_tokens}"),
        ("output", f"{summary.output_throughput:.1f} tokens/s"),
        ("input and output", f"{summary.total_token_throughput:.1f} tokens/s"),
        ("peak output", f"{summary.max_output_tokens_per_s:.1f} tokens/s"),
        ("peak concurrency", f"{summary.max_concurrent_requests}"),
        ("client CPU", f"{summary.client_cpu_cores:.2f} cores"),
    ):
        rates.add_row(label, value)
    latencies = Table("ms", box=None)
    shown = ("mean", "std", *(f"p{p}" for p in PERCENTILES))
    for figure in shown:
        latencies.add_column(figure, justify="right")
    for name, label in _LATENCIES.items():
        figures = _figures(_of(summary, name))
        latencies.add_row(label, *(f"{figures[figure]:.1f}" for figure in shown))
    if not summary.failures:
        return [rates, latencies]
    failures = Table("failure", box=None)
    failures.add_column("requests", justify="right")
    failures.add_column("for example")
    results = [o.result for o in reversed(run.outcomes) if isinstance(o.result, RequestFailed)]
    details = {failure.kind: failure.detail for failure in results}
    for kind, count in summary.failures.items():
        failures.add_row(kind, str(count), escape(details[kind]))
    return [rates, latencies, failures]


def as_json(
    run: Run, summary: Summary, conditions: Conditions, date: datetime
) -> dict[str, object]:
    """Totals, distributions in `*_ms` and, in seconds, one entry a request in the order of arrival.

    `failures`, `*_schedule_lag_ms`, `client_cpu_cores`, `seed`, `mix` and `ignore_eos` are our own.
    What was not measured is null.
    """
    result: dict[str, object] = {
        "date": f"{date:%Y%m%d-%H%M%S}",
        "backend": "openai-chat",
        "base_url": conditions.base_url,
        "model_id": conditions.model,
        "num_prompts": len(run.outcomes),
        "request_rate": conditions.request_rate if conditions.request_rate < math.inf else "inf",
        "burstiness": 1.0,
        "max_concurrency": conditions.max_concurrency,
        "seed": conditions.seed,
        "mix": conditions.mix,
        "ignore_eos": conditions.ignore_eos,
        "duration": summary.duration_s,
        "completed": summary.completed,
        "failed": summary.failed,
        "failures": dict(summary.failures),
        "total_input_tokens": summary.total_input_tokens,
        "total_output_tokens": summary.total_output_tokens,
        "request_throughput": summary.request_throughput,
        "request_goodput": summary.request_goodput,
        "output_throughput": summary.output_throughput,
        "total_token_throughput": summary.total_token_throughput,
        "max_output_tokens_per_s": summary.max_output_tokens_per_s,
        "max_concurrent_requests": summary.max_concurrent_requests,
        "client_cpu_cores": summary.client_cpu_cores,
    }
    for name in _LATENCIES:
        for figure, value in _figures(_of(summary, name)).items():
            result[f"{figure}_{name}_ms"] = None if math.isnan(value) else value
    return result | _per_request(run)


def _per_request(run: Run) -> dict[str, list[object]]:
    columns: dict[str, list[object]] = {
        name: []
        for name in (
            "input_lens",
            "output_lens",
            "ttfts",
            "itls",
            "latencies",
            "start_times",
            "queue_times",
            "errors",
        )
    }
    for outcome in run.outcomes:
        reply, measured = outcome.result, timing(run, outcome)
        columns["input_lens"].append(reply.input_tokens if isinstance(reply, Reply) else 0)
        columns["output_lens"].append(reply.output_tokens if isinstance(reply, Reply) else 0)
        columns["ttfts"].append(measured.ttft_s if measured else 0.0)
        columns["itls"].append(list(measured.itls_s) if measured else [])
        columns["latencies"].append(measured.e2el_s if measured else 0.0)
        columns["start_times"].append(outcome.sent_s)
        columns["queue_times"].append(outcome.sent_s - outcome.due_s)
        columns["errors"].append(str(reply) if isinstance(reply, RequestFailed) else "")
    return columns


def _of(summary: Summary, name: str) -> Distribution:
    found: Distribution = getattr(summary, name)
    return found


def _figures(values: Distribution) -> dict[str, float]:
    named = {f"p{p}": v for p, v in zip(PERCENTILES, values.percentiles, strict=True)}
    return {"mean": values.mean, "median": values.median, "std": values.std} | named


def _or_dash(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{value:.2f} {unit}"
