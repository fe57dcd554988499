"""What the generating endpoints share: the request's id, and how an answer is sent."""

from starlette.requests import Request
from starlette.responses import Response

from server.errors import APIError, invalid
from server.generation.plan import GenerationPlan
from server.generation.record import RequestRecord
from server.generation.run import Generation
from server.protocol.sampling import GenerationRequest
from server.state import ServedModel, ServerState, state_of
from server.streaming import AnswerFormat, EventStream, whole_answer


def record_of(request: Request) -> RequestRecord:
    record = request.state.record
    assert isinstance(record, RequestRecord)
    return record


def ready_model(request: Request, name: str | None) -> ServedModel:
    """The model of this name, ready for a request. Raises `APIError` 404 or 503."""
    state = state_of(request)
    try:
        return state.ready_model(name)
    except APIError as error:
        if error.status == 503:
            state.metrics.rejected("shutting_down" if state.draining else "not_ready")
        raise


def model_for(request: Request, body: GenerationRequest) -> ServedModel:
    """The model that `body` names, ready to generate; takes over the body's request id.

    Raises `APIError` 400 for a model that makes embeddings, 404 or 503.
    """
    record = record_of(request)
    record.request_id = body.request_id or record.request_id
    model = ready_model(request, body.model)
    if model.embedding_size is not None:
        raise invalid(f"{model.name} makes embeddings: use /v1/embeddings.", "model")
    record.note(model=model.name, stream=bool(body.stream), n=body.n or 1)
    return model


def check_choices(state: ServerState, plan: GenerationPlan) -> None:
    """Raises `APIError` 400 for more choices than the engine could ever run and queue."""
    limit = state.settings.max_num_seqs + state.settings.max_queue
    if plan.num_choices > limit:
        raise invalid(
            f"n: the request asks for {plan.num_choices} choices, this server takes {limit}.",
            "n",
        )


async def send_answer(
    request: Request, model: ServedModel, plan: GenerationPlan, answer: AnswerFormat, stream: bool
) -> Response:
    """Runs `plan` and answers, as events or as one body."""
    state = state_of(request)
    check_choices(state, plan)
    record = record_of(request)
    generation = Generation(state, model, plan, request.receive, record)
    if stream:
        return EventStream(generation, answer, record, state.settings.sse_keep_alive)
    return await whole_answer(generation, answer)
