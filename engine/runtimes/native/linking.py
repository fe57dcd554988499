"""From a program to the driver's tables: where each value lies, and which ops may run without a barrier between.

A value's place is an address that may differ from iteration to iteration of a rolled region: the driver finds a pointer
at `slots[base + iteration * step]`.
"""

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from engine.compiler.extract import Instruction
from engine.compiler.graph import Graph, Node
from engine.compiler.memory import Lifetime, plan
from engine.compiler.program import Phase, Program
from engine.ops.base import Kernel

_END = 1 << 30


class Operand(ctypes.Structure):
    _fields_ = (("base", ctypes.c_int32), ("step", ctypes.c_int32))


class DriverOp(ctypes.Structure):
    _fields_ = (
        ("fn", ctypes.c_void_p),
        ("n_args", ctypes.c_int32),
        ("barrier", ctypes.c_int32),
        ("args", ctypes.POINTER(Operand)),
    )


class DriverPhase(ctypes.Structure):
    _fields_ = (
        ("iterations", ctypes.c_int32),
        ("n_ops", ctypes.c_int32),
        ("ops", ctypes.POINTER(DriverOp)),
    )


class DriverProgram(ctypes.Structure):
    _fields_ = (
        ("n_phases", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        ("phases", ctypes.POINTER(DriverPhase)),
        ("slots", ctypes.POINTER(ctypes.c_void_p)),
    )


@dataclass
class Slots:
    """The pointer table under construction."""

    addresses: list[int] = field(default_factory=list)
    _known: dict[tuple[int, ...], Operand] = field(default_factory=dict)

    def operand(self, addresses: tuple[int, ...]) -> Operand:
        """An operand that has these addresses in iterations 0, 1, ..."""
        if len(set(addresses)) == 1:
            addresses = addresses[:1]
        if addresses not in self._known:
            self._known[addresses] = Operand(len(self.addresses), int(len(addresses) > 1))
            self.addresses += addresses
        return self._known[addresses]


def assemble(
    phases: list[tuple[int, list[tuple[int, bool, list[Operand]]]]], slots: Slots
) -> tuple[DriverProgram, list[object]]:
    """The driver's program of (iterations, ops of (function, barrier, operands)), and what must stay alive with it."""
    keep: list[object] = []
    rows = (DriverPhase * max(1, len(phases)))()
    for row, (iterations, ops) in zip(rows, phases, strict=False):
        table = (DriverOp * max(1, len(ops)))()
        for entry, (function, barrier, operands) in zip(table, ops, strict=False):
            entry.fn, entry.n_args, entry.barrier = function, len(operands), int(barrier)
            entry.args = arguments = (Operand * len(operands))(*operands)
            keep.append(arguments)
        row.iterations, row.n_ops, row.ops = iterations, len(ops), table
        keep.append(table)
    pointers = (ctypes.c_void_p * max(1, len(slots.addresses)))(*slots.addresses)
    keep += [rows, pointers]
    return DriverProgram(len(phases), 0, rows, pointers), keep


@dataclass
class Layout:
    """Where a program's values lie in its arena, before the arena has an address."""

    program: Program
    size: int
    offsets: dict[tuple[int, int], list[int]]  # (phase, class) -> offset of each copy
    barriers: list[list[bool]]
    producers: dict[Node, tuple[int, int, int]]  # node -> (phase, class, iteration)
    lifetimes: list[Lifetime]

    @property
    def intermediate_bytes(self) -> int:
        """Bytes of the arena if it held neither outputs nor new states."""
        return plan([lifetime for lifetime in self.lifetimes if lifetime.last < _END]).size


def lay_out(program: Program, graph: Graph, capacity: Mapping[str, int]) -> Layout:
    """Plan a program's buffers for the largest dims that it will run at."""
    barriers = [_barriers(phase) for phase in program.phases]
    group, spans, groups = 0, [], []
    for flags in barriers:
        start, numbers = group, []
        for flag in flags:
            numbers.append(group)
            group += flag
        spans.append((start, max(start, group - 1)))
        groups.append(numbers)
    producers = {
        node: (p, root, i)
        for p, phase in enumerate(program.phases)
        for i, block in enumerate(phase.space.region.blocks)
        for at, root in zip(phase.space.region.results, phase.space.roots, strict=True)
        for node in [block[at]]
    }
    births: dict[tuple[int, int], int] = {}
    deaths: dict[tuple[int, int], int] = {}
    sizes: dict[tuple[int, int], int] = {}
    for p, phase in enumerate(program.phases):
        for g, instruction in zip(groups[p], phase.steps, strict=True):
            for c in instruction.inputs:
                for node in set(phase.space.externals.get(c, ())):
                    if node in producers:
                        source = producers[node][:2]
                        deaths[source] = max(
                            deaths.get(source, 0), spans[p][1] if phase.iterations > 1 else g
                        )
                deaths[p, c] = max(deaths.get((p, c), 0), g)
            if _kernel(instruction).in_place is None:
                births[p, instruction.output] = g
                sizes[p, instruction.output] = instruction.spec.bytes(capacity)
    copies = dict.fromkeys(births, 1)
    kept = {t.node for t in (*graph.outputs, *graph.updates.values())}
    for p, phase in enumerate(program.phases):
        region = phase.space.region
        for at, root in zip(region.results, phase.space.roots, strict=True):
            if (p, root) not in births:
                continue
            if region.nodes[at] in kept and region.iterations > 1:
                copies[p, root] = region.iterations
            elif at in region.carried.values():
                copies[p, root] = 2
            if copies[p, root] > 1:
                births[p, root] = spans[p][0]
                deaths[p, root] = max(deaths.get((p, root), 0), spans[p][1])
            if any(block[at] in kept for block in region.blocks):
                deaths[p, root] = _END
    keys = [key for key in births for _ in range(copies[key])]
    lifetimes = [
        Lifetime(sizes[key], births[key], max(births[key], deaths.get(key, 0))) for key in keys
    ]
    offsets, size = plan(lifetimes)
    placed: dict[tuple[int, int], list[int]] = {}
    for key, offset in zip(keys, offsets, strict=True):
        placed.setdefault(key, []).append(offset)
    return Layout(program, size, placed, barriers, producers, lifetimes)


def _kernel(instruction: Instruction) -> Kernel:
    assert isinstance(instruction.op, Kernel)
    return instruction.op


def _barriers(phase: Phase) -> list[bool]:
    """Whether threads must meet after each op: where the next op needs something made since they last met."""
    flags: list[bool] = []
    made: set[int] = set()
    for instruction in phase.steps:
        in_place = _kernel(instruction).in_place
        touched = {instruction.inputs[in_place]} if in_place is not None else set()
        if flags and made & ({*instruction.inputs} | touched):
            flags[-1] = True
            made = set()
        flags.append(False)
        made |= {instruction.output} | touched
    if flags:
        flags[-1] = True
    return flags


def link(
    layout: Layout,
    arena: int,
    function: Callable[[Instruction, Program], int],
    folded: Callable[[Phase, int, int], int],
    external: Callable[[Node], int],
) -> tuple[DriverProgram, list[object], Callable[[Node], int]]:
    """The driver's program with the arena at an address.

    function(instruction, program) is a kernel's address, folded(phase, class, iteration) that of a packed weight,
    external(node) that of an input. Also returns the address of a result's node.
    """
    program, slots = layout.program, Slots()
    makers = [{i.output: i for i in phase.instructions} for phase in program.phases]

    def address(p: int, c: int, iteration: int) -> int:
        phase = program.phases[p]
        nodes = phase.space.externals.get(c)
        if nodes and c not in makers[p]:
            return of_node(nodes[iteration])
        maker = makers[p][c]
        if maker.constant:
            return folded(phase, c, iteration)
        in_place = _kernel(maker).in_place
        if in_place is not None:
            return address(p, maker.inputs[in_place], iteration)
        copies = layout.offsets[p, c]
        return arena + copies[iteration % len(copies)]

    def of_node(node: Node) -> int:
        return external(node) if node.op == "Input" else address(*layout.producers[node])

    phases = []
    for p, phase in enumerate(program.phases):
        ops = []
        for barrier, instruction in zip(layout.barriers[p], phase.steps, strict=True):
            operands = [
                slots.operand(tuple(address(p, c, i) for i in range(phase.iterations)))
                for c in (instruction.output, *instruction.inputs)
            ]
            ops.append((function(instruction, program), barrier, operands))
        phases.append((phase.iterations, ops))
    driver_program, keep = assemble(phases, slots)
    return driver_program, keep, of_node
