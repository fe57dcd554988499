"""Server-sent events: what all chunks of a stream share is encoded once."""

from typing import Any

import msgspec

from server.formats.usage import usage_fields
from server.generation.run import Usage

encode = msgspec.json.encode
DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"


class Framer:
    """Wraps a chunk's `choices` in the envelope that all chunks of a stream share."""

    def __init__(
        self, envelope: dict[str, Any], *, include_usage: bool, continuous_usage: bool
    ) -> None:
        self._open = encode(envelope)[:-1]
        self._include_usage = include_usage
        self._continuous_usage = include_usage and continuous_usage

    def frame(self, choice: bytes, usage: Usage, extra: bytes = b"") -> bytes:
        """An event with one choice; `extra` are more top-level members, each led by a comma."""
        return b"".join(
            (
                b"data: ",
                self._open,
                extra,
                b',"choices":[',
                choice,
                b"]",
                self._tail(usage),
                b"}\n\n",
            )
        )

    def last(self, usage: Usage) -> bytes:
        """The usage chunk, if it was asked for, and the end of the stream."""
        if not self._include_usage:
            return DONE
        total = encode(usage_fields(usage))
        return b"".join((b"data: ", self._open, b',"choices":[],"usage":', total, b"}\n\n", DONE))

    def _tail(self, usage: Usage) -> bytes:
        if self._continuous_usage:
            return b',"usage":' + encode(usage_fields(usage))
        return b',"usage":null' if self._include_usage else b""
