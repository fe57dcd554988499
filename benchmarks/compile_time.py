"""How long a cold compile takes, by number of layers: those that are alike are searched once.

`python -m benchmarks.compile_time [--layers 4,30]`. The model is cut off after so many layers and compiled into
an empty cache. The times are from the open file to the loaded program; saturation is the e-graph's part of them, which
is shown rule by rule for the last run.
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

from rich.console import Console
from rich.table import Table

from benchmarks.machine import OtherLoad, describe
from engine.compile_model import compile_model
from engine.config import EngineConfig
from engine.messages import Progress
from models.architectures import MODULES
from models.checkpoint import open_checkpoint
from models.pull import default_cache_dir, resolve
from models.registry import CheckpointModel

_PAGES = 512  # of the KV pool, which compiling only reads


@dataclass(frozen=True)
class Compile:
    """One cold compile, in seconds."""

    layers: int
    regions: int
    classes: int
    nodes: int
    saturation_s: float
    total_s: float
    other_cores: float
    rule_s: dict[str, float]


def measure(path: Path, layers: int, threads: int | None) -> Compile:
    """Compile the first layers of a model. Raises what loading it raises."""
    load = OtherLoad()
    with TemporaryDirectory(prefix="egglm-compile-time-") as cache:
        start = perf_counter()
        checkpoint = open_checkpoint(path)
        checkpoint.config = replace(checkpoint.config, num_layers=layers)
        build = import_module(MODULES[checkpoint.config.architecture]).build
        model = CheckpointModel(path.stem, checkpoint, build)
        config = EngineConfig(cache_dir=Path(cache), threads=threads)
        compiled = compile_model(model, config, _PAGES, model.limits.context_length, _ignore)
        total_s = perf_counter() - start
        model.close()
    space = compiled.inputs.token_ids.graph.search_space
    assert space is not None
    return Compile(
        layers=layers,
        regions=len(space.regions),
        classes=sum(len(region.classes) for region in space.regions),
        nodes=sum(region.nodes_before_pruning for region in space.regions),
        saturation_s=sum(region.saturation_s for region in space.regions),
        total_s=total_s,
        other_cores=load.cores(),
        rule_s=_sums(region.rule_s for region in space.regions),
    )


def _sums(parts: Iterable[dict[str, float]]) -> dict[str, float]:
    total: Counter[str] = Counter()
    for part in parts:
        total.update(part)
    return dict(total)


def _ignore(progress: Progress) -> None:
    """Progress is for people who wait for a server."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", help="path or org/name; the default model if not given")
    parser.add_argument("--layers", default="4,30")
    parser.add_argument("--runs", type=int, default=3, help="of each, alternating")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--rules", type=int, default=5, help="of the slowest rules to show")
    parser.add_argument("--json", type=Path, help="write the result here as well")
    given = parser.parse_args()
    path = resolve(given.model, default_cache_dir())
    layers = [int(n) for n in given.layers.split(",")]
    runs = [measure(path, n, given.threads) for _ in range(given.runs) for n in layers]

    console = Console()
    for key, value in describe().items():
        console.print(f"{key}: {value}", highlight=False)
    table = Table("layers", "regions", "classes", "e-nodes", "saturation s", "total s", "other CPU")
    totals = {}
    for n in layers:
        chosen = [run for run in runs if run.layers == n]
        totals[n] = median(run.total_s for run in chosen)
        table.add_row(
            str(n),
            *(str(value) for value in (chosen[0].regions, chosen[0].classes, chosen[0].nodes)),
            f"{median(run.saturation_s for run in chosen):.3f}",
            f"{totals[n]:.1f}",
            f"{median(run.other_cores for run in chosen):.2f}",
        )
    console.print(table)
    slowest = sorted(runs[-1].rule_s.items(), key=lambda pair: -pair[1])[: given.rules]
    rules = Table("ms", f"rule, of {len(runs[-1].rule_s)}")
    for rule, seconds in slowest:
        rules.add_row(f"{seconds * 1e3:.2f}", " ".join(rule.split()))
    console.print(rules)
    for n in layers[1:]:
        console.print(f"{n} layers take {totals[n] / totals[layers[0]]:.2f} times {layers[0]}")
    if given.json:
        given.json.write_text(
            json.dumps({"machine": describe(), "runs": [asdict(run) for run in runs]}, indent=2)
        )


if __name__ == "__main__":
    main()
