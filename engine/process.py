"""The engine process: loads a model, then serves the requests of one client until told to stop."""

import logging
import multiprocessing
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import zmq

from engine.config import EngineConfig
from engine.core import EngineCore, StepRunner
from engine.errors import LoadError
from engine.messages import (
    Abort,
    Deltas,
    Failed,
    FromEngine,
    Generate,
    Progress,
    Ready,
    Stats,
    ToEngine,
    decode_to_engine,
    encode,
)

if TYPE_CHECKING:
    from engine.model import Model

logger = logging.getLogger(__name__)

HEARTBEAT_S = 1.0
_LINGER_MS = 2000

LoadModel = Callable[[], "Model"]
RunnerFactory = Callable[["Model", EngineConfig, Callable[[Progress], None]], StepRunner]


def commands_address(folder: str) -> str:
    """Where the engine process receives; it binds, the client connects."""
    return f"ipc://{folder}/commands"


def events_address(folder: str) -> str:
    """Where the engine process sends; the client binds, it connects."""
    return f"ipc://{folder}/events"


def run_engine(
    load_model: LoadModel,
    config: EngineConfig,
    address: str,
    make_runner: RunnerFactory | None = None,
    log_level: int = logging.INFO,
) -> None:
    """The engine process's main; returns when the client says `Shutdown`.

    `address` is the folder of the sockets. `make_runner` is the compiling runner unless a test
    gives another. The process ends at once when its parent does, and leaves SIGINT and SIGTERM,
    which a terminal or a service manager sends to the whole group, to the parent. When loading or
    a step raises, it logs the traceback (unless it is a `LoadError`), sends `Failed` and exits with status 1.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    logging.basicConfig(level=log_level, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    _end_with_parent(address)
    with _Sockets(address) as sockets, _Heartbeat(sockets.send) as heartbeat:
        try:
            core = _load(load_model, config, make_runner, sockets.send)
            heartbeat.stats = core.stats
            _serve(core, sockets)
        except Exception as error:
            if not isinstance(
                error, LoadError
            ):  # that is the user's to mend, and the client says it
                logger.exception("the engine process ends")
            sockets.send(Failed(_one_line(error)))
            sys.exit(1)


def _load(
    load_model: LoadModel,
    config: EngineConfig,
    make_runner: RunnerFactory | None,
    send: Callable[[FromEngine], None],
) -> EngineCore:
    if make_runner is None:
        from engine.runner import Runner

        make_runner = Runner
    runner = make_runner(load_model(), config, send)
    core = EngineCore(runner, config)
    send(Ready(runner.info))
    return core


def _serve(core: EngineCore, sockets: "_Sockets") -> None:
    """Messages, then a step, and again; waits in the socket while there is nothing to do."""
    while True:
        deltas = []
        wait = not core.busy
        if wait:
            sockets.send(core.stats())
        while (message := sockets.receive(wait)) is not None:
            wait = False
            if isinstance(message, Generate):
                answer = core.add(message)
            elif isinstance(message, Abort):
                answer = core.abort(message.request_id)
            else:
                return
            if answer is not None:
                deltas.append(answer)
        deltas += core.step()
        if deltas:
            sockets.send(Deltas(deltas))


class _Sockets:
    """The engine's ends of the two sockets. `send` may be called from any thread."""

    def __init__(self, folder: str) -> None:
        self._context = zmq.Context()
        self._lock = threading.Lock()
        self._commands = self._context.socket(zmq.PULL)
        self._commands.bind(commands_address(folder))
        self._events = self._context.socket(zmq.PUSH)
        self._events.linger = _LINGER_MS
        self._events.connect(events_address(folder))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        with self._lock:
            self._commands.close(linger=0)
            self._events.close()
            self._context.term()

    def send(self, message: FromEngine) -> None:
        data = encode(message)
        with self._lock:
            if not self._events.closed:
                self._events.send(data)

    def receive(self, wait: bool) -> ToEngine | None:
        """The next message; None when there is none and `wait` is false."""
        try:
            return decode_to_engine(self._commands.recv(0 if wait else zmq.NOBLOCK))
        except zmq.Again:
            return None


class _Heartbeat:
    """Sends `Stats` each second from a thread of its own, also during long steps and compiles."""

    def __init__(self, send: Callable[[FromEngine], None]) -> None:
        self.stats: Callable[[], Stats] = Stats
        self._send = send
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(HEARTBEAT_S):
            self._send(self.stats())


def _end_with_parent(folder: str) -> None:
    """Ends this process when its parent ends, however that ends, and removes the sockets."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        parent.join()
        shutil.rmtree(Path(folder), ignore_errors=True)
        os._exit(1)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text or type(error).__name__
