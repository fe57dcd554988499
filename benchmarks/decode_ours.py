"""Greedy decoding through the engine's runner, without scheduler and server around it."""

from pathlib import Path
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from engine.batch import Batch
from engine.config import EngineConfig
from engine.messages import Progress
from engine.runner import Runner
from models.registry import load

Ints = NDArray[np.int32]


class RunnerDecoder:
    """The program that `egglm serve` runs for this model with its default settings."""

    def __init__(self, model: Path, threads: int, cache_dir: Path) -> None:
        self._runner = Runner(
            load(model), EngineConfig(cache_dir=cache_dir, threads=threads), _ignore
        )

    @property
    def weights_bytes(self) -> int:
        return self._runner.info.weights_bytes

    @property
    def vocab_size(self) -> int:
        return self._runner.vocab_size

    def seconds(self, prompts: Ints, steps: int) -> float:
        """Time of `steps` decoding steps of all `prompts` [streams, length], after their prefill."""
        streams, length = prompts.shape
        pages_each = -(-(length + steps) // self._runner.page_size)
        if streams * pages_each > self._runner.num_pages:
            raise ValueError(f"{streams} streams need more than {self._runner.num_pages} pages")
        table = np.arange(streams * pages_each, dtype=np.int32).reshape(streams, pages_each)
        places = np.arange(length, dtype=np.int32)
        tokens = np.concatenate(
            [self._step(row, places, table[i : i + 1]) for i, row in enumerate(prompts)]
        )
        start_s = perf_counter()
        for place in range(length, length + steps):
            tokens = self._step(tokens, np.full(streams, place, np.int32), table)
        return perf_counter() - start_s

    def _step(self, tokens: Ints, positions: Ints, table: Ints) -> Ints:
        """The next token of each row of `table`, of which the tokens given are equally many."""
        size = self._runner.page_size
        streams = len(table)
        each = len(tokens) // streams
        ends = np.arange(0, len(tokens) + 1, each, dtype=np.int32)
        pages = np.ascontiguousarray(table[:, : int(positions[-1]) // size + 1])
        page = table[np.repeat(np.arange(streams), each), positions // size]
        batch = Batch(
            token_ids=tokens,
            positions=positions,
            slots=page * size + positions % size,
            query_start=ends,
            page_table=pages,
            out_rows=ends[1:] - 1,
        )
        best: Ints = self._runner.step(batch).argmax(axis=1).astype(np.int32)
        return best


def _ignore(progress: Progress) -> None:
    """Progress is for people who wait for a server."""
