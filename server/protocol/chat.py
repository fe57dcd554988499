"""The body of POST /v1/chat/completions."""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from server.protocol.sampling import MAX_TOP_LOGPROBS, GenerationRequest, field_error
from server.protocol.unsupported import CHAT, refuse_unsupported

RESERVED_TEMPLATE_NAMES = frozenset(
    {
        "messages",
        "tools",
        "add_generation_prompt",
        "continue_final_message",
        "bos_token",
        "eos_token",
    }
)


class ContentPart(BaseModel):
    """A part of a message's content; only text is served."""

    model_config = ConfigDict(strict=True)

    type: str
    text: str | None = None
    refusal: str | None = None

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        if self.type not in ("text", "input_text", "output_text", "refusal"):
            raise PydanticCustomError(
                "content_part", f"content of type {self.type[:50]!r} is not supported, only text"
            )
        if self.string is None:
            raise PydanticCustomError("content_part", f"a {self.type} part needs its text")
        return self

    @property
    def string(self) -> str | None:
        return self.refusal if self.type == "refusal" else self.text


def _content_form(value: object) -> str:
    return "<parts>" if isinstance(value, list) else "<text>"


Content = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[list[ContentPart], Tag("<parts>")],
    Discriminator(_content_form),
]


class FunctionCall(BaseModel):
    model_config = ConfigDict(strict=True)

    name: str
    arguments: str | dict[str, Any]


class ToolCall(BaseModel):
    """A call that the assistant made earlier in the conversation."""

    model_config = ConfigDict(strict=True)

    id: str | None = None
    type: Literal["function"] = "function"
    function: FunctionCall


class Message(BaseModel):
    model_config = ConfigDict(strict=True)

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Content | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None

    @property
    def text(self) -> str:
        """The content as one string: parts are joined as they stand, null is empty."""
        if isinstance(self.content, list):
            return "".join(part.string or "" for part in self.content)
        return self.content or ""


class Conversation(BaseModel):
    """Messages and how to render them; shared by chat completions and /tokenize."""

    messages: Annotated[list[Message], Field(min_length=1)]
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    add_special_tokens: bool = False
    chat_template_kwargs: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _check_rendering(self) -> Self:
        if self.continue_final_message and self.add_generation_prompt:
            raise field_error(
                "continue_final_message", "cannot be combined with add_generation_prompt: true"
            )
        reserved = RESERVED_TEMPLATE_NAMES & (self.chat_template_kwargs or {}).keys()
        if reserved:
            raise field_error("chat_template_kwargs", f"{sorted(reserved)[0]} has its own field")
        return self

    @property
    def opens_answer(self) -> bool:
        """Whether the template ends with the start of the assistant's turn."""
        given = self.add_generation_prompt
        return not self.continue_final_message if given is None else given


class ChatRequest(GenerationRequest, Conversation):
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_unsupported(cls, body: object) -> object:
        refuse_unsupported(body, CHAT)
        return body

    @model_validator(mode="after")
    def _check_logprobs(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise field_error("top_logprobs", "needs logprobs: true")
        return self

    @property
    def token_limit(self) -> int | None:
        """New tokens asked for; None for the rest of the context. The newer name wins."""
        newer = self.max_completion_tokens
        return newer if newer is not None else self.max_tokens
