"""`egglm compile`: compile a model as `egglm serve` would, and print what the search found."""

from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from engine import messages
from engine.compiler.report import text
from engine.compiler.report_page import page
from engine.runner import Runner
from models import registry
from server.fetch import cache_folder, fetch_model
from server.settings import Settings, engine_config


def compile_model(settings: Settings, report: Path | None) -> None:
    """Compile, print a table a bucket, and write a web page with the same where `report` says."""
    path = fetch_model(settings)
    config = engine_config(settings, cache_folder(settings))
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
    ) as bar:
        tasks = {}

        def show(step: messages.Progress) -> None:
            if step.stage not in tasks:
                tasks[step.stage] = bar.add_task(step.stage, total=step.total)
            bar.update(tasks[step.stage], completed=step.done)

        runner = Runner(registry.load(path, settings.quantize), config, show)
    if not runner.reports:
        print("nothing was searched: the reference runtime has one program for all shapes")
    elif runner.from_artifact:
        print("(from the saved programs of an earlier search)\n")
    print("\n\n".join(text(bucket) for bucket in runner.reports))
    if report is not None:
        report.write_text(page(runner.info.model, runner.reports))
        print(f"\nwrote {report}")
