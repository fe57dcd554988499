"""Timing candidates where they will run: instructions one by one over all layers' weights, and whole programs."""

import logging
import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from engine.compiler.extract import Instruction
from engine.compiler.graph import Node
from engine.compiler.program import Program
from engine.compiler.search import Batch, CandidateError
from engine.compiler.shape import evaluate
from engine.compiler.space import RegionSpace
from engine.ops.base import Array, Source, Spec
from engine.runtimes.base import stored_shape
from engine.runtimes.native.driver import address_of, dims_array
from engine.runtimes.native.kernels import source_of
from engine.runtimes.native.linking import Slots, assemble
from engine.runtimes.native.prelude import PRELUDE
from engine.runtimes.toolchain import ToolchainError

if TYPE_CHECKING:
    from engine.runtimes.native.runtime import NativeRuntime

log = logging.getLogger(__name__)
_SLOW_S = 0.02  # an op that takes longer in one iteration is not run for all of them
# Trials cease early where they take longer than this together: of a batch of ops, after a few trials; of a program.
_BATCH_S, _BATCH_TRIALS = 1.5, 2
_PROGRAM_S = 0.5


class NativeProfiler:
    def __init__(self, runtime: "NativeRuntime", max_memory_bytes: int | None) -> None:
        self._runtime, self._max_memory_bytes = runtime, max_memory_bytes
        self._ready: Mapping[str, int] | None = None

    def remembered(self, batch: Batch, program: Program) -> Mapping[str, float]:
        known = self._runtime.timings.get
        found = {i.key: known(self._timing_key(i, program)) for i, _ in batch}
        return {key: seconds for key, seconds in found.items() if seconds is not None}

    def _timing_key(self, instruction: Instruction, program: Program) -> str:
        """What an op's time depends on: its code, the sizes that it runs at, and the device."""
        runtime = self._runtime
        code = source_of(instruction, runtime.c_symbols, program.fixed).text("")
        dims = dims_array(runtime.symbols, program.dims)
        read = [int(dims[int(at)]) for at in sorted(set(re.findall(r"\bdims\[(\d+)\]", code)))]
        specs = [
            (spec.dtype.value, *(evaluate(d, program.dims) for d in spec.shape))
            for spec in (instruction.spec, *instruction.call.inputs)
        ]
        parts = (runtime.device, PRELUDE, code, read, specs)
        return sha256(repr(parts).encode()).hexdigest()[:24]

    def time_instructions(
        self,
        space: RegionSpace,
        batch: Batch,
        program: Program,
        trials: int,
    ) -> dict[str, float]:
        runtime = self._runtime
        self._prepare(program.dims)
        least: dict[str, float] = {}
        dims = dims_array(runtime.symbols, program.dims)
        scratch = _Scratch(runtime, program.dims)
        sources = [source_of(i, runtime.c_symbols, program.fixed) for i, _ in batch]
        refused = self._refused(sources)
        timed = []
        for (instruction, makers), source in zip(batch, sources, strict=True):
            if source in refused:
                least[instruction.key] = float("inf")
                continue
            slots, function = Slots(), runtime.library.address(source)
            scratch.reset()
            operands = [
                slots.operand(
                    tuple(
                        scratch.place(space, instruction, makers, n, i)
                        for i in range(space.region.iterations)
                    )
                )
                for n in range(-1, len(instruction.inputs))
            ]
            one, keep_one = assemble([(1, [(function, True, operands)])], slots)
            once = runtime.driver.seconds(one, dims)
            if once > _SLOW_S:
                least[instruction.key] = once
                continue
            rolled, keep = assemble(
                [(space.region.iterations, [(function, True, operands)])], slots
            )
            timed.append((instruction.key, rolled, (keep, keep_one)))
        start = perf_counter()
        for trial in range(trials):
            if trial >= _BATCH_TRIALS and perf_counter() - start > _BATCH_S:
                break
            for key, rolled, _keep in timed:
                runtime.driver.flush_cache()
                seconds = runtime.driver.seconds(rolled, dims) / space.region.iterations
                least[key] = min(least.get(key, seconds), seconds)
        runtime.timings.add({self._timing_key(i, program): least[i.key] for i, _ in batch})
        return least

    def _refused(self, sources: Sequence[Source]) -> set[Source]:
        """Compile kernels; returns those that the C compiler does not take, so that the search goes on without them."""
        library = self._runtime.library
        try:
            library.add(sources)
            return set()
        except ToolchainError:
            refused = set()
        for source in sources:
            try:
                library.add([source])
            except ToolchainError as error:
                log.warning("a kernel is left out: %s", error)
                refused.add(source)
        return refused

    def time_program(
        self, program: Program, trials: int, timeout_s: float
    ) -> tuple[float, dict[str, Array]]:
        runtime = self._runtime
        self._prepare(program.dims)
        needed = runtime.lay_out(program).intermediate_bytes
        if self._max_memory_bytes is not None and needed > self._max_memory_bytes:
            raise CandidateError("too much memory")
        try:
            runtime.compile((program,))
        except ToolchainError as error:
            raise CandidateError("does not compile") from error
        linked = runtime.link(program)
        dims = dims_array(runtime.symbols, program.dims)
        first = runtime.driver.seconds(linked.program, dims)
        if first > timeout_s:
            raise CandidateError("too slow")
        outputs = runtime.read_outputs(linked, program.dims)
        repeats = min(trials, max(1, int(_PROGRAM_S / first)))  # a long run is steady by itself
        seconds = min(runtime.driver.seconds(linked.program, dims) for _ in range(repeats))
        runtime.unlink(program)
        return seconds, outputs

    def time_in_turns(self, programs: Sequence[Program], trials: int) -> list[float]:
        runtime = self._runtime
        self._prepare(programs[0].dims)
        for program in programs:
            runtime.lay_out(
                program
            )  # the arena is large enough for all of them before any is linked
        linked = [runtime.link(program) for program in programs]
        dims = dims_array(runtime.symbols, programs[0].dims)
        least, start = [float("inf")] * len(programs), perf_counter()
        for trial in range(trials):
            if trial >= _BATCH_TRIALS and perf_counter() - start > _BATCH_S:
                break
            for at, one in enumerate(linked):
                least[at] = min(least[at], runtime.driver.seconds(one.program, dims))
        for program in programs:
            runtime.unlink(program)
        return least

    def time_ops(self, program: Program) -> list[float]:
        runtime = self._runtime
        self._prepare(program.dims)
        linked = runtime.link(program)
        dims = dims_array(runtime.symbols, program.dims)
        ops = sum(len(phase.steps) for phase in program.phases)
        seconds = runtime.driver.op_seconds(linked.program, dims, ops)
        runtime.unlink(program)
        return [float(s) for s in seconds]

    def _prepare(self, dims: Mapping[str, int]) -> None:
        """Put example inputs of these dims in place."""
        if self._ready == dims:
            return
        runtime = self._runtime
        runtime.reserve(dims)
        examples = runtime.examples(dims)
        for node, array in examples.items():
            place = runtime.place(node)
            place.reshape(-1)[: array.size] = array.reshape(-1)
        self._ready = dims


