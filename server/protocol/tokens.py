"""The bodies of POST /tokenize and POST /detokenize."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from server.protocol.chat import Conversation
from server.protocol.sampling import TokenId


class TokenizeTextRequest(BaseModel):
    model_config = ConfigDict(strict=True)

    model: str | None = None
    prompt: str
    add_special_tokens: bool = True
    return_token_strs: bool = False


class TokenizeChatRequest(Conversation):
    model_config = ConfigDict(strict=True)

    model: str | None = None
    return_token_strs: bool = False


class TokenizeRequest(BaseModel):
    """Only tells the two forms apart."""

    model_config = ConfigDict(extra="allow")

    messages: object = None


class DetokenizeRequest(BaseModel):
    model_config = ConfigDict(strict=True)

    model: str | None = None
    tokens: Annotated[list[TokenId], Field()]
    skip_special_tokens: bool = False
