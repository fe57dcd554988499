"""What a running server holds: settings, metrics, the served model, and the requests in flight."""

import time
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from starlette.requests import Request

from models.tokenizer import Tokenizer
from server.engine_handle import EngineHandle
from server.errors import model_not_found, unavailable
from server.generation.defaults import SamplingDefaults
from server.generation.token_names import TokenNames
from server.metrics import Metrics
from server.settings import Settings


class InFlight(Protocol):
    """A request that is being answered."""

    def fail(self, error: Exception) -> None:
        """Ends it with `error`, from outside."""
        ...


@dataclass(frozen=True)
class ServedModel:
    """One model under its public names, with its engine."""

    names: list[str]
    """Names that requests may use; the first is the one in answers."""
    tokenizer: Tokenizer
    engine: EngineHandle
    eos_token_ids: tuple[int, ...]
    defaults: SamplingDefaults
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def max_model_len(self) -> int | None:
        """Tokens of prompt and answer together; None until the engine is ready."""
        return self.engine.info.max_model_len if self.engine.info else None

    @property
    def embedding_size(self) -> int | None:
        """Numbers in an embedding; None for a model that generates."""
        return self.engine.info.embedding_size if self.engine.info else None

    @cached_property
    def token_names(self) -> TokenNames:
        return TokenNames(self.tokenizer)


@dataclass
class ServerState:
    """Owned by the application; routes reach it through `state_of(request)`."""

    settings: Settings
    metrics: Metrics
    model: ServedModel | None = None
    """None while the checkpoint is fetched and its tokenizer read."""
    loading: str = "starting"
    """What happens before there is a model, for /ready."""
    draining: bool = False
    in_flight: set[InFlight] = field(default_factory=set)

    def model_named(self, name: str | None) -> ServedModel:
        """The model for a request's `model` field; None asks for the one there is.

        Raises `APIError` 404 for a name that is not served, 503 before the model's files are read.
        """
        if self.model is None:
            raise unavailable("The model is still loading.", "not_ready", retry_after_s=5)
        if name is not None and name not in self.model.names:
            raise model_not_found(name, self.model.names)
        return self.model

    def ready_model(self, name: str | None) -> ServedModel:
        """`model_named`, if it can take a request now; raises `APIError` 503 if not."""
        model = self.model_named(name)
        if self.draining:
            raise unavailable("The server is shutting down.", "shutting_down", retry_after_s=10)
        if model.engine.state != "ready" or model.engine.info is None:
            raise unavailable(f"The engine is {model.engine.state}.", "not_ready", retry_after_s=5)
        return model


def state_of(request: Request) -> ServerState:
    state = request.app.state.server
    assert isinstance(state, ServerState)
    return state
