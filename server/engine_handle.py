"""What the server needs of an engine: `engine.client.EngineClient`, or a scripted one in tests."""

from collections.abc import AsyncIterator
from typing import Protocol

from engine.messages import Delta, EngineInfo, Progress, SamplingParams, Stats


class DeltaStream(Protocol):
    """One choice's deltas; closing it aborts what is left."""

    def __aiter__(self) -> AsyncIterator[Delta]: ...

    async def aclose(self) -> None: ...


class EngineHandle(Protocol):
    @property
    def state(self) -> str:
        """starting, ready, unresponsive, draining, restarting or failed."""
        ...

    @property
    def info(self) -> EngineInfo | None: ...

    @property
    def stats(self) -> Stats: ...

    @property
    def progress(self) -> Progress | None: ...

    @property
    def failure(self) -> str | None:
        """Why the engine process last ended, in one line."""
        ...

    def check_admission(self, count: int = 1) -> None:
        """Raises `NotReady` or `QueueFull` of `engine.errors` unless all would be taken."""
        ...

    def generate(
        self, request_id: str, prompt_ids: list[int], params: SamplingParams, priority: int = 0
    ) -> DeltaStream:
        """Submits one choice. Raises like `check_admission`, its stream `EngineDied`."""
        ...

    async def start(self) -> None: ...

    async def wait_ready(self) -> EngineInfo:
        """Raises `EngineFailed` if the model cannot be loaded."""
        ...

    async def close(self, drain_s: float = 0.0) -> None: ...
