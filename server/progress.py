"""What a person at the terminal sees while the model is compiled."""

import asyncio
import contextlib
import logging
import sys
from collections.abc import AsyncIterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from server.engine_handle import EngineHandle

log = logging.getLogger("egglm.server")

POLL_S = 0.1


@contextlib.asynccontextmanager
async def show_progress(engine: EngineHandle) -> AsyncIterator[None]:
    """Shows progress while the block runs: a bar on a terminal, else a log line a stage."""
    watch = _draw_bar(engine) if sys.stderr.isatty() else _log_stages(engine)
    task = asyncio.create_task(watch)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _draw_bar(engine: EngineHandle) -> None:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting the engine", total=None)
        while True:
            progress = engine.progress
            if progress is not None:
                bar.update(
                    task,
                    description=progress.stage,
                    completed=progress.done,
                    total=progress.total or None,
                )
            await asyncio.sleep(POLL_S)


async def _log_stages(engine: EngineHandle) -> None:
    stage = None
    while True:
        progress = engine.progress
        if progress is not None and progress.stage != stage:
            stage = progress.stage
            log.info("%s", stage)
        await asyncio.sleep(POLL_S)
