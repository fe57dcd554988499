"""A model whose next token is a hash of its whole context, read back through the page table.

A token computed at a wrong position, a slot written twice, a page given to the wrong request or a
cached page with other content changes every token after it.
"""

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from engine.batch import Batch
from engine.kv_cache import PAGE_SIZE
from engine.messages import EngineInfo

VOCAB_SIZE = 64


def next_token(context: Sequence[int] | NDArray[np.int32]) -> int:
    digest = blake2b(np.asarray(context, np.int32).tobytes(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % VOCAB_SIZE


def continuation(prompt: Sequence[int], count: int) -> list[int]:
    """What the model says after `prompt`, without any cache."""
    context = list(prompt)
    for _ in range(count):
        context.append(next_token(context))
    return context[len(prompt) :]


class HashRunner:
    """Checks every batch it is given, and answers with one-hot logits."""

    def __init__(self, num_pages: int, max_model_len: int, max_rows: int = 1 << 30) -> None:
        self.num_pages = num_pages
        self.info = EngineInfo(
            model="hash",
            max_model_len=max_model_len,
            vocab_size=VOCAB_SIZE,
            kv_tokens=num_pages * PAGE_SIZE,
            max_concurrency=num_pages * PAGE_SIZE / max_model_len,
            device="test",
            threads=1,
        )
        self.computed_tokens = 0
        self.batches: list[Batch] = []
        self._max_rows = max_rows
        self._kv = np.full(num_pages * PAGE_SIZE, -1, np.int32)

    def step(self, batch: Batch) -> NDArray[np.float32]:
        self._check(batch)
        self.batches.append(batch)
        self.computed_tokens += len(batch.token_ids)
        self._kv[batch.slots] = batch.token_ids
        logits = np.zeros((len(batch.out_rows), VOCAB_SIZE), np.float32)
        for row, token in enumerate(batch.out_rows):
            request = int(np.searchsorted(batch.query_start, token, side="right")) - 1
            context = self._read(batch.page_table[request], int(batch.positions[token]) + 1)
            logits[row, next_token(context)] = 1.0
        return logits

    def _read(self, pages: NDArray[np.int32], length: int) -> NDArray[np.int32]:
        places = np.arange(length)
        context: NDArray[np.int32] = self._kv[
            pages[places // PAGE_SIZE] * PAGE_SIZE + places % PAGE_SIZE
        ]
        assert (context >= 0).all(), "a slot is read that was never written"
        return context

    def _check(self, batch: Batch) -> None:
        t, r = len(batch.token_ids), len(batch.page_table)
        for array in (
            batch.token_ids,
            batch.positions,
            batch.slots,
            batch.query_start,
            batch.page_table,
            batch.out_rows,
        ):
            assert array.dtype == np.int32
            assert array.flags.c_contiguous
        assert batch.query_start.shape == (r + 1,)
        assert batch.query_start[0] == 0
        assert batch.query_start[-1] == t
        assert (np.diff(batch.query_start) > 0).all()
        assert len(np.unique(batch.slots)) == t, "two tokens are written to one slot"
        assert batch.slots.min() >= 0
        assert batch.slots.max() < len(self._kv)
        assert 1 <= len(batch.out_rows) <= self._max_rows
        assert (np.diff(batch.out_rows) > 0).all()
        for request in range(r):
            span = slice(batch.query_start[request], batch.query_start[request + 1])
            positions, slots = batch.positions[span], batch.slots[span]
            assert (np.diff(positions) == 1).all()
            pages = batch.page_table[request][positions // PAGE_SIZE]
            assert (slots == pages * PAGE_SIZE + positions % PAGE_SIZE).all()
