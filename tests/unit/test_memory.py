"""Placing buffers: nothing that is still needed is overwritten, in plans of any lifetimes and in real programs."""

from collections.abc import Iterator

import numpy as np
import pytest
from candidates import native, random_programs, space_of
from hypothesis import given
from hypothesis import strategies as st
from tiny_llama import TinyLlama

from engine.compiler import nn
from engine.compiler.dtype import DType
from engine.compiler.graph import Graph, Node
from engine.compiler.memory import ALIGNMENT, Lifetime, lower_bound, plan
from engine.compiler.program import Program
from engine.runtimes.native.linking import Layout

LIFETIMES = st.lists(
    st.builds(
        lambda size, first, length: Lifetime(size, first, first + length),
        st.one_of(st.integers(0, 400), st.sampled_from([0, 64, 128, 4096])),
        st.integers(0, 12),
        st.integers(0, 6),
    ),
    max_size=25,
)


def overlaps(a: Lifetime, b: Lifetime) -> bool:
    return a.first <= b.last and b.first <= a.last


@given(LIFETIMES)
def test_buffers_that_live_together_lie_apart(buffers: list[Lifetime]) -> None:
    offsets, size = plan(buffers)
    assert len(offsets) == len(buffers)
    for i, (a, at) in enumerate(zip(buffers, offsets, strict=True)):
        assert at % ALIGNMENT == 0
        assert at >= 0
        assert at + a.size <= size
        for b, other in zip(buffers[:i], offsets[:i], strict=True):
            if overlaps(a, b):
                assert at + a.size <= other or other + b.size <= at


@given(LIFETIMES)
def test_no_plan_is_smaller_than_what_lives_at_once(buffers: list[Lifetime]) -> None:
    steps = range(20)
    live = max(sum(b.size for b in buffers if b.first <= s <= b.last) for s in steps)
    assert lower_bound(buffers) == live
    assert plan(buffers).size >= live


@given(LIFETIMES)
def test_buffers_of_one_size_in_a_row_take_no_more_than_live_at_once(
    buffers: list[Lifetime],
) -> None:
    """Interval graphs of equal sizes are coloured optimally when they are taken by their start."""
    equal = sorted((Lifetime(64, b.first, b.last) for b in buffers), key=lambda b: b.first)
    assert plan(equal).size == lower_bound(equal)


def test_a_chain_needs_two_buffers() -> None:
    assert plan([Lifetime(100, n, n + 1) for n in range(30)]).size == 2 * 128


# -- programs ---------------------------------------------------------------------------------------------------------

Owner = tuple[int, int, int]  # (phase, class, iteration) whose value bytes hold


class Arena:
    """Who wrote each 64 bytes last, and in which group of ops between two barriers."""

    def __init__(self, size: int) -> None:
        self.owners: list[Owner | None] = [None] * (size // ALIGNMENT)
        self.written = np.full(size // ALIGNMENT, -1)
        self.read = np.full(size // ALIGNMENT, -1)
        self.group = 0

    def lines(self, offset: int, size: int) -> range:
        return range(offset // ALIGNMENT, -(-(offset + size) // ALIGNMENT))

    def write(self, owner: Owner, offset: int, size: int) -> None:
        for line in self.lines(offset, size):
            assert self.read[line] != self.group, f"{owner} overwrites what its group reads"
            assert self.written[line] != self.group, f"{owner} overwrites what its group writes"
            self.owners[line], self.written[line] = owner, self.group

    def check(self, owner: Owner, offset: int, size: int) -> None:
        for line in self.lines(offset, size):
            assert self.owners[line] == owner, f"{owner} is lost to {self.owners[line]}"
            assert self.written[line] != self.group, f"{owner} is read without a barrier"
            self.read[line] = self.group


def walk(program: Program, layout: Layout, dims: dict[str, int], kept: set[Node]) -> None:
    """Run the program on an arena that remembers what lies where; every value has to be there when it is read."""
    arena = Arena(layout.size)
    makers = [{i.output: i for i in phase.instructions} for phase in program.phases]

    def place(p: int, c: int, iteration: int) -> tuple[Owner, int, int] | None:
        """(owner, offset, size) of a value, or None where it is no buffer of the arena."""
        phase = program.phases[p]
        nodes = phase.space.externals.get(c)
        if nodes and c not in makers[p]:
            return (
                None
                if nodes[iteration].op == "Input"
                else place(*layout.producers[nodes[iteration]])
            )
        maker = makers[p][c]
        if maker.constant or (p, c) not in layout.offsets:
            return None
        copies = layout.offsets[p, c]
        return (p, c, iteration), copies[iteration % len(copies)], maker.spec.bytes(dims)

    for p, phase in enumerate(program.phases):
        for iteration in range(phase.iterations):
            for barrier, instruction in zip(layout.barriers[p], phase.steps, strict=True):
                for c in instruction.inputs:
                    if found := place(p, c, iteration):
                        arena.check(*found)
                if found := place(p, instruction.output, iteration):
                    arena.write(*found)
                arena.group += barrier
    arena.group += 1
    for node in kept:
        if node in layout.producers and (found := place(*layout.producers[node])):
            arena.check(*found)


def programs(graph: Graph, dims: dict[str, int], count: int) -> Iterator[tuple[Program, Layout]]:
    runtime = native()
    space = space_of(graph, runtime)
    runtime._attach(graph)
    runtime.reserve(dims)
    for program in random_programs(space, 0, count, dims):
        yield program, runtime.lay_out(program)


def check(graph: Graph, dims: dict[str, int], count: int = 25) -> None:
    kept = {t.node for t in (*graph.outputs, *graph.updates.values())}
    for program, layout in programs(graph, dims, count):
        walk(program, layout, dims, kept)
        assert layout.size >= lower_bound(layout.lifetimes)


@pytest.mark.parametrize("layers", [1, 2, 5])
@pytest.mark.parametrize("held", [DType.F32, DType.U4], ids=lambda d: d.value)
def test_values_of_a_llama_step_stay_until_they_are_read(layers: int, held: DType) -> None:
    llama = TinyLlama(layers, held)
    check(llama.graph, llama.batch()[1])


@pytest.mark.parametrize("every", [True, False])
def test_outputs_of_rolled_layers_all_stay(every: bool) -> None:
    g = Graph()
    x = g.tensor(("t", 16))
    for n in range(4):
        x = nn.linear(nn.rms_norm(x, g.tensor((16,)).persist(), 1e-5), g.tensor((16, 16)).persist())
        x = x.softmax(1)
        if every or n == 3:
            x.output()
    check(g, {"t": 5})


def test_arenas_do_not_grow_with_layers() -> None:
    sizes = []
    for layers in (2, 12):
        llama = TinyLlama(layers)
        [(_, layout)] = programs(llama.graph, llama.batch()[1], 1)
        sizes.append(layout.size)
    assert sizes[0] == sizes[1]
