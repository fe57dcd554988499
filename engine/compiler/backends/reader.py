"""From the neutral form to a `Graph`."""

from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from typing import Any

from engine.compiler.backends.aten.elementwise import ELEMENTWISE
from engine.compiler.backends.aten.layers import LAYERS
from engine.compiler.backends.aten.movement import MOVEMENT
from engine.compiler.backends.aten.reductions import REDUCTIONS
from engine.compiler.backends.aten.site import Site, Table, Value
from engine.compiler.backends.foreign import (
    Argument,
    ForeignGraph,
    ForeignNode,
    Ref,
    Result,
    UnsupportedError,
)
from engine.compiler.graph import Graph
from engine.compiler.shape import ShapeError
from engine.compiler.tensor import Tensor

_ANY_SIZE = 2**31 - 1
OPERATIONS: Table = {**ELEMENTWISE, **MOVEMENT, **REDUCTIONS, **LAYERS}


@dataclass(frozen=True)
class ReadGraph:
    """A graph and its tensors: `inputs` and `outputs` in the foreign graph's order, `weights` by their keys."""

    graph: Graph
    inputs: tuple[Tensor, ...]
    weights: dict[str, Tensor]
    outputs: tuple[Tensor, ...]


def read(foreign: ForeignGraph) -> ReadGraph:
    """The same computation in tensors of the frontend.

    Raises `UnsupportedError` that names every operation that is not known, or the node and what of it is not.
    """
    unknown = {n.op for n in foreign.nodes} - OPERATIONS.keys() - {"getitem"}
    if unknown:
        raise UnsupportedError(f"unknown operations: {', '.join(sorted(unknown))}")
    graph = Graph()
    for name, sizes in foreign.symbols.items():
        graph.dim(name, sizes.min, _ANY_SIZE if sizes.max is None else sizes.max)
    values: dict[str, Value] = {}
    inputs, weights = [], {}
    for given in foreign.inputs:
        key = given.weight or given.name
        tensor = graph.named_tensor(key, given.result.shape, given.result.dtype)
        values[given.name] = tensor
        if given.weight is None:
            inputs.append(tensor)
        else:
            weights[given.weight] = tensor.persist()
    for node in foreign.nodes:
        values[node.name] = _value(graph, node, values)

    def tensor_of(name: str) -> Tensor:
        found = values[name]
        if not isinstance(found, Tensor):
            raise UnsupportedError(f"{name} is not one tensor")
        return found

    for name, new in foreign.updates.items():
        tensor_of(name).assign(_dense(tensor_of(new)))
    outputs = tuple(tensor_of(name).output() for name in foreign.outputs)
    return ReadGraph(graph, tuple(inputs), weights, outputs)


def _dense(value: Tensor) -> Tensor:
    return value if value.is_dense and value.node.op != "Input" else value.copy()


def _value(graph: Graph, node: ForeignNode, values: dict[str, Value]) -> Value:
    def argument(given: Argument) -> Any:
        match given:
            case Ref():
                return values[given.name]
            case tuple():
                return [argument(x) for x in given]
            case _:
                return given

    if node.op == "getitem":
        several, at = (argument(a) for a in node.args)
        if several[at] is None:
            raise UnsupportedError(f"{node.args[0]}: its result {at} is not supported")
        return several[at]  # type: ignore[no-any-return]
    site = Site(graph, node.name, node.op, node.results)
    kwargs = {key: argument(value) for key, value in node.kwargs.items()}
    meaning: Callable[..., Value] = OPERATIONS[node.op]
    try:
        bound = signature(meaning).bind(site, *(argument(a) for a in node.args), **kwargs)
    except TypeError as error:
        raise UnsupportedError(f"{node.op} ({node.name}): {error}") from error
    try:
        made = meaning(*bound.args, **bound.kwargs)
    except ShapeError as error:
        raise UnsupportedError(f"{node.op} ({node.name}): {error}") from error
    if isinstance(made, Tensor):
        return _as(node, made, node.results[0])
    return tuple(
        None if x is None else _as(node, x, want)
        for x, want in zip(made, node.results, strict=True)
    )


def _as(node: ForeignNode, made: Tensor, want: Result) -> Tensor:
    """A result in the type that the node has; a shape that differs from the node's is refused.

    The first elements of a larger value are copied: an operation may take their place for all of that value.
    """
    if made.shape != want.shape:
        raise UnsupportedError(
            f"{node.op} ({node.name}) has shape {want.shape} there and {made.shape} here"
        )
    part = made.view.is_contiguous and not made.is_dense
    return (made.copy() if part and made.shape else made).cast(want.dtype)
