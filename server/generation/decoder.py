"""One choice's deltas to text, logprobs and a finish reason."""

from collections import deque
from dataclasses import dataclass, field

from engine.messages import Delta, TokenLogprobs
from models.detokenizer import Detokenizer
from models.tokenizer import Tokenizer
from server.generation.stop import StopMatcher


@dataclass(frozen=True)
class TextOptions:
    """How a request wants its tokens as text."""

    stop: tuple[str, ...] = ()
    include_stop: bool = False
    """Keep the stop string, or the text of a stop token."""
    skip_special_tokens: bool = True
    min_tokens: int = 0
    """Stop strings are not looked for in the first `min_tokens` tokens."""


@dataclass(slots=True)
class TokenInText:
    """A token's logprobs and where its text starts in the choice's text, in characters."""

    offset: int
    logprobs: TokenLogprobs


@dataclass(slots=True)
class Piece:
    """What one choice gained."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenInText] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    """Of the whole prompt, in the first piece, where asked for."""
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    """The stop string or stop token that ended the text; None for EOS and length."""


class ChoiceDecoder:
    """Incremental: pieces concatenate to the same text however the tokens were cut into deltas."""

    def __init__(self, tokenizer: Tokenizer, options: TextOptions) -> None:
        self._options = options
        self._detokenizer = Detokenizer(tokenizer, options.skip_special_tokens)
        self._matcher = StopMatcher(options.stop, options.include_stop)
        self._detokenized_chars = 0
        self._released_chars = 0
        self._unreleased: deque[TokenInText] = deque()
        self._token_ids: list[int] = []
        self._prompt_logprobs: list[TokenLogprobs | None] | None = None
        self.completion_tokens = 0
        self.finish_reason: str | None = None

    def push(self, delta: Delta) -> Piece | None:
        """The next piece, or None while there is nothing to show.

        Tokens that follow a stop string, generated before the engine heard of it, are dropped.
        """
        if delta.prompt_logprobs is not None:
            self._prompt_logprobs = delta.prompt_logprobs
        text = self._read_tokens(delta)
        stop_reason: str | int | None = self._matcher.matched
        if stop_reason is not None:
            self.finish_reason = "stop"
        elif delta.finish_reason is not None:
            text += self._feed(self._detokenizer.flush(), self.completion_tokens)
            self.finish_reason = delta.finish_reason
            stop_reason = self._matcher.matched
            if stop_reason is None:
                text += self._matcher.flush()
                stop_reason = delta.stop_token_id
            else:
                self.finish_reason = "stop"
        if not text and self.finish_reason is None and self._prompt_logprobs is None:
            return None
        return self._piece(text, stop_reason)

    def _read_tokens(self, delta: Delta) -> str:
        """Text that the delta's tokens release, up to the first stop string."""
        options = self._options
        ids = delta.token_ids
        rendered = len(ids)
        if delta.finish_reason == "stop" and not (
            options.include_stop and delta.stop_token_id is not None
        ):
            rendered -= 1
        if not options.stop and delta.logprobs is None:
            self.completion_tokens += len(ids)
            self._token_ids += ids
            return self._feed(self._detokenizer.push(ids[:rendered]), 0)
        text = ""
        for position, token_id in enumerate(ids):
            self.completion_tokens += 1
            self._token_ids.append(token_id)
            if position >= rendered:
                break
            if delta.logprobs is not None:
                at = TokenInText(self._detokenized_chars, delta.logprobs[position])
                self._unreleased.append(at)
            text += self._feed(self._detokenizer.push([token_id]), self.completion_tokens)
            if self._matcher.matched is not None:
                break
        return text

    def _feed(self, text: str, completion_tokens: int) -> str:
        self._detokenized_chars += len(text)
        if completion_tokens <= self._options.min_tokens:
            return text
        return self._matcher.push(text)

    def _piece(self, text: str, stop_reason: str | int | None) -> Piece:
        self._released_chars += len(text)
        piece = Piece(
            text,
            self._token_ids,
            self._release_logprobs(),
            self._prompt_logprobs,
            self.finish_reason,
            stop_reason,
        )
        self._token_ids = []
        self._prompt_logprobs = None
        return piece

    def _release_logprobs(self) -> list[TokenInText]:
        """Logprobs of tokens whose text is out; at the end all but those that a stop string cut."""
        waiting = self._unreleased
        ended = self.finish_reason is not None and self._matcher.matched is None
        released = []
        while waiting and (ended or waiting[0].offset < self._released_chars):
            released.append(waiting.popleft())
        return released
