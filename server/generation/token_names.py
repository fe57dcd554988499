"""How a single token is written in logprobs: as text and as raw bytes."""

from typing import NamedTuple

from models.tokenizer import Tokenizer


class TokenName(NamedTuple):
    text: str
    """Its text; bytes that are not UTF-8 by themselves are written as `\\xf0\\x9f`."""
    raw: list[int]
    """Its raw bytes."""


class TokenNames:
    """Names by token id, computed once each; at most one entry a vocabulary entry."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._names: dict[int, TokenName] = {}

    def __getitem__(self, token_id: int) -> TokenName:
        name = self._names.get(token_id)
        if name is None:
            name = self._names[token_id] = self._make(token_id)
        return name

    def _make(self, token_id: int) -> TokenName:
        raw = self._tokenizer.token_bytes(token_id)
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError:
            text = "".join(f"\\x{byte:02x}" for byte in raw)
        return TokenName(text, list(raw))
