"""Decoding speed on a CPU beside transformers and llama.cpp, on the same file and threads.

Engines take turns within each round, so that a change of the machine's mood meets all of them. A
measurement prefills every stream (untimed), then times greedy steps. The limit beside it is what
memory allows: measured read bandwidth over the bytes of weights that a step reads, times streams
(the KV cache, small at these lengths, is left out).
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Column, Table

from benchmarks.decode_ours import RunnerDecoder
from benchmarks.kernels import Bench
from benchmarks.machine import OtherLoad, describe
from models.pull import default_cache_dir, resolve

OURS = "EggLM"
_FILE_WIDTH = 120
_PEER_SCRIPT = Path(__file__).with_name("decode_peers.py")


@dataclass(frozen=True)
class Engine:
    """`seconds(prompts, steps)` times the steps of all prompts [streams, length] together."""

    name: str
    weights_bytes: int
    seconds: Callable[[np.ndarray[Any, np.dtype[np.int32]], int], float]


@dataclass(frozen=True)
class Result:
    """All rounds of an engine with a number of streams, in tokens per second."""

    engine: str
    streams: int
    weights_bytes: int
    limit: float
    rounds: list[float]

    @property
    def median(self) -> float:
        return median(self.rounds)


class PeerFailed(Exception):
    """A peer's process ended; says what it printed."""


@contextmanager
def peer_engines(python: str, program: str, model: Path, threads: int) -> Iterator[list[Engine]]:
    """The engines of a program, in a process that runs under its own Python."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OPENBLAS_")}
    environment |= {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [python, "-I", str(_PEER_SCRIPT), program, str(model), str(threads)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        orders, answers = process.stdin, process.stdout

        def ask(order: dict[str, Any] | None = None) -> dict[str, Any]:
            if order is not None:
                orders.write(json.dumps(order) + "\n")
                orders.flush()
            line = answers.readline()
            if not line:
                log.seek(0)
                raise PeerFailed(f"{program} ended:\n{log.read()[-2000:]}")
            answer: dict[str, Any] = json.loads(line)
            return answer

        def engine(name: str, weights_bytes: int) -> Engine:
            def seconds(prompts: np.ndarray[Any, np.dtype[np.int32]], steps: int) -> float:
                order = {"engine": name, "prompts": prompts.tolist(), "steps": steps}
                return float(ask(order)["seconds"])

            return Engine(name, weights_bytes, seconds)

        try:
            yield [engine(name, size) for name, size in ask().items()]
        finally:
            orders.close()
            process.kill()
            process.wait()


def compare(
    engines: list[Engine],
    streams: list[int],
    *,
    rounds: int,
    steps: int,
    prompt_tokens: int,
    vocab_size: int,
    bandwidth: float,
) -> list[Result]:
    """Alternating rounds after one that warms up; each round begins with another engine."""
    prompts = np.random.default_rng(0).integers(
        vocab_size // 100, vocab_size, (max(streams), prompt_tokens), dtype=np.int32
    )
    rates: dict[tuple[str, int], list[float]] = {
        (engine.name, number): [] for number in streams for engine in engines
    }
    console = Console(stderr=True)
    for turn in track(range(rounds + 1), "rounds", console=console, transient=True):
        order = engines[turn % len(engines) :] + engines[: turn % len(engines)]
        for number in streams:
            for engine in order:
                seconds = engine.seconds(prompts[:number], steps if turn else 2)
                if turn:
                    rates[engine.name, number].append(number * steps / seconds)
    return [
        Result(
            engine.name,
            number,
            engine.weights_bytes,
            number * bandwidth / engine.weights_bytes,
            rates[engine.name, number],
        )
        for number in streams
        for engine in engines
    ]


def table(results: list[Result]) -> Table:
    """Each engine with the ratio of our speed to its own, and its share of what memory allows."""
    shown = Table("streams", Column("engine", no_wrap=True))
    for heading in ("tok/s", "min", "max", "weights MB", "limit tok/s", "of limit", "EggLM is"):
        shown.add_column(heading, justify="right")
    ours = {r.streams: r.median for r in results if r.engine == OURS}
    for r in results:
        shown.add_row(
            str(r.streams),
            r.engine,
            *(f"{rate:.1f}" for rate in (r.median, min(r.rounds), max(r.rounds))),
            f"{r.weights_bytes / 1e6:.1f}",
            f"{r.limit:.0f}",
            f"{r.median / r.limit:.0%}",
            f"{ours[r.streams] / r.median:.2f} x",
        )
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cpu_decode", description=__doc__)
    parser.add_argument("--model", help="a GGUF file [default: the default model]")
    parser.add_argument("--peer-python", help="has torch, transformers, gguf and llama_cpp")
    parser.add_argument("--peers", default="transformers,llama.cpp", help="which of these to run")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--streams", default="1,16", help="numbers of streams [default: 1,16]")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=64, help="timed tokens of each stream")
    parser.add_argument("--prompt-tokens", type=int, default=32)
    parser.add_argument("--cache-dir", type=Path, default=default_cache_dir())
    parser.add_argument("--json", type=Path, help="write all rounds here")
    given = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else _FILE_WIDTH)
    machine = describe()
    for name, value in machine.items():
        console.print(f"{name}: {value}", highlight=False)
    model = resolve(given.model, given.cache_dir)
    with tempfile.TemporaryDirectory() as folder:
        bandwidth = Bench(given.threads, Path(folder)).bandwidth()
    ours = RunnerDecoder(model, given.threads, given.cache_dir)
    with ExitStack() as stack:
        engines = [Engine(OURS, ours.weights_bytes, ours.seconds)]
        for program in given.peers.split(",") if given.peer_python else ():
            engines += stack.enter_context(
                peer_engines(given.peer_python, program, model, given.threads)
            )
        load = OtherLoad()
        results = compare(
            engines,
            [int(number) for number in given.streams.split(",")],
            rounds=given.rounds,
            steps=given.steps,
            prompt_tokens=given.prompt_tokens,
            vocab_size=ours.vocab_size,
            bandwidth=bandwidth,
        )
        other_cores = load.cores()
    console.print(
        f"{model.name}, {given.threads} threads, {given.steps} steps after {given.prompt_tokens} "
        f"tokens, medians of {given.rounds} rounds; memory reads {bandwidth / 1e9:.1f} GB/s; "
        f"other processes used {other_cores:.2f} cores",
        highlight=False,
    )
    console.print(table(results))
    if given.json is not None:
        report = {
            "machine": machine,
            "model": model.name,
            "threads": given.threads,
            "steps": given.steps,
            "prompt_tokens": given.prompt_tokens,
            "read_bytes_per_s": bandwidth,
            "other_cores": other_cores,
            "results": [asdict(r) | {"median": r.median} for r in results],
        }
        given.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    try:
        main()
    except PeerFailed as error:
        sys.exit(str(error))
