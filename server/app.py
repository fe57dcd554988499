"""The ASGI application: routes, error handlers and middleware around one `ServerState`."""

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware

from engine.errors import EngineError
from models.tokenizer import ChatTemplateError
from server.errors import (
    APIError,
    ClientDisconnected,
    on_api_error,
    on_disconnect,
    on_http_exception,
)
from server.middleware import ApiKeys, BodyLimit, RequestContext
from server.openapi import DescribedAPI
from server.routes import chat, completions, embeddings, models, operations, tokens
from server.state import ServerState
from server.version import program_version


def create_app(state: ServerState) -> FastAPI:
    """The application of `state`, which may get its model later; /ready tells."""
    settings = state.settings
    app = DescribedAPI(
        title="EggLM",
        version=program_version(),
        redirect_slashes=False,
        middleware=[
            Middleware(RequestContext, metrics=state.metrics),
            Middleware(ApiKeys, keys=settings.api_key),
            Middleware(BodyLimit, limit_bytes=settings.max_body_size),
        ],
        exception_handlers={
            APIError: on_api_error,
            ChatTemplateError: on_api_error,
            EngineError: on_api_error,
            ClientDisconnected: on_disconnect,
            HTTPException: on_http_exception,
        },
    )
    app.state.server = state
    for module in (chat, completions, embeddings, models, operations, tokens):
        app.include_router(module.router)
    return app
