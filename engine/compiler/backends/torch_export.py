"""From `torch.export.ExportedProgram` to the neutral form, with the model's weights as NumPy arrays.

Nothing here knows what an operation means: the program is decomposed by torch to core ATen, and its nodes are copied.
"""

import operator
from collections.abc import Iterable, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch.export.graph_signature import InputKind, OutputKind

from engine.compiler.backends.foreign import (
    Argument,
    ForeignGraph,
    ForeignInput,
    ForeignNode,
    Ref,
    Result,
    SymbolRange,
    UnsupportedError,
)
from engine.compiler.dtype import DType
from engine.compiler.shape import Dim, symbol
from engine.ops.base import Array

_DTYPES: Mapping[Any, DType] = {
    torch.float32: DType.F32,
    torch.float16: DType.F16,
    torch.bfloat16: DType.BF16,
    torch.float8_e4m3fn: DType.F8E4M3,
    torch.float8_e5m2: DType.F8E5M2,
    torch.int32: DType.I32,
    torch.int64: DType.I64,
    torch.int8: DType.I8,
    torch.uint8: DType.U8,
    torch.bool: DType.BOOL,
}
# NumPy has no such type: the bits are taken as an integer's, and seen as ml_dtypes' type.
_BITS: Mapping[Any, tuple[Any, Any]] = {
    torch.bfloat16: (torch.int16, ml_dtypes.bfloat16),
    torch.float8_e4m3fn: (torch.uint8, ml_dtypes.float8_e4m3fn),
    torch.float8_e5m2: (torch.uint8, ml_dtypes.float8_e5m2),
}
_WEIGHTS = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
_OF_MEMORY = ("device", "layout", "memory_format", "pin_memory", "non_blocking")


def from_torch(program: Any) -> tuple[ForeignGraph, dict[str, Array]]:
    """(graph, weights by their keys in the model) of an exported program.

    Raises `UnsupportedError` where the program is more than a function of tensors and of the model's state.
    """
    core = program.run_decompositions()
    signature = core.graph_signature
    weights: dict[str, Array] = {}
    inputs = []
    values = {n.name: n.meta.get("val") for n in core.graph.nodes}
    for spec in signature.input_specs:
        name = getattr(spec.arg, "name", None)
        if name is None or not isinstance(values.get(name), torch.Tensor):
            raise UnsupportedError(f"input {name or spec.arg} is not a tensor")
        if spec.kind in _WEIGHTS:
            held = core.state_dict if spec.target in core.state_dict else core.constants
            weights[spec.target] = to_numpy(held[spec.target])
        elif spec.kind is not InputKind.USER_INPUT:
            raise UnsupportedError(f"input {name} is of kind {spec.kind.name}")
        result = _result(name, values[name])
        inputs.append(ForeignInput(name, result, spec.target if spec.kind in _WEIGHTS else None))
    nodes = tuple(_nodes(core.graph.nodes))
    by_key = {i.weight: i.name for i in inputs if i.weight}
    outputs, updates = _outputs(signature, by_key)
    for key, name in by_key.items():
        if name in updates:
            weights[key] = weights[key].copy()  # the compiled graph has a state of its own
    return ForeignGraph(tuple(inputs), nodes, outputs, updates, _symbols(core, values)), weights


def to_numpy(tensor: Any) -> Array:
    """A tensor's data in the type that the compiler holds it in."""
    held = tensor.detach().cpu().contiguous()
    if held.dtype in _BITS:
        of_bits, seen = _BITS[held.dtype]
        return np.asarray(held.view(of_bits).numpy()).view(seen)
    return np.asarray(held.numpy())


def _outputs(signature: Any, inputs: Mapping[str, str]) -> tuple[tuple[str, ...], dict[str, str]]:
    outputs, updates = [], {}
    for spec in signature.output_specs:
        name = getattr(spec.arg, "name", None)
        if spec.kind is OutputKind.BUFFER_MUTATION:
            updates[inputs[spec.target]] = spec.arg.name
        elif spec.kind is OutputKind.USER_OUTPUT and name is not None:
            outputs.append(name)
        else:
            raise UnsupportedError(f"output {spec.arg} is of kind {spec.kind.name}")
    return tuple(outputs), updates


def _nodes(nodes: Iterable[Any]) -> Iterable[ForeignNode]:
    for node in nodes:
        value = node.meta.get("val")
        # Sizes are part of the shapes, and assertions about them hold for the shapes that are in range.
        if node.op != "call_function" or value is None or isinstance(value, _SIZES):
            continue
        values = value if isinstance(value, tuple | list) else (value,)
        op = "getitem" if node.target is operator.getitem else str(node.target)
        results = tuple(_result(f"{op} ({node.name})", v) for v in values if v is not None)
        kwargs = {k: _argument(v) for k, v in node.kwargs.items() if k not in _OF_MEMORY}
        yield ForeignNode(node.name, op, tuple(map(_argument, node.args)), kwargs, results)


_SIZES = (torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool)


def _argument(value: Any) -> Argument:
    if isinstance(value, torch.fx.Node):
        held = value.meta.get("val")
        return _argument(held) if isinstance(held, _SIZES) else Ref(value.name)
    if isinstance(value, torch.SymInt):
        return _dim(value)
    if isinstance(value, tuple | list):
        return tuple(_argument(v) for v in value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if value in _DTYPES:
        return _DTYPES[value]
    return str(value)


def _result(name: str, value: Any) -> Result:
    if not isinstance(value, torch.Tensor):
        raise UnsupportedError(f"{name} gives a {type(value).__name__}, not a tensor")
    if value.dtype not in _DTYPES:
        raise UnsupportedError(f"{name} gives {value.dtype}, which the compiler does not have")
    return Result(tuple(_dim(size) for size in value.shape), _DTYPES[value.dtype])


def _dim(size: Any) -> int | Dim:
    """A size as a polynomial of its symbols."""
    if isinstance(size, int):
        return size
    total: int | Dim = 0
    for monomial, coefficient in size.node.expr.expand().as_coefficients_dict().items():
        term: int | Dim = int(coefficient)
        for base, power in monomial.as_powers_dict().items():
            if base == 1:
                continue
            if not base.is_Symbol or not power.is_Integer or power < 0 or coefficient % 1:
                raise UnsupportedError(f"size {size} is not a polynomial of the dynamic sizes")
            for _ in range(int(power)):
                term = symbol(base.name) * term
        total = total + term
    return total


def _symbols(program: Any, values: Mapping[str, Any]) -> dict[str, SymbolRange]:
    """Ranges of the sizes that are dynamic, and their values in the example that was exported."""
    examples: dict[str, int] = {}
    for value in values.values():
        for size in getattr(value, "shape", ()):
            if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
                examples[size.node.expr.name] = int(size.node.hint)
    ranges = {}
    for name, example in examples.items():
        bounds = next(r for s, r in program.range_constraints.items() if s.name == name)
        limit = int(bounds.upper) if bounds.upper.is_Integer else None
        ranges[name] = SymbolRange(int(bounds.lower), limit, example)
    return ranges
