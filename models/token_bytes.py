"""The raw bytes behind each token of a vocabulary, derived from what its decoder does."""

import json
import re
from typing import Any

import tokenizers

_SPACE = "\u2581"
"""SentencePiece's stand-in for a space."""


class TokenBytes:
    """Bytes by token id, computed once each; an id that is not in the vocabulary has none.

    Two kinds of vocabulary are known: byte-level BPE (GPT-2), which spells each byte as a printable
    character, and SentencePiece, which spells a space as U+2581 and bytes without a token of their
    own as `<0x0A>`. Any other is taken to be spelled as it is.
    """

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        steps = _decoder_steps(backend)
        kinds = {step["type"] for step in steps}
        self._backend = backend
        self._known: dict[int, bytes] = {}
        self._byte_level = "ByteLevel" in kinds
        self._byte_fallback = "ByteFallback" in kinds
        self._spaces = "Metaspace" in kinds or any(_replaces_space(step) for step in steps)
        self.adds_space_prefix = any(_drops_prefix(step) for step in steps)

    def __getitem__(self, token_id: int) -> bytes:
        raw = self._known.get(token_id)
        if raw is None:
            token = self._backend.id_to_token(token_id)
            raw = self._known[token_id] = b"" if token is None else self._bytes(token)
        return raw

    def _bytes(self, token: str) -> bytes:
        if self._byte_level:
            try:
                return bytes(_BYTE_OF[letter] for letter in token)
            except KeyError:  # an added token, spelled as it is
                return token.encode()
        if self._byte_fallback and (code := re.fullmatch(r"<0x([0-9A-Fa-f]{2})>", token)):
            return bytes([int(code[1], 16)])
        return (token.replace(_SPACE, " ") if self._spaces else token).encode()


def _decoder_steps(backend: tokenizers.Tokenizer) -> list[dict[str, Any]]:
    if backend.decoder is None:
        return []
    decoder = json.loads(backend.decoder.__getstate__())
    steps: list[dict[str, Any]] = decoder.get("decoders", [decoder])
    return steps


def _replaces_space(step: dict[str, Any]) -> bool:
    return bool(step["type"] == "Replace" and step["pattern"] == {"String": _SPACE})


def _drops_prefix(step: dict[str, Any]) -> bool:
    if step["type"] == "Metaspace":
        return bool(step["prepend_scheme"] != "never")
    return step["type"] == "Strip" and step["content"] == " " and bool(step["start"])


def _letters() -> dict[str, int]:
    """GPT-2's spelling of bytes: printable ones of Latin-1 as they are, the others from U+0100 on,
    in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    letters = {chr(byte): byte for byte in printable}
    return letters | {chr(0x100 + index): byte for index, byte in enumerate(others)}


_BYTE_OF = _letters()
