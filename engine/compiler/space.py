"""The search space: for each region, the classes of equal values and the e-nodes that can make each."""

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property
from time import perf_counter
from typing import Any

from engine.compiler.egraph import EGraph
from engine.compiler.emit import emit_region, is_weight
from engine.compiler.graph import Graph, Node
from engine.compiler.options import CompileOptions
from engine.compiler.regions import Region, partition
from engine.ops.base import Kernel
from engine.ops.registry import RULESETS, all_ops, program_text

EXPRESSION_OPS = frozenset({"Load", "Const", "Index", "Un", "Bin", "Tri", "To"})


@dataclass(frozen=True)
class ENode:
    """One way to make a class's value: an op with decoded parameters, over other classes."""

    op: str
    params: tuple[Any, ...]
    children: tuple[int, ...]
    variant: int = 0


@dataclass
class RegionSpace:
    """Alternatives of one region. `roots[i]` is the class of the region's i-th result; `weights` names the inputs that
    are the same in every execution; `rule_s` is the time that each rule took, in seconds by its text."""

    region: Region
    classes: list[list[ENode]]
    roots: list[int]
    weights: frozenset[str]
    nodes_before_pruning: int
    saturation_s: float
    rule_s: dict[str, float]

    @property
    def node_count(self) -> int:
        return sum(len(nodes) for nodes in self.classes)

    @cached_property
    def externals(self) -> dict[int, tuple[Node, ...]]:
        """Classes that are inputs of the region -> the node that each iteration reads there."""
        read = {str(first.id): nodes for first, nodes in self.region.inputs.items()}
        return {
            c: read[enode.params[0]]
            for c, alternatives in enumerate(self.classes)
            for enode in alternatives
            if enode.op == "Input"
        }


@dataclass
class SearchSpace:
    graph: Graph
    options: CompileOptions
    regions: list[RegionSpace]
    build_s: float = field(default=0.0)

    @staticmethod
    def build(graph: Graph, kernels: Collection[str], options: CompileOptions) -> "SearchSpace":
        """Saturate every region of the graph; `kernels` are the ops that the runtime can run."""
        start = perf_counter()
        regions = [explore(region, graph, kernels) for region in partition(graph)]
        return SearchSpace(graph, options, regions, perf_counter() - start)


def explore(region: Region, graph: Graph, kernels: Collection[str]) -> RegionSpace:
    """Saturate one region and keep what the runtime can run."""
    commands, roots = emit_region(region, graph)
    egraph = EGraph()
    egraph.run(program_text())
    egraph.run(commands)
    rule_s: dict[str, float] = {}
    start = perf_counter()
    for ruleset in RULESETS:
        rule_s |= egraph.run(f"(run-schedule (saturate (run {ruleset})))")
    saturation_s = perf_counter() - start
    space = _decode(egraph.serialize(roots), region, graph, roots, frozenset(kernels))
    space.saturation_s, space.rule_s = saturation_s, rule_s
    return space


def _decode(
    data: dict[str, Any],
    region: Region,
    graph: Graph,
    roots: list[str],
    kernels: frozenset[str],
) -> RegionSpace:
    nodes: dict[str, Any] = data["nodes"]
    by_class: dict[str, list[str]] = defaultdict(list)
    for name, node in nodes.items():
        by_class[node["eclass"]].append(name)
    lists: dict[str, tuple[tuple[str, ...], str]] = {}

    def text(name: str) -> str:
        return str(nodes[name]["op"])[1:-1]

    def decode_list(eclass: str) -> tuple[tuple[str, ...], str]:
        if eclass not in lists:
            node = nodes[by_class[eclass][0]]
            if node["op"] == "Nil":
                lists[eclass] = ((), text(node["children"][0]))
            else:
                head, tail = node["children"]
                rest = decode_list(nodes[tail]["eclass"])
                lists[eclass] = ((text(head), *rest[0]), rest[1])
        return lists[eclass]

    runnable = kernels | EXPRESSION_OPS | {"Input"}
    values = sorted(c for c in by_class if c.startswith(("IR-", "FE-")))
    index = {c: i for i, c in enumerate(values)}
    classes: list[list[ENode]] = [[] for _ in values]
    total = 0
    for eclass in values:
        for name in by_class[eclass]:
            node = nodes[name]
            total += 1
            if node["op"] not in runnable or node["subsumed"]:
                continue
            params: list[Any] = []
            children = []
            for child in node["children"]:
                child_class = nodes[child]["eclass"]
                if child_class.startswith("Dims-"):
                    params.append(decode_list(child_class))
                elif child_class in index:
                    children.append(index[child_class])
                else:
                    params.append(text(child))
            op = all_ops().get(node["op"])
            for variant in range(len(op.variants) if isinstance(op, Kernel) else 1):
                found = ENode(node["op"], tuple(params), tuple(children), variant)
                classes[index[eclass]].append(found)
    for alternatives in classes:
        alternatives.sort(key=lambda n: (n.op, n.params, n.children, n.variant))
        _drop_superseded(alternatives)
    root_ids = [index[eclass] for eclass in data["root_eclasses"]]
    _drop_impossible(classes)
    for name, root in zip(roots, root_ids, strict=True):
        if not classes[root]:
            raise NoProgramError(_why_impossible(name, region, kernels))
    weights = frozenset(str(n.id) for n in region.inputs if is_weight(n, graph))
    return RegionSpace(region, classes, root_ids, weights, total, 0.0, {})


class NoProgramError(RuntimeError):
    """The runtime has no kernels that make some value of the graph."""


def _drop_superseded(alternatives: list[ENode]) -> None:
    """Drop ways that another way in the class makes pointless (a product summed element by element beside a matmul)."""
    worse: set[str] = set()
    for node in alternatives:
        if node.op in all_ops():
            worse |= all_ops()[node.op].supersedes
    alternatives[:] = [n for n in alternatives if n.op not in worse]


def _drop_impossible(classes: list[list[ENode]]) -> None:
    """Drop nodes over classes that nothing can make, until all that is left can be made."""
    users: list[set[int]] = [set() for _ in classes]
    for c, alternatives in enumerate(classes):
        for node in alternatives:
            for child in node.children:
                users[child].add(c)
    todo = [c for c, alternatives in enumerate(classes) if not alternatives]
    while todo:
        empty = todo.pop()
        for c in users[empty]:
            if classes[c]:
                classes[c][:] = [n for n in classes[c] if empty not in n.children]
                if not classes[c]:
                    todo.append(c)


def _why_impossible(root: str, region: Region, kernels: frozenset[str]) -> str:
    node = next(n for n in region.nodes if f"$n{n.id}" == root)
    return f"no kernel of this runtime makes {node.op} of shape {node.shape} (it has {', '.join(sorted(kernels))})"
