"""GET /v1/models and /v1/models/{id}."""

from typing import Any

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from server.state import ServedModel, state_of

router = APIRouter()


@router.get("/v1/models")
async def list_models(request: Request) -> Response:
    """The served model under each of its names."""
    model = state_of(request).model_named(None)
    cards = [_card(model, name) for name in model.names]
    return _json({"object": "list", "data": cards})


@router.get("/v1/models/{model_id:path}")
async def retrieve_model(request: Request, model_id: str) -> Response:
    return _json(_card(state_of(request).model_named(model_id), model_id))


def _card(model: ServedModel, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": model.created,
        "owned_by": "egglm",
        "root": model.name,
        "parent": None,
        "max_model_len": model.max_model_len,
    }


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
