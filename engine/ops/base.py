"""What an operation's folder declares.

An `Op` is one egglog constructor: its parameters' sorts, its children, the value it makes, and what that value is in
NumPy. A `Kernel` is an op that the native runtime can run: it also has C code and a cost.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from engine.compiler.dtype import DType
from engine.compiler.shape import Dim, Shape, evaluate, product
from engine.ops.expression import Expression

Dims = Mapping[str, int]
Array = np.ndarray[Any, Any]


class Spec(NamedTuple):
    """A value in memory: `shape` elements of `dtype`, row-major. A packed format is U8 bytes with a `layout` that names
    it."""

    shape: Shape
    dtype: DType
    layout: str = ""

    def bytes(self, dims: Dims) -> int:
        return (evaluate(product(self.shape), dims) * self.dtype.bits + 7) // 8


class Counts(NamedTuple):
    """Work of one execution: bytes read and written (each buffer once), and floating-point or integer operations."""

    read: float
    written: float
    flops: float


@dataclass(frozen=True)
class Call:
    """An e-node that extraction has chosen, with its parameters decoded and its children known.

    `params` follow the op's `sorts`: a Dims parameter is a Shape, a view a `View` is made by `engine.ops.views`.
    `inputs` are the specs of its IR children followed by those of the leaves of its `expression`, if it has one.
    """

    params: tuple[Any, ...]
    inputs: tuple[Spec, ...]
    expression: Expression | None = None


Meaning = Callable[..., Array]


@dataclass(frozen=True)
class Op:
    """One egglog constructor `(name sorts... IR*arity)`.

    spec(call) is the value's shape and type; meaning(call, dims, *inputs) computes it with NumPy from the inputs as
    arrays in their specs' shapes (U4 as bytes of two elements). supersedes: ops that are no candidates where this
    one is.
    """

    name: str
    sorts: tuple[str, ...]
    arity: int
    spec: Callable[[Call], Spec]
    meaning: Meaning
    takes_expression: bool = False
    supersedes: frozenset[str] = frozenset()


class Source(NamedTuple):
    """C of one kernel: a template with `NAME` and upper-case macros. Kernels with equal sources are compiled once."""

    template: str
    macros: tuple[tuple[str, str], ...]

    def text(self, name: str) -> str:
        macros = (("NAME", name), *self.macros)
        return "\n".join(
            [
                *(f"#define {key} {value}" for key, value in macros),
                self.template,
                *(f"#undef {key.partition('(')[0]}" for key, _ in macros),
            ]
        )


@dataclass(frozen=True)
class Kernel(Op):
    """An op that the native runtime runs.

    source(call, code) gives its C, where code(dim) prints a dimension as a C expression. Its arguments are the output
    followed by the inputs. counts(call, dims) is its work. variants are parameter sets that the search may try, each
    passed to its template as extra macros. in_place: index of the input whose buffer the output is. efficiency: share
    of the machine's arithmetic rate that it can reach.
    """

    source: Callable[[Call, Callable[["int | Dim"], str]], Source] = field(kw_only=True)
    counts: Callable[[Call, Dims], Counts] = field(kw_only=True)
    variants: tuple[tuple[tuple[str, str], ...], ...] = field(default=((),), kw_only=True)
    in_place: int | None = field(default=None, kw_only=True)
    efficiency: float = field(default=0.5, kw_only=True)


@dataclass(frozen=True)
class Fold(Op):
    """An op that only runs at load, on weights: `meaning` returns the bytes that a native kernel reads."""


def template(module_file: str, name: str = "native.c") -> str:
    """C template beside an op's module."""
    return (Path(module_file).parent / name).read_text()
