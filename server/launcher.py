"""`egglm serve` from the first line to the last: bind, load, serve, drain."""

import asyncio
import functools
import logging
import socket
import sys

import uvicorn
import uvloop

from engine.client import EngineClient
from engine.messages import EngineInfo
from models.registry import load
from server.app import create_app
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

log = logging.getLogger("egglm.server")

GRACE_S = 3
"""For answers that are already being written when the listening socket closes."""


def run_server(settings: Settings) -> int:
    """Serves until a signal; returns the exit code. What a user can mend ends in one line on
    standard error.
    """
    configure_logging(settings.log_level)
    try:
        with listen(settings.host, settings.port) as listener:
            return uvloop.run(_serve(settings, listener))
    except Exception as error:
        message = user_message(error)
        if message is None:
            raise
        print(f"egglm: {message}", file=sys.stderr, flush=True)
        return 1


async def _serve(settings: Settings, listener: socket.socket) -> int:
    state = ServerState(settings, Metrics(served_names(settings)[0]))
    config = uvicorn.Config(
        create_app(state),
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=GRACE_S,
    )
    http = HttpServer(config)
    shutdown = Shutdown(state, http)
    shutdown.listen_to_signals()
    serving = asyncio.create_task(http.serve(sockets=[listener]))
    starting = asyncio.create_task(_bring_up(state, listener))
    try:
        await asyncio.wait({serving, starting}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done() and starting.exception() is not None:
            http.should_exit = True
        await serving
        if starting.done():
            starting.result()
    finally:
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        if state.model is not None:
            await state.model.engine.close(0)
    return 0


async def _bring_up(state: ServerState, listener: socket.socket) -> None:
    """Fetches, reads and compiles the model while HTTP already answers /health and /ready."""
    settings = state.settings
    state.loading = "fetching the model"
    path = await in_background(lambda: fetch_model(settings))
    state.loading = "reading the tokenizer"
    tokenizer, eos_token_ids = await in_background(lambda: read_text_side(path))
    engine: EngineHandle = EngineClient(
        functools.partial(load, path), engine_config(settings, cache_folder(settings))
    )
    state.model = ServedModel(
        served_names(settings), tokenizer, engine, eos_token_ids, read_sampling_defaults(path)
    )
    state.metrics.watch(lambda: engine.stats)
    await engine.start()
    async with show_progress(engine):
        await engine.wait_ready()
    assert engine.info is not None
    log.info("%s", announcement(state.model.name, engine.info, listener))


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
