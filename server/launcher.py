"""`egglm serve` from the first line to the last: bind, load, serve, drain."""

import asyncio
import contextlib
import functools
import logging
import socket
import sys
from typing import TYPE_CHECKING

import uvicorn
import uvloop

from engine.client import EngineClient
from engine.config import EngineConfig
from engine.messages import EngineInfo
from models.registry import loader
from server.engine_handle import EngineHandle
from server.fetch import (
    cache_folder,
    fetch_model,
    in_background,
    read_text_side,
    served_names,
)
from server.generation.defaults import read_sampling_defaults
from server.http import HttpServer, listen
from server.logs import configure_logging
from server.metrics import Metrics
from server.progress import show_progress
from server.settings import Settings, engine_config
from server.shutdown import Shutdown
from server.state import ServedModel, ServerState
from server.user_errors import user_message

if TYPE_CHECKING:
    from fastapi import FastAPI

log = logging.getLogger("egglm.server")

GRACE_S = 3
"""For answers that are already being written when the listening socket closes."""


def run_server(settings: Settings) -> int:
    """Serves until a signal; returns the exit code.

    What a user can mend ends in one line on standard error.
    """
    configure_logging(settings.log_level)
    try:
        config = engine_config(settings, cache_folder(settings))
        with listen(settings.host, settings.port) as listener:
            uvloop.run(_serve(settings, config, listener))
            return 0
    except Exception as error:
        message = user_message(error)
        if message is None:
            raise
        print(f"egglm: {message}", file=sys.stderr, flush=True)
        return 1


async def _serve(settings: Settings, config: EngineConfig, listener: socket.socket) -> None:
    """Answers HTTP while it loads and after; returns when a signal has ended it.

    Raises what kept the model from loading.
    """
    state = ServerState(settings, Metrics(served_names(settings)[0]))
    starting = asyncio.create_task(_bring_up(state, config, listener))
    http = HttpServer(
        uvicorn.Config(
            await in_background(lambda: _make_app(state)),
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=GRACE_S,
        )
    )
    Shutdown(state, http).listen_to_signals()
    serving = asyncio.create_task(http.serve(sockets=[listener]))
    starting.add_done_callback(functools.partial(_stop_if_failed, http))
    try:
        await serving
        if starting.done():
            starting.result()
    finally:
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        if state.model is not None:
            await state.model.engine.close()


def _stop_if_failed(http: HttpServer, starting: asyncio.Task[None]) -> None:
    if not starting.cancelled() and starting.exception() is not None:
        http.should_exit = True


def _make_app(state: ServerState) -> "FastAPI":
    # The import takes long: what the engine needs of the processor comes first.
    from server.app import create_app

    return create_app(state)


async def _bring_up(state: ServerState, config: EngineConfig, listener: socket.socket) -> None:
    """Fetches, reads and compiles the model while HTTP already answers /health and /ready."""
    settings = state.settings
    state.loading = "fetching the model"
    path = await in_background(lambda: fetch_model(settings))
    state.loading = "reading the tokenizer"
    engine: EngineHandle = EngineClient(loader(path, settings.quantize), config)
    async with contextlib.AsyncExitStack() as undo:
        undo.push_async_callback(engine.close)
        await engine.start()
        tokenizer, eos_token_ids = await in_background(lambda: read_text_side(path))
        names = served_names(settings)
        defaults = read_sampling_defaults(path)
        state.model = ServedModel(names, tokenizer, engine, eos_token_ids, defaults)
        state.metrics.watch(lambda: engine.stats)
        undo.pop_all()
    async with show_progress(engine):
        info = await engine.wait_ready()
    log.info("%s", announcement(names[0], info, listener))


def announcement(name: str, info: EngineInfo, listener: socket.socket) -> str:
    """What was loaded, how much fits, and where it answers."""
    host, port = listener.getsockname()[:2]
    host = f"[{host}]" if ":" in host else host
    mib = 2**20
    rows = (
        ("device", f"{info.device}, {info.threads} threads"),
        ("context", f"{info.max_model_len} tokens"),
        ("weights", f"{info.weights_bytes / mib:.0f} MiB"),
        (
            "KV cache",
            f"{info.kv_bytes / mib:.0f} MiB, {info.kv_tokens} tokens, "
            f"{info.max_concurrency:.1f} requests of full length",
        ),
        ("workspace", f"{info.workspace_bytes / mib:.0f} MiB"),
    )
    table = "".join(f"\n  {label:<10} {value}" for label, value in rows)
    return f"{name} is ready on http://{host}:{port}/v1{table}"
