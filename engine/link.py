"""One engine process as its parent sees it: starting it, talking to it, ending it."""

import asyncio
import atexit
import logging
import multiprocessing
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator
from time import monotonic

import zmq
import zmq.asyncio

from engine.config import EngineConfig
from engine.messages import FromEngine, Shutdown, ToEngine, decode_from_engine, encode
from engine.process import (
    LoadModel,
    RunnerFactory,
    commands_address,
    events_address,
    run_engine,
)

POLL_S = 0.25
_KILL_WAIT_S = 5.0
_MAX_FOLDER = 80
"""Unix socket paths end at 107 bytes; a longer temporary folder is replaced by /tmp."""


class EngineLink:
    """A running engine process and the two sockets to it, in a private folder.

    Raises what spawning raises: `OSError`, or a pickling error for what cannot reach the process.
    """

    def __init__(
        self, load_model: LoadModel, config: EngineConfig, make_runner: RunnerFactory | None
    ) -> None:
        base = tempfile.gettempdir()
        self._folder = tempfile.mkdtemp(
            prefix="egglm-", dir=base if len(base) < _MAX_FOLDER else "/tmp"
        )
        self._context = zmq.Context()
        self._events = zmq.asyncio.Socket(self._context, zmq.PULL)
        self._events.rcvtimeo = round(POLL_S * 1000)
        self._commands: zmq.Socket[bytes] | None = None
        self._process = multiprocessing.get_context("spawn").Process(
            target=run_engine,
            args=(load_model, config, self._folder, make_runner),
            kwargs={"log_level": logging.getLogger().getEffectiveLevel()},
            name="egglm-engine",
        )
        try:
            self._events.bind(events_address(self._folder))
            self._process.start()
        except BaseException:
            self._close()
            raise
        atexit.register(self._process.kill)

    @property
    def pid(self) -> int | None:
        return self._process.pid

    def send(self, message: ToEngine) -> None:
        """Queues a message. Only after `Ready`, when the process listens, is it sent at once."""
        if self._commands is None:
            self._commands = self._context.socket(zmq.PUSH)
            self._commands.sndhwm = 0
            self._commands.connect(commands_address(self._folder))
        self._commands.send(encode(message), zmq.NOBLOCK)

    async def messages(self) -> AsyncIterator[FromEngine | None]:
        """What the process sends, and None after each `POLL_S` without a message.

        Ends when the process has ended and all that it sent was given.
        """
        while True:
            try:
                yield decode_from_engine(await self._events.recv())
            except zmq.Again:
                if not self._process.is_alive():
                    return
                yield None

    def ending(self) -> str:
        """How the process ended, for people."""
        code = self._process.exitcode
        if code is not None and code < 0:
            return f"killed by {signal.Signals(-code).name}"
        return f"exit status {code}"

    def kill(self) -> None:
        self._process.kill()

    async def stop(self, grace_s: float) -> None:
        """Asks the process to end, kills it after `grace_s`, and removes the sockets."""
        if grace_s > 0 and self._process.is_alive():
            self.send(Shutdown())
            await self._wait_for_end(grace_s)
        self._process.kill()
        await self._wait_for_end(_KILL_WAIT_S)
        atexit.unregister(self._process.kill)
        self._close()

    async def _wait_for_end(self, limit_s: float) -> None:
        deadline = monotonic() + limit_s
        while self._process.is_alive() and monotonic() < deadline:
            await asyncio.sleep(0.01)

    def _close(self) -> None:
        self._events.close(linger=0)
        if self._commands is not None:
            self._commands.close(linger=0)
        self._context.term()
        shutil.rmtree(self._folder, ignore_errors=True)
