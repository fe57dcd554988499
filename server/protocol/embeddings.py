"""The body of POST /v1/embeddings."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from server.protocol.completions import text_or_ids
from server.protocol.unsupported import EMBEDDINGS, refuse_unsupported

MAX_INPUTS = 2048


def _inputs(value: object) -> object:
    return text_or_ids(value, MAX_INPUTS)


class EmbeddingRequest(BaseModel):
    model_config = ConfigDict(strict=True)

    model: str | None = None
    input: Annotated[list[Any], BeforeValidator(_inputs)]
    """Of texts and token ids, whatever form they came in."""
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, Field(ge=1)] | None = None
    """Only the first so many numbers of each embedding, again of length 1."""
    add_special_tokens: bool = True
    user: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_unsupported(cls, body: object) -> object:
        refuse_unsupported(body, EMBEDDINGS)
        return body
