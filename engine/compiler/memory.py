"""Placing buffers in one arena, so that buffers that live at the same time never overlap."""

from collections.abc import Sequence
from typing import NamedTuple

ALIGNMENT = 64  # bytes: a cache line


class Lifetime(NamedTuple):
    """A buffer of `size` bytes that is live from step `first` to step `last`, both included."""

    size: int
    first: int
    last: int


class Plan(NamedTuple):
    """Offset of each buffer, and the arena's size, in bytes."""

    offsets: list[int]
    size: int


def plan(buffers: Sequence[Lifetime]) -> Plan:
    """Largest first, each at the lowest offset that is free all its life."""
    offsets = [0] * len(buffers)
    placed: list[int] = []
    total = 0
    for at in sorted(range(len(buffers)), key=lambda i: -buffers[i].size):
        buffer = buffers[at]
        size = _round_up(buffer.size)
        busy = sorted(
            (offsets[i], offsets[i] + _round_up(buffers[i].size))
            for i in placed
            if buffers[i].first <= buffer.last and buffer.first <= buffers[i].last
        )
        offset = 0
        for start, stop in busy:
            if offset + size <= start:
                break
            offset = max(offset, stop)
        offsets[at] = offset
        placed.append(at)
        total = max(total, offset + size)
    return Plan(offsets, total)


def lower_bound(buffers: Sequence[Lifetime]) -> int:
    """The most bytes that are live at one time: no arena can be smaller."""
    steps = {b.first for b in buffers}
    return max((sum(b.size for b in buffers if b.first <= s <= b.last) for s in steps), default=0)


def _round_up(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
