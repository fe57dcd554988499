"""One request alone through a `Runner`, as the scheduler would step it."""

import numpy as np

from engine.batch import Batch
from engine.runner import Runner

CHUNK = 64


def logits(runner: Runner, ids: list[int], start: int) -> np.ndarray:
    """Logits [n, vocab] of the tokens from `start` on, computed in one step over one request's pages."""
    places = np.arange(start, len(ids), dtype=np.int32)
    pages = np.arange(7, 7 + -(-len(ids) // 16), dtype=np.int32)[None]
    slots = pages[0][places // 16] * 16 + places % 16
    tokens = np.array(ids[start:], np.int32)
    ends = np.array([0, len(tokens)], np.int32)
    rows = np.arange(len(tokens), dtype=np.int32)
    return runner.step(Batch(tokens, places, slots, ends, pages, rows)).copy()


def last_logits(runner: Runner, ids: list[int]) -> np.ndarray:
    """Logits [vocab] after a whole prompt, prefilled in chunks."""
    for start in range(0, len(ids), CHUNK):
        last = logits(runner, ids[: start + CHUNK], start)[-1]
    return last
