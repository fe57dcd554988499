"""Text completions: the whole answer, and its chunks."""

from typing import Any

from models.detokenizer import Detokenizer
from models.tokenizer import Tokenizer
from server.formats.frames import Framer, encode
from server.formats.logprobs import CompletionLogprobs
from server.formats.usage import usage_fields
from server.generation.decoder import Piece
from server.generation.plan import GenerationPlan, Prompt
from server.generation.run import Event, Usage
from server.generation.token_names import TokenNames
from server.protocol.completions import CompletionRequest
from server.state import ServedModel


class CompletionFormat:
    """Writes one request's answer; with `echo` each choice starts with its prompt."""

    def __init__(
        self, request: CompletionRequest, plan: GenerationPlan, model: ServedModel, created: int
    ) -> None:
        self._plan = plan
        self._names: TokenNames = model.token_names
        self._tokenizer = model.tokenizer
        self._echo = request.echo
        self._top = request.logprobs
        self._with_ids = bool(request.return_token_ids)
        self._started = [False] * plan.num_choices
        self._envelope: dict[str, Any] = {
            "id": f"cmpl-{plan.request_id}",
            "object": "text_completion",
            "created": created,
            "model": model.name,
        }
        options = request.stream_options
        self._framer = Framer(
            self._envelope,
            include_usage=bool(options and options.include_usage),
            continuous_usage=bool(options and options.continuous_usage_stats),
        )

    def opening(self, usage: Usage) -> bytes:
        return b""

    def event(self, event: Event, usage: Usage) -> bytes:
        index, piece = event
        if self._top is None and not self._with_ids and not self._echo:
            choice = b'{"index":%d,"text":%b,"logprobs":null,"finish_reason":%b,"stop_reason":%b}'
            return self._framer.frame(
                choice
                % (
                    index,
                    encode(piece.text),
                    encode(piece.finish_reason),
                    encode(piece.stop_reason),
                ),
                usage,
            )
        first = not self._started[index]
        self._started[index] = True
        return self._framer.frame(encode(self._choice(index, piece, first)), usage)

    def last(self, usage: Usage) -> bytes:
        return self._framer.last(usage)

    def whole(self, choices: list[Piece], usage: Usage) -> bytes:
        """The answer to a request that does not stream."""
        return encode(
            {
                **self._envelope,
                "choices": [self._choice(i, piece, True) for i, piece in enumerate(choices)],
                "usage": usage_fields(usage),
            }
        )

    def _choice(self, index: int, piece: Piece, first: bool) -> dict[str, Any]:
        prompt = self._plan.prompts[index // self._plan.n]
        choice: dict[str, Any] = {
            "index": index,
            "text": prompt.text + piece.text if self._echo and first else piece.text,
            "logprobs": self._logprobs(prompt, piece, first),
            "finish_reason": piece.finish_reason,
            "stop_reason": piece.stop_reason,
        }
        if self._with_ids:
            choice["token_ids"] = piece.token_ids
            if first:
                choice["prompt_token_ids"] = prompt.ids
        return choice

    def _logprobs(self, prompt: Prompt, piece: Piece, first: bool) -> dict[str, Any] | None:
        if self._top is None:
            return None
        logprobs = CompletionLogprobs(self._names, self._top)
        if self._echo and first and piece.prompt_logprobs is not None:
            offsets = token_offsets(self._tokenizer, prompt.ids)
            logprobs.add_prompt(prompt.ids, piece.prompt_logprobs, offsets)
        logprobs.add(piece.logprobs, len(prompt.text) if self._echo else 0)
        return logprobs.fields()


def token_offsets(tokenizer: Tokenizer, ids: list[int]) -> list[int]:
    """Where each token starts in the text of all, in characters; special tokens have no width."""
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=True, from_start=True)
    offsets = []
    position = 0
    for token_id in ids:
        offsets.append(position)
        position += len(detokenizer.push([token_id]))
    return offsets
