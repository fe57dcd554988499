"""POST /v1/completions."""

import time

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from server.chat.prompt import encode_texts
from server.errors import invalid
from server.formats.completion import CompletionFormat
from server.generation.plan import (
    GenerationPlan,
    Prompt,
    check_min_tokens,
    check_token_ids,
    room_for_answer,
    sampling_params,
    text_options,
)
from server.protocol.completions import DEFAULT_MAX_TOKENS, CompletionRequest
from server.protocol.parse import parse_body
from server.routes.serve import model_for, record_of, send_answer
from server.state import ServedModel

router = APIRouter()


@router.post("/v1/completions")
async def create_completion(request: Request) -> Response:
    """Continues one or several prompts, whole or as server-sent events."""
    body = await parse_body(request, CompletionRequest)
    model = model_for(request, body)
    params = sampling_params(
        body, model, logprobs=body.logprobs, prompt_logprobs=body.logprobs if body.echo else None
    )
    prompts = await _prompts(model, body)
    check_min_tokens(body, prompts)
    plan = GenerationPlan(
        record_of(request).request_id, prompts, body.n or 1, params, text_options(body, params)
    )
    answer = CompletionFormat(body, plan, model, int(time.time()))
    return await send_answer(request, model, plan, answer, bool(body.stream))


async def _prompts(model: ServedModel, body: CompletionRequest) -> list[Prompt]:
    """The prompts as token ids that fit. Raises `APIError` 400."""
    texts = [prompt for prompt in body.prompt if isinstance(prompt, str)]
    encoded = iter(await encode_texts(model, texts, body.add_special_tokens))
    prompts = []
    for given in body.prompt:
        if isinstance(given, str):
            text, ids = given, next(encoded)
        else:
            check_token_ids(model, given, "prompt")
            text, ids = _text_of(model, given) if body.echo else "", given
        if not ids:
            raise invalid("prompt: it has no tokens.", "prompt")
        room = room_for_answer(model, len(ids), body.token_limit, DEFAULT_MAX_TOKENS, "prompt")
        prompts.append(Prompt(ids, text, room))
    return prompts


def _text_of(model: ServedModel, ids: list[int]) -> str:
    return model.tokenizer.decode(ids, skip_special_tokens=True)