class _Scratch:
    """Stand-ins for the values that an instruction reads and writes when it runs alone."""

    def __init__(self, runtime: "NativeRuntime", dims: Mapping[str, int]) -> None:
        self._runtime, self._dims = runtime, dims
        self._buffers = [np.empty(0, np.uint8)]
        self._used = 0
        self._places: dict[int, int] = {}

    def reset(self) -> None:
        self._places.clear()
        self._used = 0

    def place(
        self,
        space: RegionSpace,
        instruction: Instruction,
        makers: Mapping[int, Instruction],
        n: int,
        iteration: int,
    ) -> int:
        """Address of input n (-1: the output) in an iteration."""
        if n == -1:
            in_place = instruction.op.in_place  # type: ignore[attr-defined]
            if in_place is not None:
                return self.place(space, instruction, makers, in_place, iteration)
            return self._temporary(-1, instruction.spec)
        c, spec = instruction.inputs[n], instruction.call.inputs[n]
        if c in makers and makers[c].constant:
            return address_of(self._runtime.folds.value(space, makers, c, iteration))
        nodes = space.externals.get(c, ())
        if nodes and c not in makers and nodes[iteration].op == "Input":
            return address_of(self._runtime.place(nodes[iteration]))
        return self._temporary(c, spec)

    def _temporary(self, key: int, spec: Spec) -> int:
        if key not in self._places:
            size = -(-spec.bytes(self._dims) // 4096) * 4096 + 4096
            if self._used + size > self._buffers[-1].nbytes:
                # Tables made before still point into the smaller buffer.
                larger = max(2 * self._buffers[-1].nbytes, size, 1 << 20)
                self._buffers.append(self._runtime.driver.array(larger))
                self._used = 0
            self._places[key] = address_of(self._buffers[-1]) + self._used
            self._used += size
        return self._places[key]


def default_example(node: Node, dims: Mapping[str, int], rng: np.random.Generator) -> Array:
    """Data to time with where the user gave none: integers are zeros, floats are small random numbers."""
    shape = [evaluate(d, dims) for d in stored_shape(node.shape, node.dtype)]
    if not node.dtype.is_float:
        return np.zeros(shape, node.dtype.numpy)
    return rng.standard_normal(shape, np.float32).astype(node.dtype.numpy)
