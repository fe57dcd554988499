"""POST /v1/embeddings."""

from base64 import b64encode

import msgspec
import numpy as np
from fastapi import APIRouter
from numpy.typing import NDArray
from starlette.requests import Request
from starlette.responses import Response

from engine.pooling import unit
from server.chat.prompt import encode_texts
from server.embedding import Embedding
from server.errors import invalid
from server.generation.plan import check_token_ids
from server.protocol.embeddings import EmbeddingRequest
from server.protocol.parse import parse_body
from server.routes.serve import ready_model, record_of
from server.state import ServedModel, state_of

router = APIRouter()


@router.post("/v1/embeddings")
async def create_embeddings(request: Request) -> Response:
    """A vector for each input, in their order."""
    body = await parse_body(request, EmbeddingRequest)
    model, record = ready_model(request, body.model), record_of(request)
    size = model.embedding_size
    if size is None:
        raise invalid(f"{model.name} generates text: it makes no embeddings.", "model")
    if body.dimensions is not None and body.dimensions > size:
        raise invalid(f"dimensions: this model's embeddings have {size}.", "dimensions")
    record.note(model=model.name, inputs=len(body.input))
    prompts = await _prompts(model, body)
    vectors = await Embedding(state_of(request), model, prompts, request.receive, record).run()
    tokens = sum(map(len, prompts))
    answer = {
        "object": "list",
        "data": [
            {"object": "embedding", "index": index, "embedding": _encoded(body, vector)}
            for index, vector in enumerate(vectors)
        ],
        "model": model.name,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }
    return Response(msgspec.json.encode(answer), media_type="application/json")


async def _prompts(model: ServedModel, body: EmbeddingRequest) -> list[list[int]]:
    """The inputs as token ids that fit. Raises `APIError` 400."""
    texts = [given for given in body.input if isinstance(given, str)]
    encoded = iter(await encode_texts(model, texts, body.add_special_tokens))
    prompts: list[list[int]] = []
    limit = model.max_model_len
    assert limit is not None
    for index, given in enumerate(body.input):
        if isinstance(given, str):
            ids = next(encoded)
        else:
            check_token_ids(model, given, "input")
            ids = given
        if not ids:
            raise invalid(f"input[{index}]: it has no tokens.", "input")
        if len(ids) > limit:
            raise invalid(
                f"input[{index}]: this model's maximum context length is {limit} tokens, and it has {len(ids)}.",
                "input",
                "context_length_exceeded",
            )
        prompts.append(ids)
    return prompts


def _encoded(body: EmbeddingRequest, vector: NDArray[np.float32]) -> list[float] | str:
    if body.dimensions is not None:
        vector = unit(vector[: body.dimensions])
    if body.encoding_format == "base64":
        return b64encode(vector.astype("<f4").tobytes()).decode()
    numbers: list[float] = vector.tolist()
    return numbers
