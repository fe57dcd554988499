"""What the frontend refuses, in words that say what would be right."""

import inspect
from collections.abc import Callable

import pytest

from engine.compiler.dtype import DType
from engine.compiler.graph import Graph
from engine.compiler.shape import ShapeError
from engine.compiler.tensor import Tensor

F16, I32, U4 = DType.F16, DType.I32, DType.U4
Build = Callable[[Graph], object]


def x(g: Graph, *shape: object, dtype: DType = DType.F32) -> Tensor:
    return g.tensor(shape, dtype)


REFUSED: list[tuple[Build, str]] = [
    (lambda g: x(g, 2, 3) + x(g, 3, 2), r"Add: shapes \(2, 3\) and \(3, 2\) differ"),
    (lambda g: x(g, 2) * x(g, 2, dtype=F16), "Mul: types f32 and f16 differ"),
    (lambda g: x(g, "t") + x(g, "s"), r"Add: shapes \(t,\) and \(s,\) differ"),
    (lambda g: x(g, 2, dtype=I32).sin(), "Sin needs a float tensor, not i32"),
    (lambda g: x(g, 2, 3).matmul(x(g, 2, 3)), r"matmul: \(2, 3\) x \(2, 3\) do not fit"),
    (lambda g: x(g, 2, 3).sum(2), "axis 2 is outside shape"),
    (lambda g: x(g, "t").mean(0), "have no fixed size"),
    (lambda g: x(g, 5).gather(x(g, 2)), "gather: indexes are i32, not f32"),
    (lambda g: x(g, 5).scatter(x(g, 2, dtype=I32), x(g, 3)), "scatter: indexes"),
    (lambda g: x(g, 4, 4, dtype=U4) * 2, "u4 is a type of inputs"),
    (lambda g: x(g, 4, 4, dtype=U4).gather(x(g, 2, dtype=I32)), "u4 is a type of inputs"),
    (lambda g: x(g, 4, 4).cast(U4), "u4 is a type of inputs"),
    (lambda g: (x(g, 4) * 2).persist(), "only an input can be kept"),
    (lambda g: x(g, 4).assign(x(g, 4)), "only a persisted input can be assigned"),
    (lambda g: x(g, 4).persist().assign(x(g, 5)), r"assign: \(5,\) f32 does not fit \(4,\) f32"),
    (lambda g: (g.named_tensor("w", (1,)), g.named_tensor("w", (1,))), "already has an input"),
]  # fmt: skip


@pytest.mark.parametrize(("build", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_refused(build: Build, words: str) -> None:
    with pytest.raises(ShapeError, match=words):
        build(Graph())


def test_the_caller_s_line_is_named() -> None:
    line = inspect.currentframe().f_lineno + 2  # type: ignore[union-attr]
    with pytest.raises(ShapeError, match=rf"\(test_frontend.py:{line}\)$"):
        x(Graph(), 4).pad(0, -1, 0).softmax(0)


def test_a_node_s_text_does_not_grow_with_what_it_reads() -> None:
    y = x(Graph(), 3)
    for _ in range(60):
        y = y + y
    assert len(repr(y.node)) < 100
