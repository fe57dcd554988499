"""The search for the fastest program of each bucket on this machine.

Genomes are ranked by the sum of their instructions' costs. A cost is the roofline bound until the instruction has been
timed, and a bound is optimistic: so the leaders of the ranking are timed until none of them is a guess. Only then are
whole programs timed, in generations of mutants of the best, interleaved, and compared by their least times.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from math import prod
from time import perf_counter
from typing import Protocol

import numpy as np

from engine.compiler.extract import CyclicChoice, Extractor, Genome, Instruction, reachable
from engine.compiler.graph import Graph
from engine.compiler.options import CompileOptions, DimBucket
from engine.compiler.program import CompiledPrograms, Phase, Program
from engine.compiler.report import BucketReport, op_rows
from engine.compiler.space import RegionSpace
from engine.ops.base import Array, Kernel
from engine.runtimes.base import Roofline, Runtime

Dims = Mapping[str, int]
Report = Callable[[str, int, int], None]
Batch = Sequence[tuple[Instruction, Mapping[int, Instruction]]]
_SAMPLES = 100  # mutants ranked by the model in one round
_LEADERS = 8  # of them, whose instructions are timed
_ROUNDS = 6
_FINALISTS = 2  # programs that are timed again beside the first
_MARGIN = 0.01  # by which a program has to beat the first: less is noise
_TOLERANCE = 2e-3  # difference of two candidates' outputs, relative to the largest output


class SearchError(RuntimeError):
    """No candidate could be run."""


class CandidateError(Exception):
    """A candidate is discarded; the message is the reason, under which reports count it."""


class Profiler(Protocol):
    """How a runtime times candidates.

    A batch is instructions, and beside each the instructions of a program that it is part of, by their outputs. Times
    of single instructions are seconds of one execution, by their keys, averaged over the region's iterations.
    """

    def remembered(self, batch: Batch, program: Program) -> Mapping[str, float]:
        """Times that earlier searches on this device found, of those instructions that they timed."""
        ...

    def time_instructions(
        self,
        space: RegionSpace,
        batch: Batch,
        program: Program,
        trials: int,
    ) -> dict[str, float]:
        """The least times of some runs of each instruction alone."""
        ...

    def time_program(
        self, program: Program, trials: int, timeout_s: float
    ) -> tuple[float, dict[str, Array]]:
        """(least seconds of `trials` runs, outputs by name); raises `CandidateError`."""
        ...

    def time_in_turns(self, programs: Sequence[Program], trials: int) -> Sequence[float]:
        """Least seconds of each of some programs that have run before, timed one after another `trials` times over."""
        ...

    def time_ops(self, program: Program) -> Sequence[float]:
        """Seconds of each op of a program as part of it, summed over its region's iterations."""
        ...


def search(
    graph: Graph,
    runtime: Runtime,
    options: CompileOptions,
    rng: random.Random | None = None,
    report: Report | None = None,
) -> tuple[CompiledPrograms, list[BucketReport]]:
    """Programs for every combination of buckets, and what was seen on the way. Raises `SearchError`."""
    space = graph.search_space
    assert space is not None
    rng = rng or random.Random(options.seed)
    deadline = perf_counter() + options.time_limit
    buckets = list(combinations(options))
    programs, reports = [], []
    extractors = [Extractor(region) for region in space.regions]
    profiler = runtime.profiler(graph, options)
    for at, bucket in enumerate(buckets):
        share = (deadline - perf_counter()) / (len(buckets) - at)
        dims = graph.resolve(options.dims_at(bucket))
        if missing := graph.symbols - dims.keys():
            raise SearchError(
                f"no value to time {', '.join(sorted(missing))} at: "
                "give one with profile_dims, dim_buckets or Graph.set_dim"
            )
        task = _BucketSearch(
            extractors, runtime, profiler, options, rng, bucket, dims, perf_counter() + share
        )
        programs.append(task.run())
        reports.append(task.report)
        if report:
            report("compile", at + 1, len(buckets))
    return CompiledPrograms(tuple(programs)), reports


def combinations(options: CompileOptions) -> Iterator[dict[str, DimBucket]]:
    """The cartesian product of the options' buckets."""
    symbols = list(options.dim_buckets)
    for choice in product(*options.dim_buckets.values()):
        yield dict(zip(symbols, choice, strict=True))


def roofline_s(instruction: Instruction, dims: Dims, machine: Roofline) -> float:
    """Least time that an instruction can take: its bytes, its operations and its start."""
    if instruction.constant:
        return 0.0
    op = instruction.op
    if not isinstance(op, Kernel):
        specs = (*instruction.call.inputs, instruction.spec)
        return machine.launch + sum(spec.bytes(dims) for spec in specs) / machine.bandwidth
    read, written, flops = op.counts(instruction.call, dims)
    return machine.launch + max(
        (read + written) / machine.bandwidth, flops / (machine.rate * op.efficiency)
    )


