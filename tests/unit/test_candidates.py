"""Every program that the search may choose computes what the graph says: random graphs, random genomes, both runtimes.

Beside each tensor of a random graph goes its value by NumPy in double precision, rounded to the tensor's type after
every operation: an account of the graph that shares no code with the compiler.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from candidates import TOLERANCE, assert_close, native, outputs_of, random_programs, space_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_llama import TinyLlama

from engine.compiler import nn
from engine.compiler.dtype import DType
from engine.compiler.graph import Graph
from engine.compiler.options import CompileOptions
from engine.compiler.shape import ShapeError, evaluate, symbol
from engine.compiler.tensor import Tensor
from engine.ops.base import Array
from engine.ops.views import view_text
from engine.runtimes.base import Runtime
from engine.runtimes.reference import ReferenceRuntime

F32, F16, BF16, I32 = DType.F32, DType.F16, DType.BF16, DType.I32
DIMS = {"t": 3}
GENOMES = 6


@dataclass
class Value:
    """A tensor and what it is."""

    tensor: Tensor
    array: Array  # float64 or int64


class Built:
    """A graph under construction, with the data of its inputs."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw, self.graph = draw, Graph()
        self.data: dict[Tensor, Array] = {}
        self.values: list[Value] = []

    def __repr__(self) -> str:
        lines = [
            f"%{n.id} = {n.op}{n.attrs} {' '.join(f'%{o.node.id}[{view_text(o.view)}]' for o in n.inputs)}"
            f" : {n.dtype.value} {n.shape}"
            for n in self.graph.nodes
        ]
        outputs = [f"output %{t.node.id}" for t in self.graph.outputs]
        return "\n".join(["", *lines, *outputs])

    def value(self, tensor: Tensor, array: Array) -> Value:
        """Rounded to the tensor's type."""
        held = np.asarray(array).astype(tensor.dtype.numpy)
        wide = held.astype(np.float64 if tensor.dtype.is_float else np.int64)
        assert wide.shape == tuple(evaluate(d, DIMS) for d in tensor.shape)
        made = Value(tensor, wide)
        self.values.append(made)
        return made

    def input(self, shape: tuple[object, ...], dtype: DType = F32, high: int = 0) -> Value:
        """Numbers of about 1, or integers below `high`; kept across executions or not."""
        tensor = self.graph.tensor(shape, dtype)
        if self.draw(st.booleans()):
            tensor = tensor.persist()
        sizes = [evaluate(d, DIMS) for d in tensor.shape]
        rng = np.random.default_rng(self.draw(st.integers(0, 99)))
        numbers = rng.integers(0, high, sizes) if high else rng.uniform(-1.5, 1.5, sizes)
        made = self.value(tensor, numbers)
        self.data[tensor] = made.array.astype(dtype.numpy)
        return made

    def pick(self, *dtypes: DType, rank: int = 0) -> Value | None:
        """A value of one of the types with at least `rank` axes."""
        fitting = [
            v
            for v in self.values
            if v.tensor.dtype in dtypes and v.array.ndim >= rank and v.array.size
        ]
        return self.draw(st.sampled_from(fitting)) if fitting else None


Step = Callable[[Built], object]


def unary(b: Built) -> None:
    if not (v := b.pick(F32, F16, BF16)):
        return
    x, a = v.tensor, v.array
    kind = b.draw(st.sampled_from(["sin", "exp2", "sqrt", "recip", "silu", "tanh"]))
    if kind == "sin":
        b.value(x.sin(), np.sin(a))
    elif v.tensor.dtype is not F32:  # what follows is several operations, each rounded
        b.value(x * 0.5, a * 0.5)
    elif kind == "exp2":
        b.value(x.sin().exp2(), np.exp2(np.sin(a)))
    elif kind == "sqrt":
        b.value((x * x + 1.0).sqrt(), np.sqrt(a * a + 1))
    elif kind == "recip":
        b.value((x * x + 1.0).recip(), 1 / (a * a + 1))
    elif kind == "silu":
        b.value(x.silu(), a / (1 + np.exp(-a)))
    else:
        b.value(x.tanh(), np.tanh(a))


