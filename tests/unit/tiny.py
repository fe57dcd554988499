"""The small random models of `tests/goldens`, and what the compiler makes of them without timing anything."""

from hashlib import sha256
from pathlib import Path
from tempfile import gettempdir

from engine.compile_model import Prepared, prepare
from engine.compiler.options import DimBucket
from engine.compiler.search import search
from engine.config import EngineConfig
from engine.runtimes.native.kernels import source_of
from engine.runtimes.native.runtime import NativeRuntime
from models import registry

GOLDENS = Path(__file__).parent.parent / "goldens"
PROGRAMS = GOLDENS / "programs"
NAMES = sorted(path.parent.name for path in GOLDENS.glob("tiny-*/golden.npz"))
PAGES = 16


def prepared(name: str, device: str = "native") -> Prepared:
    """A model's graph, and a runtime that holds its weights."""
    config = EngineConfig(cache_dir=Path(gettempdir()) / "egglm-test-tiny", device=device)
    return prepare(registry.load(GOLDENS / name), config, PAGES, 16 * PAGES)


def program_text(name: str) -> str:
    """The programs that the roofline chooses for a model, for one token and for 64: every op, with a digest of its C.

    Equal texts are equal behaviour: what a step computes, in which order, by which code.
    """
    made = prepared(name)
    graph, runtime = made.graph, made.runtime
    assert isinstance(runtime, NativeRuntime)
    options = made.options.with_(dim_buckets={"t": (DimBucket(1, 1), DimBucket(17, 64, 64))})
    graph.build_search_space(runtime, options)
    runtime.profiler = lambda *_: None  # type: ignore[method-assign]
    programs, _ = search(graph, runtime, options)
    lines = []
    for program in programs.programs:
        lines.append(f"bucket {program.name}")
        for phase in program.phases:
            lines.append(f"{phase.iterations} x")
            names: dict[int, str] = {}
            outside: dict[int, str] = {}
            for at, i in enumerate((*phase.folds, *phase.steps)):
                code = "" if i.constant else source_of(i, runtime.c_symbols, program.fixed).text("")
                words = [f"  %{at}: {i.spec.dtype.value}[{','.join(map(str, i.spec.shape))}]"]
                inputs = (
                    names.get(c) or outside.setdefault(c, f"in{len(outside)}") for c in i.inputs
                )
                words += ["=", i.op.name, *inputs]
                words += ["@", sha256(code.encode()).hexdigest()[:8]] if code else []
                lines.append(" ".join(words))
                names[i.output] = f"%{at}"
    return "\n".join(lines) + "\n"
