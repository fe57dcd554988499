"""Seconds from the start of `egglm serve` until /ready answers 200, without and with saved programs.

Cold runs begin with an empty cache folder, so the model is searched and compiled; its file is
already on disk. Each warm run starts again with the folder of the cold run before it.
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import perf_counter, sleep

import httpx
import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.machine import OtherLoad, describe
from models.pull import default_cache_dir, resolve

_LIMIT_S = 600.0
_POLL_S = 0.01
_STOP_S = 30.0


class StartFailed(Exception):
    """The server ended, or was not ready in time; says what it printed."""


@dataclass(frozen=True)
class Start:
    """One start; `memory_bytes` is the proportional set size of all its processes when ready."""

    kind: str
    ready_s: float
    memory_bytes: int
    other_cores: float


def measure(kind: str, model: Path, cache: Path, options: list[str]) -> Start:
    """Starts a server, waits until it is ready and stops it. Raises `StartFailed`."""
    load = OtherLoad()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    start_s = perf_counter()
    with _server(model, port, cache, options) as (process, output):
        while not _is_ready(port):
            if process.poll() is not None or perf_counter() - start_s > _LIMIT_S:
                raise StartFailed(f"not ready:\n{output.read_text(errors='replace')}")
            sleep(_POLL_S)
        ready_s = perf_counter() - start_s
        return Start(kind, ready_s, _memory(process.pid), load.cores())


@contextmanager
def _server(
    model: Path, port: int, cache: Path, options: list[str]
) -> Iterator[tuple["subprocess.Popen[bytes]", Path]]:
    command = [sys.executable, "-m", "server", "serve", str(model), "--port", str(port), *options]
    path = cache / "server.log"
    with path.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=os.environ | {"EGGLM_CACHE_DIR": str(cache)},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield process, path
    finally:
        family = [process.pid, *(p.pid for p in _children(process.pid))]
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            for pid in family:
                if psutil.pid_exists(pid):
                    os.kill(pid, signal.SIGKILL)
            process.wait()


def _is_ready(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/ready", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def _children(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _memory(pid: int) -> int:
    family = [psutil.Process(pid), *_children(pid)]
    return sum(int(process.memory_full_info().pss) for process in family)


def _rounds(model: Path, runs: int, options: list[str], console: Console) -> list[Start]:
    starts = []
    for _ in range(runs):
        with tempfile.TemporaryDirectory(prefix="egglm-startup-") as folder:
            for kind in ("cold", "warm"):
                starts.append(measure(kind, model, Path(folder), options))
                console.print(f"{kind}: {starts[-1].ready_s:.2f} s")
    return starts


def _table(starts: list[Start]) -> Table:
    table = Table("start", "runs", "median s", "min s", "max s", "memory MiB", "other CPU, cores")
    for kind in ("cold", "warm"):
        chosen = [start for start in starts if start.kind == kind]
        times = [start.ready_s for start in chosen]
        table.add_row(
            kind,
            str(len(chosen)),
            *(f"{value:.2f}" for value in (median(times), min(times), max(times))),
            f"{median(start.memory_bytes for start in chosen) / (1 << 20):.0f}",
            f"{median(start.other_cores for start in chosen):.2f}",
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.startup", description=__doc__)
    parser.add_argument("--model", help="as for egglm serve [default: the default model]")
    parser.add_argument("--runs", type=int, default=3, help="cold and warm starts [default: 3]")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("options", nargs="*", help="after --: further options of egglm serve")
    given = parser.parse_args()
    console = Console()
    machine = describe()
    model = resolve(given.model, default_cache_dir())
    for name, value in machine.items():
        console.print(f"{name}: {value}", highlight=False)
    starts = _rounds(model, given.runs, given.options, console)
    console.print(_table(starts))
    if given.json is not None:
        result = {"machine": machine, "model": model.name, "starts": [asdict(s) for s in starts]}
        given.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
