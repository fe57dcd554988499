"""Chat completions: the whole answer, and its chunks."""

from typing import Any

from server.formats.frames import Framer, encode
from server.formats.logprobs import chat_logprobs
from server.formats.usage import usage_fields
from server.generation.decoder import Piece, TokenInText
from server.generation.plan import GenerationPlan
from server.generation.run import Event, Usage
from server.generation.token_names import TokenNames
from server.protocol.chat import ChatRequest


class ChatFormat:
    """Writes one request's answer; streams start with a chunk a choice that names the role."""

    def __init__(
        self,
        request: ChatRequest,
        plan: GenerationPlan,
        names: TokenNames,
        model: str,
        created: int,
    ) -> None:
        self._plan = plan
        self._names = names
        self._with_logprobs = bool(request.logprobs)
        self._top = request.top_logprobs or 0
        self._with_ids = bool(request.return_token_ids)
        self._id = {"id": f"chatcmpl-{plan.request_id}"}
        self._about: dict[str, Any] = {"created": created, "model": model}
        options = request.stream_options
        self._framer = Framer(
            {**self._id, "object": "chat.completion.chunk", **self._about},
            include_usage=bool(options and options.include_usage),
            continuous_usage=bool(options and options.continuous_usage_stats),
        )

    def opening(self, usage: Usage) -> bytes:
        prompt_ids = b""
        if self._with_ids:
            prompt_ids = b',"prompt_token_ids":' + encode(self._plan.prompts[0].ids)
        frames = []
        for index in range(self._plan.num_choices):
            choice = (
                b'{"index":%d,"delta":{"role":"assistant","content":""},'
                b'"logprobs":null,"finish_reason":null}' % index
            )
            frames.append(self._framer.frame(choice, usage, prompt_ids if index == 0 else b""))
        return b"".join(frames)

    def event(self, event: Event, usage: Usage) -> bytes:
        """A content chunk, if there is text, and at the end a chunk with the finish reason."""
        index, piece = event
        frames = b""
        tokens, ids = piece.logprobs, piece.token_ids
        if piece.text:
            delta = b'{"content":' + encode(piece.text) + b"}"
            frames = self._framer.frame(self._choice(index, delta, tokens, ids, None), usage)
            tokens, ids = [], []
        if piece.finish_reason is not None:
            frames += self._framer.frame(self._choice(index, b"{}", tokens, ids, piece), usage)
        return frames

    def last(self, usage: Usage) -> bytes:
        return self._framer.last(usage)

    def _choice(
        self, index: int, delta: bytes, tokens: list[TokenInText], ids: list[int], end: Piece | None
    ) -> bytes:
        logprobs = b"null"
        if self._with_logprobs and tokens:
            logprobs = encode(chat_logprobs(tokens, self._names, self._top))
        finish = b"null"
        stop = b""
        if end is not None:
            finish = encode(end.finish_reason)
            stop = b',"stop_reason":' + encode(end.stop_reason)
        extra = b',"token_ids":' + encode(ids) if self._with_ids else b""
        return b'{"index":%d,"delta":%b,"logprobs":%b,"finish_reason":%b%b%b}' % (
            index,
            delta,
            logprobs,
            finish,
            stop,
            extra,
        )

    def whole(self, choices: list[Piece], usage: Usage) -> bytes:
        """The answer to a request that does not stream."""
        body = {
            **self._id,
            "object": "chat.completion",
            **self._about,
            "choices": [self._whole_choice(i, piece) for i, piece in enumerate(choices)],
            "usage": usage_fields(usage),
        }
        if self._with_ids:
            body["prompt_token_ids"] = self._plan.prompts[0].ids
        return encode(body)

    def _whole_choice(self, index: int, piece: Piece) -> dict[str, Any]:
        logprobs = None
        if self._with_logprobs:
            logprobs = chat_logprobs(piece.logprobs, self._names, self._top)
        choice = {
            "index": index,
            "message": {"role": "assistant", "content": piece.text, "refusal": None},
            "logprobs": logprobs,
            "finish_reason": piece.finish_reason,
            "stop_reason": piece.stop_reason,
        }
        if self._with_ids:
            choice["token_ids"] = piece.token_ids
        return choice
