"""Token ids to text, a few at a time."""

import codecs
from collections.abc import Iterable

from models.tokenizer import Tokenizer


class Detokenizer:
    """The text of ids that arrive in pieces: never half a character, and in the end what
    `Tokenizer.decode` gives.

    Bytes that are no UTF-8 become U+FFFD as soon as no later byte can mend them; a character that
    is still incomplete becomes U+FFFD in `flush`. Ids are taken to go on after others, as an answer
    follows its prompt; with `from_start` they begin a text, and the space that a SentencePiece
    tokenizer puts before a text is dropped.
    """

    def __init__(
        self, tokenizer: Tokenizer, skip_special_tokens: bool, *, from_start: bool = False
    ) -> None:
        self._tokenizer = tokenizer
        self._skip = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._drop_space = from_start and tokenizer.adds_space_prefix
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, ids: Iterable[int]) -> str:
        """The characters that these ids complete."""
        return self._decode(self._tokenizer.bytes_of(ids, self._skip), final=False)

    def flush(self) -> str:
        """What is left at the end of the text."""
        return self._decode(b"", final=True)

    def _decode(self, raw: bytes, final: bool) -> str:
        text = self._decoder.decode(raw, final)
        if self._drop_space and text:
            self._drop_space = False
            return text.removeprefix(" ")
        return text
