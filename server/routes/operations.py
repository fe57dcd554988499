"""For orchestrators: /health, /ready, /metrics and /version."""

from typing import Any

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from server.metrics import CONTENT_TYPE
from server.state import ServerState, state_of
from server.version import program_version

router = APIRouter()

DEAD_ENGINE = frozenset({"failed", "restarting", "unresponsive"})


@router.get("/health")
async def health(request: Request) -> Response:
    """Alive: also while the model loads or drains, until the engine fails or falls silent."""
    state = state_of(request)
    engine = state.model.engine if state.model else None
    if engine is not None and engine.state in DEAD_ENGINE:
        return _json({"status": engine.state, "detail": engine.failure}, 503)
    return _json({"status": "ok"})


@router.get("/ready")
async def ready(request: Request) -> Response:
    """Accepting requests; else 503 with the reason, and how far a start is."""
    status = readiness(state_of(request))
    return _json(status, 200 if status["status"] == "ready" else 503)


def readiness(state: ServerState) -> dict[str, Any]:
    """`{"status": ...}`, ready only if a request sent now would be taken."""
    if state.draining:
        return {"status": "draining", "in_flight": len(state.in_flight)}
    if state.model is None:
        return {"status": "starting", "stage": state.loading}
    engine = state.model.engine
    if engine.state != "ready":
        progress = engine.progress
        about = msgspec.structs.asdict(progress) if progress is not None else {}
        return {"status": engine.state, **about}
    stats = engine.stats
    if stats.waiting >= state.settings.max_queue:
        return {"status": "overloaded", "waiting": stats.waiting}
    return {"status": "ready", "model": state.model.name}


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    state = state_of(request)
    text = state.metrics.render(vllm_names=state.settings.metrics_compat == "vllm")
    return Response(text, headers={"Content-Type": CONTENT_TYPE})


@router.get("/version")
async def show_version() -> Response:
    return _json({"version": program_version()})


def _json(value: object, status: int = 200) -> Response:
    headers = {"Retry-After": "5"} if status == 503 else None
    return Response(msgspec.json.encode(value), status, headers, "application/json")
