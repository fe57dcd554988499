"""The command line of the load generator: `egglm load`."""

import asyncio
import json
import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import cycle
from pathlib import Path
from typing import Annotated

import httpx
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from loadtest.chat_client import RequestFailed, error_message, stream_chat
from loadtest.report import Conditions, as_json, tables
from loadtest.run import Run, run_load
from loadtest.summary import SLO_NAMES, summarise
from loadtest.workload import (
    DEFAULT_MIX,
    Chat,
    arrivals_of_count,
    arrivals_within,
    make_chats,
    parse_mix,
)

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)

DEFAULT_COUNT = 100


@app.command()
def load(
    base_url: Annotated[
        str, typer.Option(help="The server's address, with or without /v1")
    ] = "http://127.0.0.1:8000",
    model: Annotated[
        str | None, typer.Option(help="Name of the model [default: the server's first]")
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(help="Sent as a bearer token", envvar="OPENAI_API_KEY")
    ] = None,
    rate: Annotated[
        float, typer.Option(help="Requests a second on average; inf sends all at once")
    ] = 1.0,
    num_requests: Annotated[
        int | None,
        typer.Option(min=1, help=f"How many to send [default: {DEFAULT_COUNT}]"),
    ] = None,
    duration: Annotated[
        float | None, typer.Option(help="Send for this many seconds instead of a fixed number")
    ] = None,
    max_concurrency: Annotated[
        int | None, typer.Option(min=1, help="Hold requests back while so many are unanswered")
    ] = None,
    mix: Annotated[
        str,
        typer.Option(
            help="Chats as WORDSxTURNS:TOKENS*WEIGHT: length of prompt and answer, share of all"
        ),
    ] = DEFAULT_MIX,
    ignore_eos: Annotated[
        bool,
        typer.Option(
            "--ignore-eos",
            help="Make each answer as long as the mix says (ignore_eos and min_tokens)",
        ),
    ] = False,
    temperature: Annotated[float, typer.Option(min=0.0, help="Sampling temperature")] = 0.0,
    goodput: Annotated[
        list[str] | None,
        typer.Option(
            help="Objectives such as 'ttft:500 tpot:50' (ms; ttft, tpot or e2el); repeatable"
        ),
    ] = None,
    num_warmups: Annotated[
        int, typer.Option(min=0, help="Chats to send and forget before the run, one by one")
    ] = 1,
    timeout: Annotated[float, typer.Option(help="Seconds that one request may take")] = 600.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of arrival times and prompts")] = 0,
    json_path: Annotated[
        Path | None, typer.Option("--json", help="Also write the results here")
    ] = None,
) -> None:
    """Send chats at random (Poisson) times to an OpenAI-compatible server and time the answers.

    Requests go out when they are due, answered or not. The exit code is 1 if no request completed.
    """
    objectives = _objectives(goodput or [])
    due_s = _arrivals(rate, num_requests, duration, seed)
    for name, value in (("--timeout", timeout), ("--duration", duration)):
        if value is not None and not value > 0:
            raise typer.BadParameter(f"{name} must be greater than 0")
    try:
        shapes = parse_mix(mix)
    except ValueError as error:
        raise typer.BadParameter(f"--mix: {error}") from None
    chats = make_chats(shapes, num_warmups + len(due_s), seed)
    url = re.sub(r"(/v1)?/*$", "/v1/", base_url, count=1)
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}

    async def measure() -> tuple[Run, str]:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        async with httpx.AsyncClient(
            base_url=url,
            headers=headers | {"Content-Type": "application/json"},
            limits=limits,
            timeout=httpx.Timeout(None, connect=30.0),
        ) as http:
            served = model or await _first_model(http)
            bodies = [_body(chat, served, ignore_eos, temperature) for chat in chats]
            for body in bodies[:num_warmups]:
                await stream_chat(http, body, timeout)
            with _progress() as progress:
                task = progress.add_task("requests", total=len(due_s))
                run = await run_load(
                    http,
                    bodies[num_warmups:],
                    due_s,
                    max_concurrency=max_concurrency,
                    timeout_s=timeout,
                    ended=lambda: progress.advance(task),
                )
            return run, served

    try:
        run, served = asyncio.run(measure())
    except (RequestFailed, httpx.HTTPError) as error:
        typer.echo(f"egglm load: {url}: {error}", err=True)
        raise typer.Exit(1) from None
    summary = summarise(run, objectives)
    console = Console()
    for table in tables(run, summary):
        console.print(table)
    if json_path is not None:
        conditions = Conditions(url, served, mix, rate, max_concurrency, seed, ignore_eos)
        result = as_json(run, summary, conditions, datetime.now(UTC))
        json_path.write_text(json.dumps(result, indent=1) + "\n")
    if summary.completed == 0:
        raise typer.Exit(1)


def _objectives(texts: Sequence[str]) -> dict[str, float]:
    objectives = {}
    for text in " ".join(texts).replace(",", " ").split():
        name, _, value = text.partition(":")
        try:
            objectives[name] = float(value)
        except ValueError:
            raise typer.BadParameter(f"--goodput: {text!r} is not NAME:MILLISECONDS") from None
        if name not in SLO_NAMES:
            raise typer.BadParameter(f"--goodput: {name!r} is none of {', '.join(SLO_NAMES)}")
    return objectives


def _arrivals(rate: float, count: int | None, duration: float | None, seed: int) -> list[float]:
    if not rate > 0:
        raise typer.BadParameter("--rate must be greater than 0")
    if duration is None:
        due_s: list[float] = arrivals_of_count(rate, count or DEFAULT_COUNT, seed).tolist()
        return due_s
    if count is not None:
        raise typer.BadParameter("give --num-requests or --duration, not both")
    if math.isinf(rate):
        raise typer.BadParameter("--duration needs a finite --rate")
    due_s = arrivals_within(rate, duration, seed).tolist()
    if not due_s:
        raise typer.BadParameter(f"no request falls into {duration:g} s at {rate:g} a second")
    return due_s


def _body(chat: Chat, model: str, ignore_eos: bool, temperature: float) -> bytes:
    fixed = {"ignore_eos": True, "min_tokens": chat.output_tokens} if ignore_eos else {}
    request = {
        "model": model,
        "messages": [
            {"role": role, "content": text}
            for role, text in zip(cycle(("user", "assistant")), chat.messages, strict=False)
        ],
        "max_tokens": chat.output_tokens,
        "temperature": temperature,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return json.dumps(request | fixed).encode()


async def _first_model(http: httpx.AsyncClient) -> str:
    response = await http.get("models")
    if response.status_code != 200:
        raise RequestFailed(f"HTTP {response.status_code}", error_message(response))
    try:
        return str(response.json()["data"][0]["id"])
    except (ValueError, LookupError, TypeError):
        raise RequestFailed("no model", "/v1/models lists none; name one with --model") from None


def _progress() -> Progress:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=Console(stderr=True), transient=True)
