"""POST /v1/chat/completions."""

import time

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from server.chat.prompt import encode_chat
from server.formats.chat import ChatFormat
from server.generation.plan import (
    GenerationPlan,
    Prompt,
    check_min_tokens,
    room_for_answer,
    sampling_params,
    text_options,
)
from server.protocol.chat import ChatRequest
from server.protocol.parse import parse_body
from server.routes.serve import model_for, record_of, send_answer

router = APIRouter()


@router.post("/v1/chat/completions")
async def create_chat_completion(request: Request) -> Response:
    """Answers a conversation, whole or as server-sent events."""
    body = await parse_body(request, ChatRequest)
    model = model_for(request, body)
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    params = sampling_params(body, model, logprobs=logprobs)
    ids = await encode_chat(model, body)
    room = room_for_answer(model, len(ids), body.token_limit, None, "messages")
    prompts = [Prompt(ids, "", room)]
    check_min_tokens(body, prompts)
    plan = GenerationPlan(
        record_of(request).request_id, prompts, body.n or 1, params, text_options(body, params)
    )
    answer = ChatFormat(body, plan, model.token_names, model.name, int(time.time()))
    return await send_answer(request, model, plan, answer, bool(body.stream))