class _BucketSearch:
    def __init__(
        self,
        extractors: list[Extractor],
        runtime: Runtime,
        profiler: Profiler | None,
        options: CompileOptions,
        rng: random.Random,
        bucket: dict[str, DimBucket],
        dims: Dims,
        deadline: float,
    ) -> None:
        self.extractors, self.runtime, self.options, self.rng = extractors, runtime, options, rng
        self.bucket, self.dims, self.deadline = bucket, dims, deadline
        self.measured: dict[str, float] = {}
        self.profiler = profiler
        self.guessed: dict[str, float] = {}
        self.report = BucketReport(Program(bucket, dims, ()).name, dict(dims))

    def run(self) -> Program:
        start = perf_counter()
        self.report.classes = sum(len(e.space.classes) for e in self.extractors)
        self.report.nodes = sum(e.space.nodes_before_pruning for e in self.extractors)
        self.report.candidates = prod(
            float(len(nodes)) for e in self.extractors for nodes in e.space.classes if nodes
        )
        first = [self._improve(e, e.cheapest(self._cost)) for e in self.extractors]
        if self.profiler is None:
            best = self._program(first)
        else:
            best = self._time_programs(first, self.profiler)
        self.report.search_s = perf_counter() - start
        if self.profiler is not None:
            self.report.rows = op_rows(best, self.profiler.time_ops(best))
        return best

    def _cost(self, instruction: Instruction) -> float:
        if instruction.constant:
            return 0.0
        key = instruction.key
        if key in self.measured:
            return self.measured[key]
        if key not in self.guessed:
            self.guessed[key] = roofline_s(instruction, self.dims, self.runtime.roofline)
        return self.guessed[key]

    def _total(self, extractor: Extractor, genome: Genome) -> float:
        return sum(self._cost(i) for i in extractor.instructions(genome))

    def _program(self, genomes: Sequence[Genome]) -> Program:
        phases = [
            Phase(e.space, genome, tuple(e.instructions(genome)))
            for e, genome in zip(self.extractors, genomes, strict=True)
        ]
        return Program(self.bucket, self.dims, tuple(phases))

    # -- ranking by the additive model ---------------------------------------------------------------------------

    def _improve(self, extractor: Extractor, genome: Genome) -> Genome:
        """Change one class's choice at a time while the total falls: values used twice are paid once here."""
        best, improved = self._total(extractor, genome), True
        while improved and perf_counter() < self.deadline + 1.0:
            improved = False
            for c in reachable(extractor.space, genome):
                for i in range(len(extractor.space.classes[c])):
                    if i == genome[c]:
                        continue
                    other = (*genome[:c], i, *genome[c + 1 :])
                    self.report.ranked += 1
                    try:
                        total = self._total(extractor, other)
                    except CyclicChoice:
                        continue
                    if total < best * (1 - 1e-9):
                        genome, best, improved = other, total, True
        return genome

    def _mutant(self, extractor: Extractor, genome: Genome) -> Genome | None:
        """A genome with up to `mutations` choices changed, or None where the change is cyclic."""
        open_classes = [
            c for c in reachable(extractor.space, genome) if len(extractor.space.classes[c]) > 1
        ]
        if not open_classes:
            return None
        changed = list(genome)
        for _ in range(self.rng.randint(1, self.options.mutations)):
            c = self.rng.choice(open_classes)
            changed[c] = self.rng.randrange(len(extractor.space.classes[c]))
        try:
            extractor.instructions(tuple(changed))
        except CyclicChoice:
            return None
        return tuple(changed)

    def _leaders(self, extractor: Extractor, start: Genome) -> list[Genome]:
        """Distinct programs near `start`, the cheapest first."""
        found: dict[tuple[str, ...], tuple[float, Genome]] = {}
        for n in range(_SAMPLES):
            genome = start if n == 0 else self._mutant(extractor, start)
            if genome is None:
                continue
            instructions = extractor.instructions(genome)
            self.report.ranked += 1
            found.setdefault(
                tuple(i.key for i in instructions), (sum(map(self._cost, instructions)), genome)
            )
        ordered = sorted(found.values(), key=lambda pair: pair[0])
        return [genome for _, genome in ordered]

    def _measure_leaders(self, extractor: Extractor, genome: Genome, profiler: Profiler) -> Genome:
        """Time instructions until the best genomes of the ranking hold no guess; returns the best."""
        for _ in range(_ROUNDS):
            genome = self._improve(extractor, genome)
            leaders = self._leaders(extractor, genome)[:_LEADERS]
            unknown: dict[str, tuple[Instruction, Mapping[int, Instruction]]] = {}
            for leader in leaders:
                instructions = extractor.instructions(leader)
                makers = {i.output: i for i in instructions}
                for i in instructions:
                    if not i.constant and i.key not in self.measured:
                        unknown.setdefault(i.key, (i, makers))
            if not unknown or perf_counter() > self.deadline:
                break
            space, program = extractor.space, Program(self.bucket, self.dims, ())
            known = profiler.remembered(list(unknown.values()), program)
            new = [pair for key, pair in unknown.items() if key not in known]
            times = profiler.time_instructions(space, new, program, self.options.trials)
            self.measured |= {**known, **times}
            self.report.remembered_ops += len(known)
            self.report.timed_ops += len(times)
        return self._improve(extractor, genome)

    # -- timing of whole programs --------------------------------------------------------------------------------

    def _time_programs(self, first: list[Genome], profiler: Profiler) -> Program:
        limit, options = self.options.search_graph_limit, self.options
        expected: dict[str, Array] | None = None
        timed: dict[tuple[Genome, ...], float] = {}

        def trial(genomes: tuple[Genome, ...]) -> None:
            nonlocal expected
            timed[genomes] = float("inf")
            self.report.timed_programs += 1
            try:
                seconds, outputs = profiler.time_program(
                    self._program(genomes), options.trials, options.profile_timeout
                )
            except CandidateError as error:
                self.report.rejected[str(error)] += 1
                return
            if expected is None:
                expected = outputs
            elif not _agree(expected, outputs):
                self.report.rejected["different output"] += 1
                return
            timed[genomes] = seconds

        trial(tuple(first))
        self.report.first_s = timed[tuple(first)]
        if options.time_limit > 0:
            best = tuple(
                self._measure_leaders(e, g, profiler)
                for e, g in zip(self.extractors, first, strict=True)
            )
            if best not in timed and len(timed) < limit:
                trial(best)
            self._generations(timed, trial, limit)
            self._time_again(timed, tuple(first), profiler)
        winner = min(timed, key=lambda g: timed[g])
        if timed[tuple(first)] <= timed[winner] * (1 + _MARGIN):
            winner = tuple(first)
        if timed[winner] == float("inf"):
            raise SearchError(
                f"no viable candidate for bucket {self.report.name} before the search ended: "
                f"{dict(self.report.rejected)}"
            )
        self.report.best_s = timed[winner]
        return self._program(winner)

    def _time_again(
        self,
        timed: dict[tuple[Genome, ...], float],
        first: tuple[Genome, ...],
        profiler: Profiler,
    ) -> None:
        """Time the best programs and the first one in turns, so that a slow moment of the machine meets all of them.

        What was timed in different moments is comparable only roughly.
        """
        best = sorted((g for g in timed if timed[g] < float("inf")), key=lambda g: timed[g])
        finalists = list(dict.fromkeys([*best[:_FINALISTS], *(g for g in best if g == first)]))
        if len(finalists) < 2:
            return
        times = profiler.time_in_turns([self._program(g) for g in finalists], self.options.trials)
        timed |= dict(zip(finalists, times, strict=True))
        self.report.first_s = timed[first]

    def _generations(
        self,
        timed: dict[tuple[Genome, ...], float],
        trial: Callable[[tuple[Genome, ...]], None],
        limit: int,
    ) -> None:
        """Time generations of mutants until one brings nothing, or the limits are reached."""
        while len(timed) < limit and perf_counter() < self.deadline:
            parents = sorted(timed, key=lambda g: timed[g])[: self.options.keep_best]
            before = timed[parents[0]]
            children: dict[tuple[Genome, ...], float] = {}
            for parent in parents:
                for at, extractor in enumerate(self.extractors):
                    for genome in self._leaders(extractor, parent[at])[
                        : self.options.generation_size
                    ]:
                        child = (*parent[:at], genome, *parent[at + 1 :])
                        if child not in timed:
                            children[child] = self._total(extractor, genome) - self._total(
                                extractor, parent[at]
                            )
            for child in sorted(children, key=lambda g: children[g])[
                : self.options.generation_size
            ]:
                if len(timed) >= limit or perf_counter() > self.deadline:
                    break
                trial(child)
            if not children or min(timed.values()) >= before * 0.99:
                break


def _agree(expected: dict[str, Array], outputs: dict[str, Array]) -> bool:
    for name, want in expected.items():
        a, b = want.astype(np.float64), outputs[name].astype(np.float64)
        finite = a[np.isfinite(a)]
        scale = float(np.abs(finite).max(initial=0.0)) or 1.0
        if not np.allclose(a, b, rtol=0, atol=_TOLERANCE * scale, equal_nan=True):
            return False
    return True
