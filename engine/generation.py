"""The stream of one request's deltas, as the server reads it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from engine.errors import EngineError
from engine.messages import Delta

Inbox = asyncio.Queue[Delta | EngineError]


class Generation(AsyncIterator[Delta]):
    """The deltas of one request, the last with a `finish_reason`.

    Raises the `EngineError` that ended the request early. Closing it early, or cancelling a task
    that waits for its next delta, aborts the request.
    """

    def __init__(self, request_id: str, inbox: Inbox, abort: Callable[[str], None]) -> None:
        self._ended = False
        self._request_id = request_id
        self._inbox = inbox
        self._abort = abort
        self._loop = asyncio.get_running_loop()

    def __aiter__(self) -> "Generation":
        return self

    async def __anext__(self) -> Delta:
        if self._ended:
            raise StopAsyncIteration
        try:
            item = await self._inbox.get()
        except asyncio.CancelledError:
            await self.aclose()
            raise
        if isinstance(item, EngineError):
            self._ended = True
            raise item
        self._ended = item.finish_reason is not None
        return item

    async def aclose(self) -> None:
        """Aborts the request unless it has ended."""
        if not self._ended:
            self._ended = True
            self._abort(self._request_id)

    def __del__(self) -> None:
        if not self._ended:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._abort, self._request_id)
