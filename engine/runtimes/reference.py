"""The NumPy runtime: obvious and slow, it runs each op's meaning.

It is the oracle of every test, and the fallback where there is no C compiler.
"""

from collections.abc import Mapping

import numpy as np

from engine.compiler.graph import Node
from engine.compiler.program import Phase, Program
from engine.compiler.tensor import Tensor
from engine.ops.base import Array
from engine.ops.registry import graph_ops
from engine.ops.views import sizes
from engine.runtimes.base import Runtime


class ReferenceRuntime(Runtime):
    """Runs lifted and primitive ops with NumPy. What depends only on weights is computed once."""

    kernels = graph_ops()

    def __init__(self) -> None:
        super().__init__()
        self._values: dict[Node, Array] = {}
        self._dims: Mapping[str, int] = {}
        self._settled = False
        self._folded: dict[Phase, list[dict[int, Array]]] = {}

    def _changed(self, node: Node) -> None:
        if self._graph is not None and node in self._graph.persisted:
            self._prepare()

    def _prepare(self) -> None:
        self._settled = False
        self._folded.clear()

    def settle(self) -> None:
        if self._settled:
            return
        self._settled = True
        for program in self.programs.programs:
            for phase in program.phases:
                if phase not in self._folded:
                    self._folded[phase] = [self._fold(phase, i) for i in range(phase.iterations)]
                read = {c for i in phase.steps for c in i.inputs} & phase.space.externals.keys()
                for node in {n for c in read for n in phase.space.externals[c]}:
                    if callable(self._data.get(node)):
                        self._data[node] = self.data(node)

    def _run(self, program: Program, dims: Mapping[str, int]) -> None:
        assert self._graph is not None
        self._values, self._dims = {}, dict(dims)
        self.settle()
        for phase in program.phases:
            self._run_phase(phase, dims)
        for state, tensor in self._graph.updates.items():
            self._data[state] = self._values[tensor.node]

    def _run_phase(self, phase: Phase, dims: Mapping[str, int]) -> None:
        region = phase.space.region
        for i, block in enumerate(region.blocks):
            known = dict(self._folded[phase][i])
            for instruction in phase.steps:
                inputs = [self._input(phase, c, i, known) for c in instruction.inputs]
                value = instruction.op.meaning(instruction.call, dims, *inputs)
                known[instruction.output] = np.asarray(value)
            for at, root in zip(region.results, phase.space.roots, strict=True):
                self._values[block[at]] = self._input(phase, root, i, known)

    def _fold(self, phase: Phase, iteration: int) -> dict[int, Array]:
        known: dict[int, Array] = {}
        for instruction in phase.folds:
            inputs = [self._input(phase, c, iteration, known) for c in instruction.inputs]
            known[instruction.output] = instruction.op.meaning(instruction.call, {}, *inputs)
        return known

    def _input(self, phase: Phase, c: int, iteration: int, known: dict[int, Array]) -> Array:
        if c in known:
            return known[c]
        node = phase.space.externals[c][iteration]
        return self.data(node) if node.op == "Input" else self._values[node]

    def get(self, tensor: Tensor) -> Array:
        node = tensor.node
        if node.op == "Input":
            return np.array(self.data(node))
        return np.array(self._values[node]).reshape(sizes(tensor.shape, self._dims))
