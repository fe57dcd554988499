"""A validated request as a plan: which prompts, how many choices, with which parameters."""

from dataclasses import dataclass

import msgspec

from engine.messages import SamplingParams
from server.errors import context_length_exceeded, invalid
from server.generation.decoder import TextOptions
from server.protocol.sampling import GenerationRequest
from server.state import ServedModel


@dataclass(frozen=True, slots=True)
class Prompt:
    ids: list[int]
    text: str
    """As the client wrote it, or decoded from its ids; what `echo` returns."""
    max_tokens: int


@dataclass(frozen=True, slots=True)
class GenerationPlan:
    """Choice `i * n + k` is the `k`-th answer to prompt `i`."""

    request_id: str
    prompts: list[Prompt]
    n: int
    params: SamplingParams
    text: TextOptions

    @property
    def num_choices(self) -> int:
        return len(self.prompts) * self.n

    def params_of(self, index: int) -> SamplingParams:
        """One choice's parameters: its prompt's room, and a seed of its own if there is one."""
        seed = self.params.seed
        if seed is not None:
            seed = (seed + index % self.n) % 2**63
        max_tokens = self.prompts[index // self.n].max_tokens
        return msgspec.structs.replace(self.params, seed=seed, max_tokens=max_tokens)


def room_for_answer(
    model: ServedModel, prompt_tokens: int, asked: int | None, default: int | None, param: str
) -> int:
    """New tokens a prompt may get: as asked, else `default`, else the rest of the context.

    Raises `APIError` 400 context_length_exceeded if the prompt leaves no room, or less than was
    asked for.
    """
    limit = model.max_model_len
    assert limit is not None
    room = limit - prompt_tokens
    if asked is not None:
        if asked > room:
            raise context_length_exceeded(limit, prompt_tokens, asked, param)
        return asked
    if room < 1:
        raise context_length_exceeded(limit, prompt_tokens, None, param)
    return room if default is None else min(default, room)


def sampling_params(
    request: GenerationRequest,
    model: ServedModel,
    *,
    logprobs: int | None,
    prompt_logprobs: int | None = None,
) -> SamplingParams:
    """`request` in the engine's terms, its silences filled with the model's defaults.

    Raises `APIError` 400 for token ids outside of the vocabulary.
    """
    stop_ids = request.stop_token_ids or []
    bias = request.logit_bias or {}
    check_token_ids(model, stop_ids, "stop_token_ids")
    check_token_ids(model, list(bias), "logit_bias")
    defaults = model.defaults
    top_k = defaults.top_k if request.top_k is None else request.top_k

    def given(value: float | None, default: float) -> float:
        return default if value is None else value

    return SamplingParams(
        max_tokens=0,
        temperature=given(request.temperature, defaults.temperature),
        top_p=given(request.top_p, defaults.top_p),
        top_k=max(top_k, 0),
        min_p=given(request.min_p, defaults.min_p),
        seed=request.seed,
        repetition_penalty=given(request.repetition_penalty, defaults.repetition_penalty),
        presence_penalty=request.presence_penalty or 0.0,
        frequency_penalty=request.frequency_penalty or 0.0,
        logit_bias=bias,
        min_tokens=request.min_tokens or 0,
        stop_token_ids=tuple(stop_ids),
        eos_token_ids=() if request.ignore_eos else model.eos_token_ids,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
    )


def text_options(request: GenerationRequest, params: SamplingParams) -> TextOptions:
    return TextOptions(
        stop=tuple(request.stop),
        include_stop=request.include_stop_str_in_output,
        skip_special_tokens=request.skip_special_tokens,
        min_tokens=params.min_tokens,
    )


def check_token_ids(model: ServedModel, ids: list[int], param: str) -> None:
    """Raises `APIError` 400 naming `param` for an id outside of the vocabulary."""
    info = model.engine.info
    assert info is not None
    for token_id in ids:
        if not 0 <= token_id < info.vocab_size:
            raise invalid(
                f"{param}: token id {token_id} is outside of the vocabulary "
                f"(0 to {info.vocab_size - 1}).",
                param,
            )


def check_min_tokens(request: GenerationRequest, prompts: list[Prompt]) -> None:
    """Raises `APIError` 400 if `min_tokens` asks for more than a prompt's answer may have."""
    wanted = request.min_tokens or 0
    for prompt in prompts:
        if wanted > prompt.max_tokens:
            raise invalid(
                f"min_tokens: {wanted} is more than the {prompt.max_tokens} tokens that the "
                "answer may have.",
                "min_tokens",
            )
