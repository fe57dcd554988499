"""A region as egglog text: its nodes, and the facts about shapes and types that rules may ask for.

Analyses are done here, in Python, on the frontend's exact knowledge; rules match facts and never compute with shapes.
"""

from collections import Counter
from collections.abc import Callable
from itertools import pairwise

from engine.compiler.graph import Graph, Node, Operand
from engine.compiler.regions import Region
from engine.compiler.shape import Dim, View, product
from engine.ops.dense_attention import HEAD_WIDTHS, are_crossed, held_rows
from engine.ops.registry import all_ops
from engine.ops.strided_matmul import rows_and_columns
from engine.ops.views import shape_text, view_text


def emit_region(region: Region, graph: Graph) -> tuple[str, list[str]]:
    """(commands, names of the globals that hold the region's results)."""
    lines: dict[str, None] = {}
    names: dict[Node, str] = {}

    def bind(node: Node, term: str) -> None:
        names[node] = f"$n{node.id}"
        lines[f"(let {names[node]} {term})"] = None
        lines[f'(set (dtype {names[node]}) "{node.dtype.value}")'] = None

    reads = Counter(o.node for n in graph.nodes for o in n.inputs)
    for node in region.inputs:
        bind(node, f'(Input "{node.id}")')
        if is_weight(node, graph):
            lines[f"(weight {names[node]})"] = None
            if reads[node] > 1:
                lines[f"(shared {names[node]})"] = None
        if _sole_scatter(node, reads[node], graph):
            lines[f"(sole_reader {names[node]})"] = None
    for node in region.nodes:
        bind(node, _term(node, names))
        if node.expansion:
            lines[f"(union {names[node]} {names[node.expansion.node]})"] = None
        for fact in _facts(node, region):
            lines[fact] = None
    roots = [names[region.nodes[at]] for at in region.results]
    return "\n".join(lines), roots


def is_weight(node: Node, graph: Graph) -> bool:
    """Whether a node is an input that keeps its data for good."""
    return node.op == "Input" and node in graph.persisted and node not in graph.updates


def _quote(value: object) -> str:
    return f'"{value!r}"' if isinstance(value, float) else f'"{value}"'


def _term(node: Node, names: dict[Node, str]) -> str:
    views = [_read_text(o) for o in node.inputs]
    inputs = [names[o.node] for o in node.inputs]
    params: list[str]
    match node.op:
        case "Constant":
            params = [_quote(node.attrs[0]), _quote(node.dtype.value)]
        case "Iota":
            params = [shape_text(node.shape)]
        case "Cast":
            params = [shape_text(node.shape), *views, _quote(node.attrs[0].value)]
        case "SumReduce" | "MaxReduce":
            params = [shape_text(node.shape), _quote(node.inputs[0].view.shape[-1]), *views]
        case "Gather" | "Scatter":
            shapes = [shape_text(o.view.shape) for o in node.inputs[:2]]
            pairs = [text for pair in zip(shapes, views[:2], strict=True) for text in pair]
            params = [*pairs, *views[2:]]
        case _ if len(all_ops()[node.op].sorts) == len(node.inputs) + 1 and not node.expansion:
            params = [shape_text(node.shape), *views]
        case _:
            params = [shape_text(node.shape), *(_quote(a) for a in node.attrs)]
    return f"({' '.join([node.op, *params, *inputs])})"


def _read_text(operand: Operand) -> str:
    return view_text(operand.view, operand.node.shape)


def _sole_scatter(state: Node, reads: int, graph: Graph) -> bool:
    """Whether a scatter that makes a state's new value is all that reads its old one, which is read `reads` times."""
    if state not in graph.updates:
        return False
    updated = graph.updates[state].node
    return updated.op == "Scatter" and updated.inputs[0].node is state and reads == 1


def _facts(node: Node, region: Region) -> list[str]:
    facts = [f'(multiple_of_8 "{d}")' for d in node.shape if isinstance(d, int) and d % 8 == 0]
    shapes = (node.shape, *(o.view.shape for o in node.inputs))
    pairs = (pair for shape in shapes if len(shape) > 2 for pair in pairwise(shape))
    facts += [f'(grouped "{b}" "{g}" "{b * g}")' for b, g in pairs]
    if len(node.shape) == 4 and 2 in node.shape[2:]:
        facts += [f'(doubled "{2 * half}" "{half}")' for half in node.shape[2:]]
    for operand in node.inputs:
        view, shape = operand.view, operand.view.shape
        text = _read_text(operand)
        if view.is_contiguous and not view.is_first_part(operand.node.shape):
            facts.append(f"(contiguous {text} {shape_text(shape)})")
        if shape and view == View.contiguous(shape[:-1]).insert(len(shape) - 1, shape[-1]):
            facts.append(f"(repeated {shape_text(shape[:-1])} {shape_text(shape)} {text})")
        for axis in view.axes:
            for _, stride in axis:
                if isinstance(stride, int) and stride < 0:
                    facts.append(f'(negated "{stride}" "{-stride}")')
    if extra := _OF_OP.get(node.op):
        facts += extra(node, region)
    return facts


def _of_reduction(node: Node, region: Region) -> list[str]:
    size = node.inputs[0].view.shape[-1]
    facts = [f'(extended {shape_text(node.shape)} "{size}" {shape_text((*node.shape, size))})']
    if isinstance(size, int):
        constants = {n.attrs[0] for n in region.nodes if n.op == "Constant"}
        facts += [f'(reciprocal "{size}" "{c!r}")' for c in constants if c == 1.0 / size]
    return facts


def _of_scatter(node: Node, region: Region) -> list[str]:
    shape = node.inputs[1].view.shape
    if len(shape) != 2:
        return []
    t, width = shape
    same: dict[tuple[int | Dim, ...], None] = {
        n.shape: None
        for n in region.nodes
        if n.shape and n.shape[0] == t and product(n.shape[1:]) == width
    }
    return [f'(rows_of "{t}" "{width}" {shape_text(s)})' for s in same]


def _of_product(node: Node, region: Region) -> list[str]:
    del region
    facts = []
    for a, b in (node.inputs, node.inputs[::-1]):
        texts = f"{_read_text(a)} {_read_text(b)}"
        if len(a.view.axes) > 1 and rows_and_columns(a.view, b.view):
            facts.append(f"(outer {texts})")
        if are_crossed(a.view, b.view):
            facts.append(f"(crossed {texts})")
            if node.shape[-1] in HEAD_WIDTHS:
                facts.append(f'(head_width "{node.shape[-1]}")')
        rows = held_rows(a.view)
        if rows and node.shape[-2] in HEAD_WIDTHS:
            facts.append(f"(held_rows {_read_text(a)} {shape_text(rows)})")
    return facts


_OF_OP: dict[str, Callable[[Node, Region], list[str]]] = {
    "Mul": _of_product,
    "SumReduce": _of_reduction,
    "MaxReduce": _of_reduction,
    "Scatter": _of_scatter,
}
