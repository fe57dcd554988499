"""The body of POST /v1/completions."""

from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from server.protocol.sampling import MAX_TOP_LOGPROBS, GenerationRequest, field_error
from server.protocol.unsupported import COMPLETIONS, refuse_unsupported

DEFAULT_MAX_TOKENS = 16
MAX_PROMPTS = 1024

Prompt = str | list[int]


def _is_ids(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(type(item) is int for item in value)


def text_or_ids(value: object, limit: int) -> list[Prompt]:
    """Text, token ids, or a list of up to `limit` of either, as a list of prompts.

    Checked by hand: a union of four list types would report four errors for each of a thousand
    items.
    """
    if isinstance(value, str) or _is_ids(value):
        value = [value]
    if not isinstance(value, list) or not all(isinstance(p, str | list) for p in value):
        raise PydanticCustomError(
            "prompt", "must be a string, a list of token ids, or a list of either"
        )
    if not value or not all(value):
        raise PydanticCustomError("prompt", "must not be empty")
    if len(value) > limit:
        raise PydanticCustomError("prompt", f"has more than {limit} items")
    for prompt in value:
        if isinstance(prompt, list) and not _is_ids(prompt):
            raise PydanticCustomError("prompt", "token ids must be integers")
    return value


def _prompt_list(value: object) -> list[Prompt]:
    return text_or_ids(value, MAX_PROMPTS)


class CompletionRequest(GenerationRequest):
    prompt: Annotated[list[Any], BeforeValidator(_prompt_list)]
    """Of `Prompt`s, whatever form they came in."""

    max_tokens: Annotated[int, Field(ge=0)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=0)] | None = None
    echo: bool = False
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    add_special_tokens: bool = True

    @model_validator(mode="before")
    @classmethod
    def _refuse_unsupported(cls, body: object) -> object:
        refuse_unsupported(body, COMPLETIONS)
        return body

    @model_validator(mode="after")
    def _check_lengths(self) -> Self:
        if self.token_limit == 0 and not self.echo:
            raise field_error("max_tokens", "must be at least 1 unless echo is true")
        return self

    @property
    def token_limit(self) -> int | None:
        """New tokens asked for; None if the request leaves it open."""
        newer = self.max_completion_tokens
        return newer if newer is not None else self.max_tokens
