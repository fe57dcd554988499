"""POST /tokenize and /detokenize: the very ids that generation would use."""

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from server.chat.prompt import encode_chat, encode_texts
from server.errors import invalid
from server.protocol.parse import parse_body
from server.protocol.tokens import (
    DetokenizeRequest,
    TokenizeChatRequest,
    TokenizeRequest,
    TokenizeTextRequest,
)
from server.state import state_of

router = APIRouter()


@router.post("/tokenize")
async def tokenize(request: Request) -> Response:
    """Ids of a `prompt`, or of `messages` through the chat template."""
    form = await parse_body(request, TokenizeRequest)
    body: TokenizeTextRequest | TokenizeChatRequest
    if form.messages is None:
        body = await parse_body(request, TokenizeTextRequest)
        model = state_of(request).model_named(body.model)
        (ids,) = await encode_texts(model, [body.prompt], body.add_special_tokens)
    else:
        body = await parse_body(request, TokenizeChatRequest)
        model = state_of(request).model_named(body.model)
        ids = await encode_chat(model, body)
    names = [model.token_names[i].text for i in ids] if body.return_token_strs else None
    answer = {
        "count": len(ids),
        "max_model_len": model.max_model_len,
        "tokens": ids,
        "token_strs": names,
    }
    return Response(msgspec.json.encode(answer), media_type="application/json")


@router.post("/detokenize")
async def detokenize(request: Request) -> Response:
    body = await parse_body(request, DetokenizeRequest)
    model = state_of(request).model_named(body.model)
    size = model.tokenizer.vocab_size
    for token_id in body.tokens:
        if token_id >= size:
            raise invalid(f"tokens: token id {token_id} is not below {size}.", "tokens")
    text = model.tokenizer.decode(body.tokens, skip_special_tokens=body.skip_special_tokens)
    return Response(msgspec.json.encode({"prompt": text}), media_type="application/json")
