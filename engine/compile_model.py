"""From a model to a runtime with its programs: from a saved artifact in seconds, else by search."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from engine.compiler import artifact
from engine.compiler.dtype import DType
from engine.compiler.graph import Graph
from engine.compiler.options import CompileOptions, DimBucket
from engine.compiler.report import BucketReport
from engine.compiler.search import search
from engine.compiler.shape import symbol
from engine.compiler.tensor import Tensor
from engine.config import EngineConfig
from engine.kv_cache import PAGE_SIZE
from engine.messages import Progress
from engine.model import Model, StepGraph, StepInputs
from engine.ops.base import Array
from engine.runtimes.base import Runtime
from engine.runtimes.native.kernels import source_of
from engine.runtimes.native.runtime import NativeRuntime
from engine.runtimes.reference import ReferenceRuntime
from engine.runtimes.toolchain import ToolchainError

log = logging.getLogger(__name__)
_TIMED_CONTEXT = 256  # tokens of context at which candidates are timed
_TIMED_PROMPT = 64  # tokens of each of several prompts that are computed whole


@dataclass(frozen=True)
class Compiled:
    runtime: Runtime
    inputs: StepInputs
    logits: Tensor
    reports: list[BucketReport]
    from_artifact: bool


def compile_model(
    model: Model,
    config: EngineConfig,
    pages: int,
    max_model_len: int,
    progress: Callable[[Progress], None],
) -> Compiled:
    """Build, load and compile a model for steps of up to `config.max_batch_tokens` tokens over a pool of `pages`."""
    progress(Progress("load", 0, 1))
    prepared = prepare(model, config, pages, max_model_len)
    graph, step, runtime = prepared.graph, prepared.step, prepared.runtime
    progress(Progress("load", 1, 1))
    name, options = model.limits.name, prepared.options
    reports, found = _programs(name, graph, step, runtime, options, config, progress)
    if isinstance(runtime, NativeRuntime):
        table = min(-(-max_model_len // PAGE_SIZE), pages)
        runtime.reserve(
            {
                "r": config.max_num_seqs,
                "o": config.max_logit_rows,
                "p": table,
                "slots": pages * PAGE_SIZE,
            }
        )
    progress(Progress("pack", 0, 1))
    runtime.settle()
    progress(Progress("pack", 1, 1))
    return Compiled(runtime, prepared.inputs, step.logits, reports, found)


@dataclass(frozen=True)
class Prepared:
    """A model's graph and its weights in a runtime, before anything is searched."""

    graph: Graph
    inputs: StepInputs
    step: StepGraph
    runtime: Runtime
    options: CompileOptions


def prepare(model: Model, config: EngineConfig, pages: int, max_model_len: int) -> Prepared:
    """Build the graph of a model's step, and give a runtime its weights and a pool of `pages`."""
    graph = Graph()
    inputs = step_inputs(graph, max_model_len)
    graph.set_dim("slots", pages * PAGE_SIZE)
    step = model.build(graph, inputs)
    runtime = _make_runtime(config, _Examples(inputs, pages))
    for tensor, loader in step.weights.items():
        runtime.set_data(tensor, loader)
    for pool in step.cache:
        width = pool.shape[1]
        assert isinstance(width, int)
        runtime.set_data(pool, runtime.zeros((pages * PAGE_SIZE, width), pool.dtype))
    return Prepared(graph, inputs, step, runtime, _options(config, pages))


def step_inputs(graph: Graph, max_model_len: int) -> StepInputs:
    """The inputs that every model's step has."""
    i32 = DType.I32
    return StepInputs(
        token_ids=graph.named_tensor("token_ids", ("t",), i32),
        positions=graph.named_tensor("positions", ("t",), i32),
        slots=graph.named_tensor("slots", ("t",), i32),
        query_start=graph.named_tensor("query_start", (symbol("r") + 1,), i32),
        page_table=graph.named_tensor("page_table", ("r", "p"), i32),
        out_rows=graph.named_tensor("out_rows", ("o",), i32),
        page_size=PAGE_SIZE,
        max_model_len=max_model_len,
    )


def _make_runtime(config: EngineConfig, example: "_Examples") -> Runtime:
    if config.device == "reference":
        return ReferenceRuntime()
    try:
        return NativeRuntime(config.threads, config.cache_dir / "native", example)
    except ToolchainError as error:
        if config.device == "native":
            raise
        log.warning("%s: serving with NumPy, which is slow; install gcc or clang for speed", error)
        return ReferenceRuntime()


