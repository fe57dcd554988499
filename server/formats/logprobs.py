"""The two shapes in which OpenAI's API gives logprobs."""

from collections.abc import Iterable, Sequence
from typing import Any

from engine.messages import TokenLogprobs
from server.generation.decoder import TokenInText
from server.generation.token_names import TokenNames

MIN_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON cannot write."""


def chat_logprobs(tokens: Iterable[TokenInText], names: TokenNames, top: int) -> dict[str, Any]:
    """`{content: [{token, logprob, bytes, top_logprobs}], refusal}`; `top` alternatives each."""
    return {
        "content": [
            {
                **_chat_token(token.logprobs.token_id, token.logprobs.logprob, names),
                "top_logprobs": [
                    _chat_token(token_id, logprob, names)
                    for token_id, logprob in token.logprobs.top[:top]
                ],
            }
            for token in tokens
        ],
        "refusal": None,
    }


def _chat_token(token_id: int, logprob: float, names: TokenNames) -> dict[str, Any]:
    name = names[token_id]
    return {"token": name.text, "logprob": max(logprob, MIN_LOGPROB), "bytes": name.raw}


class CompletionLogprobs:
    """`{tokens, token_logprobs, top_logprobs, text_offset}` of a completion or a chunk."""

    def __init__(self, names: TokenNames, top: int) -> None:
        self._names = names
        self._top = top
        self.tokens: list[str] = []
        self.token_logprobs: list[float | None] = []
        self.top_logprobs: list[dict[str, float] | None] = []
        self.text_offset: list[int] = []

    def add_prompt(
        self,
        ids: Sequence[int],
        logprobs: Sequence[TokenLogprobs | None],
        offsets: Sequence[int],
    ) -> None:
        """The echoed prompt's tokens; the first has no logprob, as nothing precedes it."""
        for token_id, entry, offset in zip(ids, logprobs, offsets, strict=True):
            if entry is None:
                self._add(self._names[token_id].text, None, None, offset)
            else:
                self._add_entry(entry, offset)

    def add(self, tokens: Iterable[TokenInText], text_start: int) -> None:
        """Generated tokens; their text starts `text_start` characters into the answer's."""
        for token in tokens:
            self._add_entry(token.logprobs, text_start + token.offset)

    def fields(self) -> dict[str, Any]:
        return {
            "tokens": self.tokens,
            "token_logprobs": self.token_logprobs,
            "top_logprobs": self.top_logprobs,
            "text_offset": self.text_offset,
        }

    def _add_entry(self, entry: TokenLogprobs, offset: int) -> None:
        logprob = max(entry.logprob, MIN_LOGPROB)
        text = self._names[entry.token_id].text
        alternatives: dict[str, float] = {}
        for token_id, other in entry.top[: self._top]:
            alternatives.setdefault(self._names[token_id].text, max(other, MIN_LOGPROB))
        alternatives.setdefault(text, logprob)
        self._add(text, logprob, alternatives, offset)

    def _add(
        self, text: str, logprob: float | None, top: dict[str, float] | None, offset: int
    ) -> None:
        self.tokens.append(text)
        self.token_logprobs.append(logprob)
        self.top_logprobs.append(top)
        self.text_offset.append(offset)