def binary(b: Built) -> None:
    if not (v := b.pick(F32, F16, BF16, I32)):
        return
    same = [
        w for w in b.values if w.tensor.shape == v.tensor.shape and w.tensor.dtype == v.tensor.dtype
    ]
    w = b.draw(st.sampled_from(same))
    if b.draw(st.booleans()):
        b.value(v.tensor + w.tensor, v.array + w.array)
    elif v.tensor.dtype is I32:
        b.value(v.tensor % 5, np.fmod(v.array, 5))
    else:
        b.value(v.tensor * w.tensor, v.array * w.array)


def move(b: Built) -> None:
    if not (v := b.pick(F32, F16, BF16, I32, rank=1)):
        return
    x, a = v.tensor, v.array
    axis = b.draw(st.integers(0, a.ndim - 1))
    try:
        match b.draw(st.sampled_from(["permute", "flip", "slice", "split", "merge", "expand"])):
            case "permute":
                order = b.draw(st.permutations(range(a.ndim)))
                b.value(x.permute(*order), a.transpose(order))
            case "flip":
                b.value(x.flip(axis), np.flip(a, axis))
            case "slice" if a.shape[axis] > 1:
                b.value(x.slice(axis, 1, x.shape[axis]), a.take(range(1, a.shape[axis]), axis))
            case "split" if a.shape[axis] % 2 == 0:
                cut = (*a.shape[:axis], a.shape[axis] // 2, 2, *a.shape[axis + 1 :])
                b.value(x.split(axis, 2), a.reshape(cut))
            case "merge" if axis + 1 < a.ndim:
                joined = a.shape[axis] * a.shape[axis + 1]
                b.value(x.merge(axis), a.reshape(*a.shape[:axis], joined, *a.shape[axis + 2 :]))
            case "expand" if a.ndim < 4:
                b.value(x.expand(axis, 2), np.repeat(np.expand_dims(a, axis), 2, axis))
    except ShapeError:
        pass  # a slice or split of merged axes


def reduce(b: Built) -> None:
    if not (v := b.pick(F32, F16, I32, rank=1)):
        return
    axis = b.draw(st.integers(0, v.array.ndim - 1))
    if b.draw(st.booleans()):
        b.value(v.tensor.max(axis), v.array.max(axis))
    else:
        b.value(v.tensor.sum(axis), v.array.sum(axis))


def normalise(b: Built) -> None:
    if not (v := b.pick(F32, rank=1)):
        return
    x, a = v.tensor, v.array
    if a.ndim == 2 and isinstance(x.shape[1], int) and b.draw(st.booleans()):
        w = b.input((x.shape[1],), b.draw(st.sampled_from([F32, BF16])))
        scale = 1 / np.sqrt((a * a).mean(1, keepdims=True) + 1e-3)
        b.value(nn.rms_norm(x, w.tensor, 1e-3), a * scale * w.array)
    else:
        axis = b.draw(st.integers(0, a.ndim - 1))
        e = np.exp(a - a.max(axis, keepdims=True))
        b.value(x.softmax(axis), e / e.sum(axis, keepdims=True))


def project(b: Built) -> None:
    if (
        not (v := b.pick(F32, rank=2))
        or v.array.ndim != 2
        or not isinstance(v.tensor.shape[1], int)
    ):
        return
    n, k = b.draw(st.sampled_from([1, 3, 9])), v.tensor.shape[1]
    w = b.input((n, k), b.draw(st.sampled_from([F32, F16, BF16])))
    y = b.value(nn.linear(v.tensor, w.tensor), v.array @ w.array.T)
    if b.draw(st.booleans()):
        up = b.input((n, k))
        gated = y.array / (1 + np.exp(-y.array)) * (v.array @ up.array.T)
        b.value(nn.swiglu(y.tensor, nn.linear(v.tensor, up.tensor)), gated)


def multiply(b: Built) -> None:
    if not (v := b.pick(F32, rank=2)):
        return
    rank = v.array.ndim
    b.value(
        v.tensor.matmul(v.tensor.transpose(rank - 2, rank - 1)), v.array @ v.array.swapaxes(-1, -2)
    )


def gather(b: Built) -> None:
    if not (v := b.pick(F32, F16, I32, rank=1)):
        return
    size = v.array.size
    if v.array.ndim == 2 and isinstance(v.tensor.shape[1], int) and b.draw(st.booleans()):
        rows = b.input((4,), I32, high=v.array.shape[0])
        b.value(nn.gather_rows(v.tensor, rows.tensor), v.array[rows.array])
    else:
        at = b.input((2, 3), I32, high=size)
        b.value(v.tensor.gather(at.tensor), v.array.reshape(-1)[at.array])


def scatter(b: Built) -> None:
    if not (v := b.pick(F32, F16, I32, rank=1)):
        return
    x, out = v.tensor, v.array.reshape(-1).copy()
    at = b.input((4,), I32, high=out.size + 2)
    source = b.input((4,), x.dtype, high=9 if x.dtype is I32 else 0)
    for place, number in zip(at.array, source.array, strict=True):
        if place < out.size:
            out[place] = number
    b.value(x.scatter(at.tensor, source.tensor), out.reshape(v.array.shape))


def state(b: Built) -> None:
    """A table whose rows are written, then read: as a KV cache is."""
    if (
        not (v := b.pick(F32, F16, rank=2))
        or v.array.ndim != 2
        or not isinstance(v.tensor.shape[1], int)
    ):
        return
    width, t = v.tensor.shape[1], v.array.shape[0]
    table = b.graph.tensor((7, width), v.tensor.dtype).persist()
    before = np.arange(7 * width).reshape(7, width) / 8
    b.data[table] = before.astype(v.tensor.dtype.numpy)
    rows = b.graph.tensor((v.tensor.shape[0],), I32)
    at = np.random.default_rng(t).permutation(7)[:t] if t <= 7 else np.arange(t)
    b.data[rows] = at.astype(np.int32)
    filled = nn.scatter_rows(table, rows, v.tensor)
    table.assign(filled)
    after = before.copy()
    for row, line in zip(at, v.array, strict=True):
        if row < 7:
            after[row] = line
    b.value(filled * 2, after * 2)


def cast(b: Built) -> None:
    if v := b.pick(F32, F16, BF16, I32):
        target = b.draw(st.sampled_from([F32, F16, BF16]))
        if target is not v.tensor.dtype:
            b.value(v.tensor.cast(target), v.array)


def compare(b: Built) -> None:
    if v := b.pick(I32):
        less = v.tensor < 3
        b.value(less.cast(F32) * 2.0 + -1.0, np.where(v.array < 3, 1.0, -1.0))


STEPS: list[Step] = [
    *(unary, unary, binary, binary, move, move, reduce, normalise, project, multiply),
    *(gather, scatter, state, cast, compare),
]


@st.composite
def graphs(draw: st.DrawFn) -> Built:
    b = Built(draw)
    b.input(draw(st.sampled_from([(6,), ("t", 4), (4, 6), (2, "t", 2), (symbol("t") * 2, 5)])))
    b.input((4, 6), draw(st.sampled_from([F32, F16, BF16])))
    b.input(("t", 4), I32, high=9)
    for step in draw(st.lists(st.sampled_from(STEPS), min_size=2, max_size=8)):
        step(b)
    made = [v for v in b.values if v.tensor not in b.data]
    chosen = (
        [made[-1], *draw(st.lists(st.sampled_from(made), max_size=2))] if made else b.values[:1]
    )
    b.values = [Value(v.tensor.output(), v.array) for v in chosen]
    return b


def check(b: Built, runtime: Runtime, seed: int, count: int) -> None:
    # A value that is far larger than what it is made of has lost its digits: nothing to compare.
    if any(np.abs(v.array).max(initial=0) > 1e3 for v in b.values):
        return
    space = space_of(b.graph, runtime)
    programs = random_programs(space, seed, count, DIMS)
    for program, outputs in outputs_of(b.graph, runtime, programs, b.data, DIMS):
        for found, v in zip(outputs, b.values, strict=False):
            assert_close(found, v.array, loosest(b), program)


def loosest(b: Built) -> DType:
    """The type of a graph that rounds the most."""
    return max((n.dtype for n in b.graph.nodes), key=lambda d: TOLERANCE.get(d, 0.0))


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(graphs(), st.integers(0, 9))
def test_reference_candidates_compute_the_graph(b: Built, seed: int) -> None:
    check(b, ReferenceRuntime(), seed, GENOMES)


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(graphs(), st.integers(0, 9))
def test_native_candidates_compute_the_graph(b: Built, seed: int) -> None:
    check(b, native(), seed, GENOMES)


@pytest.mark.parametrize("leaves", [2, 15, 16, 20, 40])
def test_regions_of_many_inputs(leaves: int) -> None:
    """A kernel has 16 arguments."""
    graph = Graph()
    tensors = [graph.tensor((5,)) for _ in range(leaves)]
    total = tensors[0]
    for i, tensor in enumerate(tensors[1:], start=1):
        total = total + tensor * i  # unlike each other, so that no loop is made of them
    total.output()
    data = {t: np.ones(5, np.float32) for t in tensors}
    runtime = native()
    graph.compile(runtime, CompileOptions(search_time_limit=0))
    for tensor in tensors:
        runtime.set_data(tensor, data[tensor])
    runtime.execute()
    np.testing.assert_array_equal(runtime.get(graph.outputs[0]), 1 + sum(range(leaves)))
    programs = random_programs(space_of(graph, runtime), 0, 12, {})
    for _, [found] in outputs_of(graph, runtime, programs, data, {}):
        np.testing.assert_array_equal(found, 1 + sum(range(leaves)))


@pytest.mark.parametrize("quantised", [False, True])
def test_a_table_read_in_rows_of_two_widths(quantised: bool) -> None:
    graph, rng = Graph(), np.random.default_rng(0)
    x, rows = graph.tensor((5, 64)), graph.tensor((5,), I32)
    data = {
        x: rng.standard_normal((5, 64), np.float32),
        rows: np.array([0, 47, 13, 2, 30], np.int32),
    }
    if quantised:
        codes, scale = graph.tensor((24, 64), DType.I8).persist(), graph.tensor((24, 2)).persist()
        data[codes] = rng.integers(-128, 128, (24, 64)).astype(np.int8)
        data[scale] = rng.uniform(0.001, 0.01, (24, 2)).astype(np.float32)
        table, held = nn.dequantize(codes, scale, None), data[codes] * np.repeat(data[scale], 32, 1)
    else:
        table = graph.tensor((24, 64)).persist()
        data[table] = held = rng.standard_normal((24, 64), np.float32)
    nn.gather_rows(table.split(1, 32).merge(0), rows).output()
    nn.linear(x, table).output()
    for runtime in (ReferenceRuntime(), native()):
        programs = random_programs(space_of(graph, runtime), 0, 8, {})
        for program, outputs in outputs_of(graph, runtime, programs, data, {}):
            assert_close(outputs[0], held.reshape(48, 32)[data[rows]], F32, program)
            assert_close(outputs[1], data[x] @ held.T, F32, program)


# -- a small Llama ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("held", "count"), [(F32, 16), (BF16, 16), (DType.U4, 60), (DType.I8, 16)], ids=str
)
@pytest.mark.parametrize("runtime", ["reference", "native"])
def test_candidates_of_a_llama_step(held: DType, count: int, runtime: str) -> None:
    llama = TinyLlama(layers=2, held=held)
    data, dims = llama.batch()
    made = native() if runtime == "native" else ReferenceRuntime()
    programs = random_programs(space_of(llama.graph, made), 1, count, dims)
    assert len(programs) > count / 2
    want = llama.expected()
    for program, outputs in outputs_of(llama.graph, made, programs, data, dims):
        # Keys and values are rounded to f16 on both sides, but from numbers that differ in their last digits.
        np.testing.assert_allclose(outputs[0], want, rtol=0, atol=4e-3, err_msg=str(program))
