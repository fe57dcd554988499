"""Errors that clients see: the OpenAI error object with the right status."""

from collections.abc import Mapping

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from engine.errors import EngineDied, NotReady, QueueFull, RequestTooLarge
from models.tokenizer import ChatTemplateError

CLIENT_CLOSED_REQUEST = 499
"""nginx's status for a client that went away: logged, never delivered."""


class APIError(Exception):
    """An answer other than success: `status` and the fields of OpenAI's error object."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def body(self) -> bytes:
        """`{"error": {message, type, param, code}}` as JSON."""
        return msgspec.json.encode(
            {
                "error": {
                    "message": self.message,
                    "type": self.type,
                    "param": self.param,
                    "code": self.code,
                }
            }
        )

    def response(self) -> Response:
        return Response(self.body(), self.status, self.headers, "application/json")


class ClientDisconnected(Exception):
    """The client closed its connection; there is nobody left to answer."""


def invalid(message: str, param: str | None = None, code: str | None = None) -> APIError:
    """400: the request itself is wrong."""
    return APIError(400, message, param=param, code=code)


def context_length_exceeded(
    limit: int, prompt_tokens: int, completion_tokens: int | None, param: str
) -> APIError:
    """400 in the words that clients match on: "maximum context length is N tokens"."""
    start = f"This model's maximum context length is {limit} tokens."
    if completion_tokens is None:
        detail = (
            f"However, your prompt has {prompt_tokens} tokens, which leaves no room for an answer."
        )
    else:
        detail = (
            f"However, you requested {prompt_tokens + completion_tokens} tokens "
            f"({prompt_tokens} in the prompt, {completion_tokens} in the completion)."
        )
    return invalid(
        f"{start} {detail} Shorten the prompt or the completion.", param, "context_length_exceeded"
    )


def model_not_found(name: str, served: list[str]) -> APIError:
    return APIError(
        404,
        f"The model {name[:200]!r} does not exist here. Served: {', '.join(served)}.",
        param="model",
        code="model_not_found",
    )


def unavailable(message: str, code: str, retry_after_s: int = 2) -> APIError:
    """503: not now; the client may try again."""
    return APIError(
        503,
        message,
        type="server_error",
        code=code,
        headers={"Retry-After": str(retry_after_s)},
    )


def internal_error() -> APIError:
    return APIError(500, "The server had an internal error.", type="server_error", code="internal")


def translate(error: Exception) -> APIError:
    """The answer for an error raised while a request was served.

    Raises `error` again if it is none of the expected kinds: that is a bug, and it gets a traceback
    in the log.
    """
    if isinstance(error, APIError):
        return error
    if isinstance(error, QueueFull):
        return APIError(
            429,
            "The request queue is full. Try again later.",
            type="rate_limit_error",
            code="queue_full",
            headers={"Retry-After": "1"},
        )
    if isinstance(error, NotReady):
        return unavailable(f"The engine is {error.state}.", "not_ready")
    if isinstance(error, EngineDied):
        return unavailable(
            "The engine stopped while it served this request; it is being restarted.", "engine_died"
        )
    if isinstance(error, RequestTooLarge):
        return invalid(
            f"This server's maximum context length is {error.limit} tokens; {error}.",
            code="context_length_exceeded",
        )
    if isinstance(error, ChatTemplateError):
        return invalid(f"The chat template refused the messages: {error}", "messages")
    raise error


async def on_api_error(_: Request, error: Exception) -> Response:
    return translate(error).response()


async def on_http_exception(request: Request, error: Exception) -> Response:
    """Starlette's own 404 and 405, as the OpenAI error object."""
    assert isinstance(error, HTTPException)
    path = request.url.path[:200]
    messages = {
        404: f"Unknown path: {request.method} {path}.",
        405: f"{path} does not take {request.method}.",
    }
    message = messages.get(error.status_code, str(error.detail))
    codes = {404: "unknown_path", 405: "method_not_allowed"}
    return APIError(
        error.status_code, message, code=codes.get(error.status_code), headers=error.headers
    ).response()


async def on_disconnect(_: Request, error: Exception) -> Response:
    return Response(status_code=CLIENT_CLOSED_REQUEST)
