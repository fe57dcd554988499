"""The model as the scheduler sees it: pages of a KV pool, and a step that turns a batch into logits."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from engine.batch import Batch
from engine.compile_model import compile_model
from engine.compiler.report import BucketReport
from engine.config import EngineConfig
from engine.errors import LoadError
from engine.host import available_memory
from engine.kv_cache import PAGE_SIZE
from engine.messages import EngineInfo, Progress
from engine.model import Model, ModelLimits
from engine.pooling import for_embeddings
from engine.runtimes.native.runtime import NativeRuntime

log = logging.getLogger(__name__)
_DEFAULT_KV_SHARE = 0.25  # of the memory that is free at start
_DEFAULT_KV_LIMIT = 4 << 30
_OVERHEAD_BYTES = 400 << 20  # interpreter, libraries, compiler


class OutOfMemoryError(LoadError):
    """The KV pool does not fit; the message says what would."""


@dataclass(frozen=True)
class KvPlan:
    pages: int
    bytes: int
    max_model_len: int


def plan_kv(limits: ModelLimits, config: EngineConfig, available_bytes: int) -> KvPlan:
    """Size of the pool and the longest request. Raises `OutOfMemoryError` where one request of full length does not
    fit, or the pool does not fit into `available_bytes`."""
    page_bytes = limits.kv_bytes_per_token * PAGE_SIZE
    room = available_bytes - limits.weight_bytes - _OVERHEAD_BYTES
    length = min(config.max_model_len or limits.context_length, limits.context_length)
    most = config.max_num_seqs * -(-length // PAGE_SIZE)
    if config.kv_memory_bytes is not None:
        budget = config.kv_memory_bytes
        if budget > room:
            raise OutOfMemoryError(
                f"a KV pool of {_mib(budget)} does not fit: {_mib(available_bytes)} of memory are free, of which the "
                f"model needs {_mib(limits.weight_bytes + _OVERHEAD_BYTES)}; up to {_mib(max(0, room))} would fit"
            )
        pages = budget // page_bytes
    else:
        pages = (
            min(int(available_bytes * _DEFAULT_KV_SHARE), _DEFAULT_KV_LIMIT, max(0, room))
            // page_bytes
        )
    pages = min(pages, most)
    if (
        pages * PAGE_SIZE < length
        and config.max_model_len is None
        and config.kv_memory_bytes is None
        and pages
    ):
        length = pages * PAGE_SIZE
        log.warning(
            "the KV pool limits requests to %d tokens of the model's %d",
            length,
            limits.context_length,
        )
    if pages * PAGE_SIZE < length:
        raise OutOfMemoryError(
            f"one request of {length} tokens needs a KV pool of {_mib(-(-length // PAGE_SIZE) * page_bytes)}, and "
            f"{_mib(pages * page_bytes)} are available: that is enough for max_model_len {pages * PAGE_SIZE}"
        )
    return KvPlan(pages, pages * page_bytes, length)


class Runner:
    """A compiled model with its KV pool. Raises what loading and compiling raise."""

    page_size = PAGE_SIZE

    def __init__(
        self, model: Model, config: EngineConfig, progress: Callable[[Progress], None]
    ) -> None:
        limits = model.limits
        plan = plan_kv(limits, config, available_memory())
        if limits.pooling is not None:
            config = for_embeddings(config, plan.max_model_len)
        self.num_pages, self.max_model_len = plan.pages, plan.max_model_len
        self.vocab_size = limits.vocab_size
        start = perf_counter()
        self.compiled = compile_model(model, config, plan.pages, plan.max_model_len, progress)
        model.close()
        runtime = self.compiled.runtime
        native = isinstance(runtime, NativeRuntime)
        size = self.compiled.logits.shape[1]
        assert isinstance(size, int)
        self.info = EngineInfo(
            model=limits.name,
            max_model_len=plan.max_model_len,
            vocab_size=limits.vocab_size,
            kv_tokens=plan.pages * PAGE_SIZE,
            max_concurrency=plan.pages * PAGE_SIZE / plan.max_model_len,
            device="native" if native else "reference",
            threads=runtime.threads if isinstance(runtime, NativeRuntime) else 1,
            pooling=limits.pooling,
            embedding_size=None if limits.pooling is None else size,
            weights_bytes=runtime.folds.bytes
            if isinstance(runtime, NativeRuntime)
            else limits.weight_bytes,
            kv_bytes=plan.bytes,
            workspace_bytes=runtime.arena_bytes if isinstance(runtime, NativeRuntime) else 0,
        )
        log.info("ready in %.1f s", perf_counter() - start)

    @property
    def reports(self) -> list[BucketReport]:
        """What the search saw, a report a bucket."""
        return self.compiled.reports

    @property
    def from_artifact(self) -> bool:
        """Whether the programs are those of an earlier search."""
        return self.compiled.from_artifact

    def step(self, batch: Batch) -> NDArray[np.float32]:
        """Logits f32 [o, vocab], valid until the next step."""
        compiled = self.compiled
        runtime, inputs = compiled.runtime, compiled.inputs
        for tensor, array in (
            (inputs.token_ids, batch.token_ids),
            (inputs.positions, batch.positions),
            (inputs.slots, batch.slots),
            (inputs.query_start, batch.query_start),
            (inputs.page_table, batch.page_table),
            (inputs.out_rows, batch.out_rows),
        ):
            runtime.set_data(tensor, array)
        r, p = batch.page_table.shape
        runtime.execute({"t": len(batch.token_ids), "r": r, "p": p, "o": len(batch.out_rows)})
        return runtime.view(compiled.logits)


def _mib(size: int) -> str:
    return f"{size / (1 << 20):,.0f} MiB"
