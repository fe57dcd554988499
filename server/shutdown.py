"""How the server ends: readiness goes first, running requests finish, then the socket closes."""

import asyncio
import logging
import signal
import time

from server.errors import unavailable
from server.http import HttpServer
from server.state import ServerState

log = logging.getLogger("egglm.server")

POLL_S = 0.02
ABORT_GRACE_S = 2.0
"""For the error events of aborted requests to be written."""


class Shutdown:
    """The first SIGTERM or SIGINT drains for up to `drain_timeout`; the second aborts at once."""

    def __init__(self, state: ServerState, http: HttpServer) -> None:
        self._state = state
        self._http = http
        self._drain: asyncio.Task[None] | None = None
        self._deadline_s = 0.0

    def listen_to_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.signalled)

    def signalled(self) -> None:
        if self._drain is None:
            self._state.draining = True
            self._deadline_s = time.monotonic() + self._state.settings.drain_timeout
            log.info("shutting down: %d requests to finish", len(self._state.in_flight))
            self._drain = asyncio.create_task(self._run())
        else:
            log.info("aborting %d requests", len(self._state.in_flight))
            self._deadline_s = 0.0

    async def _run(self) -> None:
        while self._state.in_flight and time.monotonic() < self._deadline_s:
            await asyncio.sleep(POLL_S)
        for generation in list(self._state.in_flight):
            generation.fail(unavailable("The server is shutting down.", "shutting_down"))
        give_up_s = time.monotonic() + ABORT_GRACE_S
        while self._state.in_flight and time.monotonic() < give_up_s:
            await asyncio.sleep(POLL_S)
        self._http.should_exit = True
