"""A model for the engine process whose behaviour a test writes down: it counts upwards, slowly."""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.batch import Batch
from engine.config import EngineConfig
from engine.kv_cache import PAGE_SIZE
from engine.messages import EngineInfo, Progress

VOCAB_SIZE = 1000
CRASH, KILL, NOT_A_NUMBER = 901, 902, 903
"""Prompt tokens that make a step raise, end the process, or give NaN logits for their request."""
NUM_PAGES = 64
MAX_MODEL_LEN = 512


@dataclass(frozen=True)
class Script:
    """What the model does. It is its own loader: pickled to the process, and called there."""

    step_s: float = 0.0
    load_s: float = 0.0
    load_error: str | None = None
    fails_while: Path | None = None
    """Loading fails as long as this file exists."""
    killed_in_load: bool = False

    def __call__(self) -> "Script":
        time.sleep(self.load_s)
        if self.killed_in_load:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.load_error is not None:
            raise RuntimeError(self.load_error)
        if self.fails_while is not None and self.fails_while.exists():
            raise RuntimeError("the file is in the way")
        return self


class ScriptedRunner:
    """The next token is the last one plus one."""

    num_pages = NUM_PAGES
    info = EngineInfo(
        model="scripted",
        max_model_len=MAX_MODEL_LEN,
        vocab_size=VOCAB_SIZE,
        kv_tokens=NUM_PAGES * PAGE_SIZE,
        max_concurrency=2.0,
        device="test",
        threads=1,
    )

    def __init__(self, script: Script, progress: Callable[[Progress], None]) -> None:
        self._script = script
        progress(Progress("compile", 3, 3))

    def step(self, batch: Batch) -> NDArray[np.float32]:
        time.sleep(self._script.step_s)
        if CRASH in batch.token_ids:
            raise RuntimeError("the device\nis on fire")
        if KILL in batch.token_ids:
            os.kill(os.getpid(), signal.SIGKILL)
        tokens = batch.token_ids[batch.out_rows]
        logits = np.zeros((len(tokens), VOCAB_SIZE), np.float32)
        logits[np.arange(len(tokens)), (tokens + 1) % VOCAB_SIZE] = 1.0
        logits[tokens == NOT_A_NUMBER] = np.nan
        return logits


def make_runner(
    model: object, config: EngineConfig, progress: Callable[[Progress], None]
) -> ScriptedRunner:
    """A runner factory for `EngineClient`."""
    assert isinstance(model, Script)
    return ScriptedRunner(model, progress)
