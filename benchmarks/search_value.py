"""What the search is worth: for each bucket, a step's time by the winner, the roofline's choice and random programs.

`python -m benchmarks.search_value [--model PATH] [--random 20]`. Random programs make every choice of the search space
by chance; those that run for over two seconds, or do not fit, are counted and left out. Of the winner's gain over the
roofline's choice, the ops are named whose time changed most.
"""

import argparse
import random
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.table import Table

from benchmarks.machine import OtherLoad, describe
from engine.compile_model import prepare
from engine.compiler.extract import CyclicChoice, Extractor
from engine.compiler.program import Phase, Program
from engine.compiler.search import CandidateError, Profiler, search
from engine.config import EngineConfig
from engine.kv_cache import PAGE_SIZE
from engine.runtimes.native.runtime import NativeRuntime
from models import registry
from models.pull import default_cache_dir, resolve

_PAGES = 1024
_TIMEOUT_S = 2.0
_LONG = 200  # nodes of an expression: the C compiler takes minutes for longer ones


def randoms(winner: Program, count: int, seed: int) -> Iterator[Program]:
    """Programs of the winner's bucket with every choice made by chance."""
    rng = random.Random(seed)
    extractors = [Extractor(phase.space) for phase in winner.phases]
    made = 0
    while made < count:
        try:
            genomes = [extractor.random(rng) for extractor in extractors]
            phases = tuple(
                Phase(e.space, genome, tuple(e.instructions(genome)))
                for e, genome in zip(extractors, genomes, strict=True)
            )
        except CyclicChoice:
            continue
        expressions = [i.call.expression for phase in phases for i in phase.instructions]
        if any(e and sum(1 for _ in e.walk()) > _LONG for e in expressions):
            continue
        made += 1
        yield Program(winner.bucket, winner.dims, phases)


def step_ms(profiler: Profiler, program: Program, trials: int) -> float | None:
    """Least time of a step, or None for a program that is refused."""
    try:
        return 1e3 * profiler.time_program(program, trials, _TIMEOUT_S)[0]
    except CandidateError:
        return None


def op_ms(profiler: Profiler, program: Program) -> dict[str, float]:
    """Time of each kind of op in a step."""
    steps = [instruction for phase in program.phases for instruction in phase.steps]
    total: dict[str, float] = defaultdict(float)
    for instruction, seconds in zip(steps, profiler.time_ops(program), strict=True):
        total[instruction.op.name] += 1e3 * seconds
    return total


def changes(before: dict[str, float], after: dict[str, float]) -> str:
    """The ops whose time fell most."""
    gains = {name: before[name] - after.get(name, 0.0) for name in before}
    best = sorted(gains, key=lambda name: -gains[name])[:3]
    return ", ".join(f"{name} {gains[name]:+.2f}" for name in best if gains[name] > 0.005)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", help="path or org/name; the default model if not given")
    parser.add_argument("--random", type=int, default=20, help="random programs a bucket")
    parser.add_argument("--threads", type=int)
    given = parser.parse_args()
    path = resolve(given.model, default_cache_dir())
    load = OtherLoad()
    with TemporaryDirectory(prefix="egglm-search-value-") as cache:
        config = EngineConfig(cache_dir=Path(cache), threads=given.threads, device="native")
        model = registry.load(path)
        prepared = prepare(model, config, _PAGES, _PAGES * PAGE_SIZE)
        graph, runtime, options = prepared.graph, prepared.runtime, prepared.options
        assert isinstance(runtime, NativeRuntime)
        graph.build_search_space(runtime, options)
        winners, reports = search(graph, runtime, options)
        roofline, _ = search(graph, runtime, options.with_(search_time_limit=0.0))
        profiler = runtime.profiler(graph, options)
        table = Table(
            "bucket",
            "worst ms",
            "random ms",
            "refused",
            "roofline ms",
            "winner ms",
            "x",
            "less, ms",
        )
        for winner, first, report in zip(winners.programs, roofline.programs, reports, strict=True):
            times = [step_ms(profiler, p, 2) for p in randoms(winner, given.random, seed=0)]
            found = [t for t in times if t is not None]
            # Alternately, so that a slow moment of the machine meets both.
            pairs = [(step_ms(profiler, first, 3), step_ms(profiler, winner, 3)) for _ in range(5)]
            by_roofline, by_search = (
                median(t for t in column if t is not None) for column in zip(*pairs, strict=True)
            )
            table.add_row(
                report.name,
                f"{max(found):.2f}" if found else "-",
                f"{median(found):.2f}" if found else "-",
                str(len(times) - len(found)),
                f"{by_roofline:.2f}",
                f"{by_search:.2f}",
                f"{by_roofline / by_search:.2f}",
                changes(op_ms(profiler, first), op_ms(profiler, winner)),
            )
        model.close()
    console = Console(width=150)
    for key, value in describe().items():
        console.print(f"{key}: {value}", highlight=False)
    console.print(f"{path.name}; other processes used {load.cores():.2f} cores", highlight=False)
    console.print(table)


if __name__ == "__main__":
    main()