def _options(config: EngineConfig, pages: int) -> CompileOptions:
    limits = [n for n in (1, 4, 16, 64) if n < config.max_batch_tokens] + [config.max_batch_tokens]
    lows = [1, *(n + 1 for n in limits[:-1])]
    buckets = tuple(
        DimBucket(low, high, min(high, 256)) for low, high in zip(lows, limits, strict=True)
    )

    def others(dims: Mapping[str, int]) -> dict[str, int]:
        # Small steps decode, one token a request; large ones prefill a request or two.
        t = dims["t"]
        if config.whole_prompts:
            requests = -(-t // _TIMED_PROMPT)
            return {"r": requests, "o": t, "p": -(-t // requests // PAGE_SIZE) + 1}
        requests = t if t <= 64 else 1
        context = min(_TIMED_CONTEXT // PAGE_SIZE, max(1, pages // requests))
        return {
            "r": requests,
            "o": requests,
            "p": max(context, -(-t // PAGE_SIZE) if requests == 1 else 1),
        }

    return CompileOptions(
        search_time_limit=config.search_time_limit_s,
        search_graph_limit=12,
        generation_size=4,
        trials=10,
        profile_timeout=30.0,
        profile_dims=others,
        dim_buckets={"t": buckets},
        seed=config.seed,
    )


@dataclass(frozen=True)
class _Examples:
    """Inputs of a step like those that will be served: each request in pages of its own, in the middle of its
    context."""

    inputs: StepInputs
    pages: int

    def __call__(self, dims: Mapping[str, int]) -> dict[Tensor, Array]:
        t, r, p, o = (dims[name] for name in ("t", "r", "p", "o"))
        each = t // r
        table = np.arange(r * p, dtype=np.int32).reshape(r, p) % self.pages
        starts = np.arange(r + 1, dtype=np.int32) * each
        starts[-1] = t
        place = np.arange(t, dtype=np.int32)
        request = np.minimum(place // max(each, 1), r - 1)
        first = max(0, p * PAGE_SIZE - max(each, t - each * (r - 1))) if each == 1 else 0
        positions = first + place - starts[request]
        slots = table[request, positions // PAGE_SIZE] * PAGE_SIZE + positions % PAGE_SIZE
        i = self.inputs
        return {
            i.token_ids: (place * 37 + 11).astype(np.int32) % 100,
            i.positions: positions.astype(np.int32),
            i.slots: slots.astype(np.int32),
            i.query_start: starts,
            i.page_table: table,
            i.out_rows: np.linspace(0, t - 1, o).astype(np.int32),
        }


def _programs(
    name: str,
    graph: Graph,
    step: StepGraph,
    runtime: Runtime,
    options: CompileOptions,
    config: EngineConfig,
    progress: Callable[[Progress], None],
) -> tuple[list[BucketReport], bool]:
    """Load programs into the runtime; returns what the search saw, and whether it was a saved one."""
    if not isinstance(runtime, NativeRuntime):
        graph.compile(
            runtime, CompileOptions(profile_dims={"t": 16, "r": 1, "p": 4, "o": 1, "slots": 64})
        )
        return runtime.reports, False
    space = graph.build_search_space(runtime, options)
    key = artifact.key_of(graph, options, runtime.device)
    path = config.cache_dir / "native" / f"{key}.json"
    try:
        programs, libraries, details = artifact.load(path, key, space, options)
        for library in libraries:
            runtime.library.open(library)
        runtime.load(graph, programs)
        return [BucketReport.from_json(d) for d in details["buckets"]], True
    except FileNotFoundError:
        pass
    except artifact.ArtifactError as error:
        log.warning("the saved program %s is rebuilt: %s", path.name, error)
    programs, reports = search(
        graph,
        runtime,
        options,
        report=lambda stage, done, total: progress(Progress(stage, done, total)),
    )
    runtime.load(graph, programs)
    used = runtime.library.files(
        source_of(i, runtime.c_symbols, p.fixed)
        for p in programs.programs
        for f in p.phases
        for i in f.steps
    )
    details = {"model": name, "buckets": [r.as_json() for r in reports]}
    artifact.save(path, key, programs, used, details)
    return reports, False
