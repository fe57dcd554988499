"""From choices to programs: a genome picks one e-node a class; extraction lists the instructions that it runs."""

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from engine.compiler.dtype import DType
from engine.compiler.regions import Region
from engine.compiler.shape import Dim, View
from engine.compiler.space import EXPRESSION_OPS, ENode, RegionSpace
from engine.ops.base import Call, Fold, Op, Spec
from engine.ops.elementwise.primitives import result_type
from engine.ops.expression import Expression
from engine.ops.registry import all_ops
from engine.ops.views import as_shape, as_view

Genome = tuple[int, ...]  # for each class, which of its e-nodes


InstructionCost = Callable[["Instruction"], float]
Done = dict[int, "Instruction | None"]  # what makes a class; None for an input of the region


class CyclicChoice(Exception):
    """A genome's choices need a value to make itself."""


@dataclass(frozen=True)
class Instruction:
    """One op to run: `output` and `inputs` are classes of the region's space.

    `key` tells apart instructions that run different code; equal keys cost the same.
    """

    op: Op
    call: Call
    variant: int
    output: int
    inputs: tuple[int, ...]
    constant: bool
    key: str = field(compare=False)

    @property
    def spec(self) -> Spec:
        return self.op.spec(self.call)


class Extractor:
    """Extraction from one region's space; remembers what it has built."""

    def __init__(self, space: RegionSpace) -> None:
        self.space = space
        self._externals = {str(node.id): node for node in space.region.inputs}
        self._cache: dict[tuple[int, ...], Instruction] = {}
        self._symbols = _symbols(space.region)

    def cheapest(self, cost: "InstructionCost") -> Genome:
        """The genome that is cheapest as a tree, by Knuth's generalisation of Dijkstra's algorithm: never cyclic.

        A value that is used twice is paid twice here; `improve` mends what that misjudges.
        """
        return self._grow(lambda c, i, choice, done: self._price(c, i, choice, done, cost))

    def random(self, rng: random.Random) -> Genome:
        """A random acyclic genome."""
        return self._grow(lambda *_: rng.expovariate(1.0))

    def _grow(self, price: Callable[[int, int, list[int], "Done"], float]) -> Genome:
        classes = self.space.classes
        users: list[list[tuple[int, int]]] = [[] for _ in classes]
        missing: dict[tuple[int, int], set[int]] = {}
        total: list[float | None] = [None] * len(classes)
        choice = [0] * len(classes)
        done: Done = {}
        heap: list[tuple[float, int, int]] = []

        def offer(c: int, i: int) -> None:
            children = set(classes[c][i].children)
            below = sum(total[child] or 0.0 for child in children)
            heappush(heap, (below + price(c, i, choice, done), c, i))

        for c, alternatives in enumerate(classes):
            for i, node in enumerate(alternatives):
                missing[c, i] = set(node.children)
                for child in missing[c, i]:
                    users[child].append((c, i))
                if not node.children:
                    offer(c, i)
        while heap:
            value, c, i = heappop(heap)
            if total[c] is not None:
                continue
            total[c], choice[c] = value, i
            self._settle(c, choice, done)
            for user, j in users[c]:
                waiting = missing[user, j]
                waiting.discard(c)
                if not waiting and total[user] is None:
                    offer(user, j)
        return tuple(choice)

    def _settle(self, c: int, choice: Sequence[int], done: "Done") -> None:
        node = self._node(c, choice)
        if node.op == "Input":
            done[c] = None
        elif node.op not in EXPRESSION_OPS:
            inputs, signature = self._reads(c, choice)
            done[c] = self._instruction(c, node, inputs, signature, choice, done)

    def _price(
        self, c: int, i: int, choice: list[int], done: "Done", cost: "InstructionCost"
    ) -> float:
        if self.space.classes[c][i].op in EXPRESSION_OPS or self.space.classes[c][i].op == "Input":
            return 0.0
        before, choice[c] = choice[c], i
        try:
            inputs, signature = self._reads(c, choice)
            node = self._node(c, choice)
            return cost(self._instruction(c, node, inputs, signature, choice, done))
        finally:
            choice[c] = before

    def instructions(self, genome: Genome) -> list[Instruction]:
        """What the genome runs, in order; raises `CyclicChoice`."""
        done: Done = {}
        order: list[Instruction] = []
        entered: set[int] = set()
        stack = list(reversed(self.space.roots))
        while stack:
            c = stack[-1]
            if c in done:
                stack.pop()
                continue
            node = self._node(c, genome)
            if node.op == "Input":
                done[c] = None
                continue
            inputs, signature = self._reads(c, genome)
            waiting = [i for i in inputs if i not in done]
            if waiting:
                if c in entered:
                    raise CyclicChoice
                entered.add(c)
                stack += reversed(waiting)
                continue
            instruction = self._instruction(c, node, inputs, signature, genome, done)
            done[c] = instruction
            order.append(instruction)
            entered.discard(c)
        return order

    def _node(self, c: int, genome: Sequence[int]) -> ENode:
        return self.space.classes[c][genome[c]]

    def _reads(self, c: int, genome: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """IR classes that the chosen node of a class reads, and the choices that decided so."""
        node = self._node(c, genome)
        inputs: list[int] = []
        signature = [c, genome[c]]
        if not self._has_expression(node):
            return node.children, tuple(signature)
        inputs += node.children[:-1]
        todo, depth = [node.children[-1]], 0
        while todo:
            depth += 1
            if depth > 4096:
                raise CyclicChoice
            e = todo.pop()
            inner = self._node(e, genome)
            signature += (e, genome[e])
            if inner.op == "Load":
                if inner.children[0] not in inputs[len(node.children) - 1 :]:
                    inputs.append(inner.children[0])
            else:
                todo += reversed(inner.children)
        return tuple(inputs), tuple(signature)

    @staticmethod
    def _has_expression(node: ENode) -> bool:
        return all_ops()[node.op].takes_expression

    def _instruction(
        self,
        c: int,
        node: ENode,
        inputs: tuple[int, ...],
        signature: tuple[int, ...],
        genome: Sequence[int],
        done: "Done",
    ) -> Instruction:
        constant = all(
            made.constant if (made := done[i]) else self._is_weight(i, genome) for i in inputs
        )
        # The inputs' own makers decide nothing but their specs and constancy, which is the same for equal classes.
        cached = (*signature, int(constant))
        if cached not in self._cache:
            specs = tuple(
                made.spec if (made := done[i]) else self._external(i, genome) for i in inputs
            )
            op = all_ops()[node.op]
            expression = None
            if op.takes_expression:
                own = len(node.children) - 1
                leaves = {leaf: n for n, leaf in enumerate(inputs[own:])}
                leaf_specs = dict(zip(inputs[own:], specs[own:], strict=True))
                expression = self._expression(node.children[-1], genome, leaves, leaf_specs)
            call = Call(node.params, specs, expression)
            fixed = isinstance(op, Fold) or (
                constant and not self._depends_on_dims(call, op.spec(call))
            )
            key = f"{node.op} {node.params} v{node.variant} {expression!r} {specs}"
            self._cache[cached] = Instruction(op, call, node.variant, c, inputs, fixed, key)
        return self._cache[cached]

    def _depends_on_dims(self, call: Call, spec: Spec) -> bool:
        words = _words((call.params, call.expression, str(spec.shape)))
        return not self._symbols.isdisjoint(words)

    def _external(self, c: int, genome: Sequence[int]) -> Spec:
        node = self._externals[self._node(c, genome).params[0]]
        return Spec(node.shape, node.dtype)

    def _is_weight(self, c: int, genome: Sequence[int]) -> bool:
        return self._node(c, genome).params[0] in self.space.weights

    def _expression(
        self, e: int, genome: Sequence[int], leaves: dict[int, int], specs: dict[int, Spec]
    ) -> Expression:
        node = self._node(e, genome)
        children = tuple(
            self._expression(child, genome, leaves, specs)
            for child in node.children
            if node.op != "Load"
        )
        match node.op:
            case "Load":
                leaf = node.children[0]
                view = as_view(node.params[1], as_shape(node.params[0]))
                return Expression("Load", specs[leaf].dtype, (), (leaves[leaf], view))
            case "Const":
                return Expression("Const", DType(node.params[1]), (), node.params[0])
            case "Index":
                view = as_view(node.params[1], as_shape(node.params[0]))
                return Expression("Iota", DType.I32, (), view)
            case "To":
                return Expression("Cast", DType(node.params[0]), children)
            case _:
                name = node.params[0]
                return Expression(name, result_type(name, *(x.dtype for x in children)), children)


def _symbols(region: Region) -> frozenset[str]:
    """Every symbol that a region's nodes or their views name."""
    shapes = [(*n.shape, *n.attrs) for n in (*region.nodes, *region.inputs)]
    shapes += [o.view.shape for n in region.nodes for o in n.inputs]
    return frozenset(s for shape in shapes for d in shape if isinstance(d, Dim) for s in d.symbols)


def _words(value: object) -> Iterator[str]:
    """The identifiers in parameters and expressions: symbols, and names of other things."""
    match value:
        case str():
            yield from re.findall(r"[^\W\d]\w*", value)
        case Expression():
            yield from (word for e in value.walk() for word in _words(e.data))
        case View():
            yield from _words(str(value))
        case tuple():
            yield from (word for item in value for word in _words(item))


def reachable(space: RegionSpace, genome: Genome) -> list[int]:
    """Classes that a genome uses, expressions included."""
    seen: dict[int, None] = {}
    todo = list(space.roots)
    while todo:
        c = todo.pop()
        if c not in seen:
            seen[c] = None
            todo += space.classes[c][genome[c]].children
    return list(seen)
