"""The request fields that completions and chat share, and their meaning for the engine."""

from typing import Annotated, Any, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    model_validator,
)
from pydantic_core import PydanticCustomError

MAX_CHOICES = 128
MAX_STOP_STRINGS = 16
MAX_TOP_LOGPROBS = 20
RequestId = Annotated[str, StringConstraints(pattern=r"^[\x21-\x7e]{1,128}$")]
"""Printable ASCII: it is echoed in a header."""

TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]


def _stop_list(value: object) -> object:
    """One string or a list of them; null is none."""
    if value is None:
        return []
    return [value] if isinstance(value, str) else value


def _bias_by_id(value: object) -> object:
    """JSON has only string keys: `{"42": -100}`."""
    if not isinstance(value, dict):
        return value
    try:
        return {int(key): bias for key, bias in value.items()}
    except ValueError:
        raise PydanticCustomError("token_id", "its keys must be token ids") from None


StopStrings = Annotated[
    list[Annotated[str, StringConstraints(min_length=1)]],
    Field(max_length=MAX_STOP_STRINGS),
    BeforeValidator(_stop_list),
]
Finite = Annotated[float, Field(allow_inf_nan=False)]
LogitBias = Annotated[
    dict[TokenId, Annotated[Finite, Field(ge=-100, le=100)]], BeforeValidator(_bias_by_id)
]


class StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True)

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class GenerationRequest(BaseModel):
    """What completions and chat completions share. `None` means: the model's default."""

    model_config = ConfigDict(strict=True, extra="ignore")

    model: str | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: StopStrings = []
    include_stop_str_in_output: bool = False
    stop_token_ids: list[TokenId] | None = None
    ignore_eos: bool = False
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    temperature: Annotated[Finite, Field(ge=0, le=2)] | None = None
    top_p: Annotated[Finite, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=2**31 - 1)] | None = None
    min_p: Annotated[Finite, Field(ge=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    presence_penalty: Annotated[Finite, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[Finite, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[Finite, Field(gt=0, le=100)] | None = None
    logit_bias: LogitBias | None = None
    skip_special_tokens: bool = True
    return_token_ids: bool | None = None
    request_id: RequestId | None = None
    user: Any = None
    metadata: Any = None
    store: Any = None
    service_tier: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None

    @model_validator(mode="after")
    def _check_stream_options(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise field_error("stream_options", "only means something with stream: true")
        return self


def field_error(param: str, message: str) -> PydanticCustomError:
    """A validation error about `param`, for checks that span fields."""
    return PydanticCustomError("field", message, {"param": param})
