"""What can go wrong between the server and an engine process."""


class EngineError(Exception):
    """Base of the errors that `engine.client` raises."""


class NotReady(EngineError):
    """The engine takes no requests now: it is loading, restarting, silent or shutting down."""

    def __init__(self, state: str) -> None:
        super().__init__(f"the engine takes no requests: it is {state}")
        self.state = state


class QueueFull(EngineError):
    """As many requests are in flight as the engine may run and queue."""

    def __init__(self, in_flight: int, limit: int) -> None:
        super().__init__(f"the queue is full: {in_flight} requests in flight, the limit is {limit}")
        self.in_flight = in_flight
        self.limit = limit


class RequestTooLarge(EngineError):
    """A request that could not run even with the whole engine to itself."""

    def __init__(self, what: str, tokens: int, limit: int) -> None:
        super().__init__(f"{what} needs {tokens} tokens, the limit is {limit}")
        self.tokens = tokens
        self.limit = limit


class EngineDied(EngineError):
    """The engine process ended while the request was in flight."""


class EngineFailed(EngineError):
    """The engine could not be loaded; the message is the cause in one line."""


class LoadError(Exception):
    """The model cannot be loaded as asked, which the user can mend; the message says how things stand."""
