"""One step's work as flat arrays: what the scheduler plans and the runner computes."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.kv_cache import PAGE_SIZE
from engine.request import Request


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens `start .. start+count-1` of one request, computed in one step.

    Logits are wanted of the last `num_rows` of them: one for a token to be sampled, more where
    log-probabilities of the prompt are asked for, none inside a long prefill.
    """

    request: Request
    start: int
    count: int
    num_rows: int

    @property
    def end(self) -> int:
        return self.start + self.count


@dataclass(frozen=True, slots=True)
class Batch:
    """The inputs of one step: `t` tokens of `r` requests, `o` rows of logits.

    All arrays are int32 and contiguous. The tokens of request i are
    `query_start[i] .. query_start[i+1]-1`, and its context, those tokens included, is `positions`
    of the last of them plus one.
    """

    token_ids: NDArray[np.int32]
    """[t]"""
    positions: NDArray[np.int32]
    """[t] place of the token in its request"""
    slots: NDArray[np.int32]
    """[t] where its KV entry goes: page * 16 + offset"""
    query_start: NDArray[np.int32]
    """[r + 1]"""
    page_table: NDArray[np.int32]
    """[r, p] pages of each request in the order of its tokens, unused entries 0"""
    out_rows: NDArray[np.int32]
    """[o] indices into t, ascending; o is at least 1"""


def build_batch(chunks: list[Chunk]) -> tuple[Batch, list[int]]:
    """Lays out the chunks one after another.

    Returns the batch and, for each chunk, the row of the logits where its rows begin. When no chunk
    wants logits the last token's are asked for all the same, so that `o` is never 0.
    """
    num_tokens = sum(chunk.count for chunk in chunks)
    num_rows = sum(chunk.num_rows for chunk in chunks)
    num_pages = max(-(-chunk.end // PAGE_SIZE) for chunk in chunks)
    token_ids = np.empty(num_tokens, np.int32)
    positions = np.empty(num_tokens, np.int32)
    slots = np.empty(num_tokens, np.int32)
    query_start = np.zeros(len(chunks) + 1, np.int32)
    page_table = np.zeros((len(chunks), num_pages), np.int32)
    out_rows = np.empty(max(num_rows, 1), np.int32)
    out_rows[-1] = num_tokens - 1
    first_rows = []
    at = row = 0
    for index, chunk in enumerate(chunks):
        request, start, end = chunk.request, chunk.start, chunk.end
        used = -(-end // PAGE_SIZE)
        page_table[index, :used] = request.pages[:used]
        if chunk.count == 1:
            token_ids[at] = request.tokens[start]
            positions[at] = start
            slots[at] = request.pages[start // PAGE_SIZE] * PAGE_SIZE + start % PAGE_SIZE
            stop = at + 1
        else:
            stop = at + chunk.count
            places = np.arange(start, end, dtype=np.int32)
            token_ids[at:stop] = request.tokens[start:end]
            positions[at:stop] = places
            slots[at:stop] = request.pages[places // PAGE_SIZE] * PAGE_SIZE + places % PAGE_SIZE
        first_rows.append(row)
        if chunk.num_rows:
            out_rows[row : row + chunk.num_rows] = np.arange(stop - chunk.num_rows, stop)
            row += chunk.num_rows
        at = stop
        query_start[index + 1] = at
    batch = Batch(token_ids, positions, slots, query_start, page_table, out_rows)
    return batch, first_rows
