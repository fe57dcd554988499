"""Cutting a graph into regions: runs of alike blocks (a model's layers) are found by their structure and become one
region that runs many times.

A region is searched once, however often it runs, so that compile time does not grow with the number of layers.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.compiler.graph import Graph, Node, Operand

Readers = Mapping[Node, Sequence[Node]]  # of a graph's values, wherever they stand in it
_MIN_BLOCK = 4  # nodes; shorter repetitions are cheaper unrolled


@dataclass(frozen=True)
class Region:
    """`blocks[i]` are the nodes of iteration i, all alike; the first stands for all of them in the search.

    inputs: outside nodes that the first block reads -> the node that each iteration reads there instead.
    carried: inputs that iteration i > 0 reads from iteration i - 1 -> the index in the block of the node it reads.
    results: indexes in the block of nodes that something outside the block reads.
    """

    blocks: tuple[tuple[Node, ...], ...]
    inputs: dict[Node, tuple[Node, ...]]
    carried: dict[Node, int]
    results: tuple[int, ...]

    @property
    def nodes(self) -> tuple[Node, ...]:
        return self.blocks[0]

    @property
    def iterations(self) -> int:
        return len(self.blocks)


def partition(graph: Graph) -> list[Region]:
    """The graph's live nodes as regions in execution order."""
    nodes = _live(graph)
    kept = {t.node for t in graph.outputs} | {t.node for t in graph.updates.values()}

    readers: dict[Node, list[Node]] = {}
    for node in nodes:
        for operand in _operands(node):
            readers.setdefault(operand.node, []).append(node)
    segments = list(_segments(nodes, kept, readers))
    return [_region(blocks, nodes, kept) for blocks in segments]


def _operands(node: Node) -> Iterator[Operand]:
    yield from node.inputs
    if node.expansion:
        yield node.expansion


def _live(graph: Graph) -> list[Node]:
    """Nodes that an output or a state's new value needs, inputs excluded, in creation order."""
    todo = [t.node for t in (*graph.outputs, *graph.updates.values())]
    seen: set[Node] = set()
    while todo:
        node = todo.pop()
        if node not in seen:
            seen.add(node)
            todo += [operand.node for operand in _operands(node)]
    return sorted((n for n in seen if n.op != "Input"), key=lambda n: n.id)


def _segments(
    nodes: Sequence[Node], kept: set[Node], readers: Readers
) -> Iterator[tuple[tuple[Node, ...], ...]]:
    """Split a run of nodes at its longest repetition, then what is before and after it."""
    if not nodes:
        return
    best = _longest_repetition(nodes, kept, readers)
    if best is None:
        yield (tuple(nodes),)
        return
    start, period, count = best
    stop = start + period * count
    yield from _segments(nodes[:start], kept, readers)
    yield tuple(tuple(nodes[start + i * period : start + (i + 1) * period]) for i in range(count))
    yield from _segments(nodes[stop:], kept, readers)


def _signature(node: Node) -> tuple[Any, ...]:
    reads = tuple(
        (o.node.op == "Input", o.node.shape, o.node.dtype, o.view) for o in _operands(node)
    )
    return (node.op, node.attrs, node.shape, node.dtype, reads)


def _longest_repetition(
    nodes: Sequence[Node], kept: set[Node], readers: Readers
) -> tuple[int, int, int] | None:
    """(start, period, count) of the repetition that saves the most nodes and has few values to carry."""
    numbers: dict[Any, int] = {}
    codes = np.array([numbers.setdefault(_signature(n), len(numbers)) for n in nodes])
    candidates: list[tuple[int, int, int, int]] = []
    for period in range(_MIN_BLOCK, len(nodes) // 2 + 1):
        equal = np.concatenate(([False], codes[:-period] == codes[period:], [False]))
        edges = np.flatnonzero(np.diff(equal.astype(np.int8)))
        for first, last in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            count = (last - first) // period + 1
            if count > 1:
                candidates.append((period * (count - 1), -period, first, last))
    # Many periods of one repetition are multiples of the shortest, which saves the most.
    for saved, minus_period, first, last in sorted(candidates, reverse=True)[:64]:
        period = -minus_period
        count = saved // period + 1
        spare = (last - first) - saved
        options = []
        for start in range(first, first + spare + 1):
            blocks = [nodes[start + i * period : start + (i + 1) * period] for i in range(count)]
            if (bound := _bind(blocks)) is not None and not _escapes(blocks, kept, readers):
                options.append((len(bound[1]), start))
        if options:
            return min(options)[1], period, count
    return None


def _bind(
    blocks: Sequence[Sequence[Node]],
) -> tuple[dict[Node, tuple[Node, ...]], dict[Node, int]] | None:
    """Inputs and carried values of alike blocks, or None where they are wired differently."""
    places = [{node: at for at, node in enumerate(block)} for block in blocks]
    inputs: dict[Node, tuple[Node, ...]] = {}
    carried: dict[Node, int] = {}
    for at in range(len(blocks[0])):
        for operands in zip(*(_operands(block[at]) for block in blocks), strict=True):
            read = tuple(o.node for o in operands)
            inside = [places[i].get(node) for i, node in enumerate(read)]
            if inside[0] is not None:
                if any(place != inside[0] for place in inside):
                    return None
                continue
            if (
                any(place is not None for place in inside)
                or inputs.setdefault(read[0], read) != read
            ):
                return None
            previous = [places[i - 1].get(read[i]) for i in range(1, len(read))]
            if previous and previous[0] is not None:
                if any(place != previous[0] for place in previous):
                    return None
                carried[read[0]] = previous[0]
            elif any(node != read[0] for node in read) and any(n.op != "Input" for n in read):
                return None
    return inputs, carried


def _escapes(blocks: Sequence[Sequence[Node]], kept: set[Node], readers: Readers) -> bool:
    """Whether a block other than the last has a value that something besides the next block reads.

    A state's new value may be kept in every block, provided that it is kept in all of them.
    """
    home = {node: i for i, block in enumerate(blocks) for node in block}
    for node, i in home.items():
        if i < len(blocks) - 1 and any(
            home.get(r) not in (i, i + 1) for r in readers.get(node, ())
        ):
            return True
    return any(len({block[at] in kept for block in blocks}) > 1 for at in range(len(blocks[0])))


def _region(blocks: tuple[tuple[Node, ...], ...], nodes: Sequence[Node], kept: set[Node]) -> Region:
    bound = _bind(blocks)
    assert bound is not None
    inputs, carried = bound
    last = set(blocks[-1])
    read_outside = {
        o.node for n in nodes if n not in last for o in _operands(n) if o.node in last
    } | (kept & last)
    results = {at for at, node in enumerate(blocks[-1]) if node in read_outside}
    return Region(blocks, inputs, carried, tuple(sorted(results | set(carried.values()))))
