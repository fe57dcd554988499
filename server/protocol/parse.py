"""A request body's bytes to a validated model, or the 400 that says what is wrong with it.

Bodies are parsed here rather than by FastAPI: one pass in Rust from bytes to fields, any content
type (a plain `curl -d` works), and errors with the names and the shape that OpenAI clients know.
"""

import asyncio
from collections.abc import Sequence
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from starlette.requests import Request

from server.errors import APIError, invalid

Model = TypeVar("Model", bound=BaseModel)

MAX_REPORTED_ERRORS = 10
MAX_ECHOED_CHARS = 200
LARGE_BODY_BYTES = 256 * 1024
"""Bodies above this are validated on a thread, so that they do not hold up other requests' tokens.
"""


async def parse_body(request: Request, model: type[Model]) -> Model:
    """The body as a `model`.

    Raises `APIError` 400 for bad JSON or a bad field, 413 past the size limit.
    """
    body = await request.body()
    try:
        if len(body) > LARGE_BODY_BYTES:
            return await asyncio.to_thread(model.model_validate_json, body)
        return model.model_validate_json(body)
    except ValidationError as error:
        raise explain(error) from None


def explain(error: ValidationError) -> APIError:
    """The 400 for a failed validation, with the first field as `param`.

    It names at most ten problems, with their inputs cut short.
    """
    problems = error.errors(include_url=False)
    shown = problems[:MAX_REPORTED_ERRORS]
    message = "; ".join(_describe(problem) for problem in shown)
    if len(problems) > len(shown):
        message += f"; and {len(problems) - len(shown)} more"
    first = problems[0]
    return invalid(message, _param(first).rstrip("[]0123456789") or None, _code(first))


def _code(problem: ErrorDetails) -> str | None:
    kind = problem["type"]
    if kind == "json_invalid":
        return "invalid_json"
    return "unsupported_parameter" if kind == "unsupported_parameter" else None


def _describe(problem: ErrorDetails) -> str:
    if problem["type"] == "json_invalid":
        return f"The body is not valid JSON: {problem['ctx']['error']}"
    param = _param(problem)
    message = problem["msg"]
    if not param:
        return message if problem["loc"] or problem["type"] != "model_type" else _NOT_AN_OBJECT
    if problem["type"] == "missing" or "param" in problem.get("ctx", {}):
        return f"{param}: {message}"
    return f"{param}: {message} (got {_echo(problem['input'])})"


_NOT_AN_OBJECT = "The body must be a JSON object."


def _echo(value: object) -> str:
    """`value` for a message, never longer than `MAX_ECHOED_CHARS`.

    Strings and lists are cut before they are printed: a body of megabytes must not cost megabytes
    of formatting.
    """
    if isinstance(value, str | bytes | list):
        value = value[:MAX_ECHOED_CHARS]
    elif isinstance(value, dict):
        value = dict(list(value.items())[:8])
    text = repr(value)
    return text if len(text) <= MAX_ECHOED_CHARS else text[:MAX_ECHOED_CHARS] + "…"


def _param(problem: ErrorDetails) -> str:
    """`messages[0].content` for a location; a validator may name the field in its context."""
    named = problem.get("ctx", {}).get("param")
    return str(named) if named is not None else field_path(problem["loc"])


_UNION_TAGS = frozenset({"str", "int", "float", "bool", "dict", "list"})


def field_path(location: Sequence[int | str]) -> str:
    """`("messages", 0, "content")` as `messages[0].content`; tags of unions are left out."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part.isidentifier() and part not in _UNION_TAGS:
            path += f".{part}" if path else part
    return path
