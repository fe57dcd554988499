"""The neutral form of a graph that another framework made: named nodes of its operations, which JSON can hold.

The operations are those of PyTorch's core ATen set, under their full names (`aten.add.Tensor`), with its arguments.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from engine.compiler.dtype import DType
from engine.compiler.shape import Dim, Shape, parse_dim


class UnsupportedError(ValueError):
    """The graph has operations, arguments or types that the compiler does not have; the message names all of them."""


@dataclass(frozen=True)
class Ref:
    """The value of an input or of a node, by its name."""

    name: str


Argument = None | bool | int | float | str | Dim | DType | Ref | tuple["Argument", ...]


@dataclass(frozen=True)
class Result:
    shape: Shape
    dtype: DType


@dataclass(frozen=True)
class ForeignInput:
    """An input; `weight` is the key of its data where it is a parameter or a buffer of the model."""

    name: str
    result: Result
    weight: str | None = None


@dataclass(frozen=True)
class ForeignNode:
    """One operation. It has several `results` where its value is a tuple, of which `getitem` takes one."""

    name: str
    op: str
    args: tuple[Argument, ...]
    kwargs: Mapping[str, Argument]
    results: tuple[Result, ...]


@dataclass(frozen=True)
class SymbolRange:
    """Values that a symbol can have (`max` None: no limit), and the one of the example that was exported."""

    min: int
    max: int | None
    example: int


@dataclass(frozen=True)
class ForeignGraph:
    """`nodes` stand in an order in which they can run; `outputs` are names of values; `updates` are the weights' inputs
    that an execution changes -> the names of their new values."""

    inputs: tuple[ForeignInput, ...]
    nodes: tuple[ForeignNode, ...]
    outputs: tuple[str, ...]
    updates: Mapping[str, str] = field(default_factory=dict)
    symbols: Mapping[str, SymbolRange] = field(default_factory=dict)

    def to_json(self) -> str:
        """The graph as text, a node a line."""
        parts: dict[str, Any] = {
            "inputs": [[i.name, *_write_result(i.result), i.weight] for i in self.inputs],
            "nodes": [_write_node(n) for n in self.nodes],
            "outputs": list(self.outputs),
            "updates": dict(self.updates),
            "symbols": {s: [r.min, r.max, r.example] for s, r in self.symbols.items()},
        }
        lines = []
        for key, value in parts.items():
            rows = [json.dumps(row, allow_nan=False) for row in value] if key in _LONG else []
            text = "[\n" + ",\n".join(rows) + "\n]" if rows else json.dumps(value)
            lines.append(f"{json.dumps(key)}: {text}")
        return "{\n" + ",\n".join(lines) + "\n}\n"

    @staticmethod
    def from_json(text: str) -> "ForeignGraph":
        """The graph that `to_json` wrote."""
        data = json.loads(text)
        return ForeignGraph(
            tuple(
                ForeignInput(name, _read_result((shape, dtype)), weight)
                for name, shape, dtype, weight in data["inputs"]
            ),
            tuple(_read_node(n) for n in data["nodes"]),
            tuple(data["outputs"]),
            data["updates"],
            {s: SymbolRange(*r) for s, r in data["symbols"].items()},
        )


_LONG = ("inputs", "nodes")


def _write_node(node: ForeignNode) -> list[Any]:
    kwargs = {k: _write(v) for k, v in node.kwargs.items()}
    return [
        node.name,
        node.op,
        [_write(a) for a in node.args],
        kwargs,
        [_write_result(r) for r in node.results],
    ]


def _read_node(data: list[Any]) -> ForeignNode:
    name, op, args, kwargs, results = data
    return ForeignNode(
        name,
        op,
        tuple(_read(a) for a in args),
        {k: _read(v) for k, v in kwargs.items()},
        tuple(_read_result(r) for r in results),
    )


def _write_result(result: Result) -> list[Any]:
    return [[str(d) if isinstance(d, Dim) else d for d in result.shape], result.dtype.value]


def _read_result(data: Any) -> Result:
    shape, dtype = data
    return Result(tuple(parse_dim(d) if isinstance(d, str) else d for d in shape), DType(dtype))


def _write(value: Argument) -> Any:
    """Numbers and texts as they are; what JSON has no form for as an object of one key."""
    match value:
        case Ref():
            return {"ref": value.name}
        case Dim():
            return {"dim": str(value)}
        case DType():
            return {"dtype": value.value}
        case tuple():
            return [_write(v) for v in value]
        case float() if not isfinite(value):
            return {"float": str(value)}
        case _:
            return value


def _read(value: Any) -> Argument:
    match value:
        case list():
            return tuple(_read(v) for v in value)
        case {"ref": str(name)}:
            return Ref(name)
        case {"dim": str(text)}:
            return parse_dim(text)
        case {"dtype": str(text)}:
            return DType(text)
        case {"float": str(text)}:
            return float(text)
        case None | bool() | int() | float() | str():
            return value
        case _:
            raise ValueError(f"no argument is written {value!r}")
