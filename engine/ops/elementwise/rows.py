"""C that evaluates an expression row by row: for kernels that reduce the last axis of what they read."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from engine.compiler.shape import Dim, Nest, Shape, View, loop_nest
from engine.ops.base import Spec
from engine.ops.elementwise.codegen import print_expression
from engine.ops.elementwise.fused import nest_index, unravel
from engine.ops.expression import Expression


class Rows(NamedTuple):
    """`leaves` declares pointers to what is read; `place` sets counters for a `row`; `loops` run over its elements, of
    which `at` is one's place in the row and `value` its value."""

    leaves: list[str]
    place: list[str]
    loops: str
    at: str
    value: str

    @property
    def macros(self) -> tuple[tuple[str, str], ...]:
        """For a template: `LEAVES` once, then `FILL_ROW`, which writes the values of `row` to `q`."""
        fill = f"{{ {' '.join(self.place)} {self.loops} q[{self.at}] = {self.value}; }}"
        return (("LEAVES", " ".join(self.leaves)), ("FILL_ROW", fill))


def rows_of(
    expression: Expression,
    shape: Shape,
    inputs: Sequence[Spec],
    first: int,
    code: Callable[["int | Dim"], str],
) -> Rows:
    """An expression over `shape`, whose leaves have the specs `inputs` and are arguments from `first` on."""
    views = expression.views
    outer = loop_nest([View.contiguous(shape[:-1]), *(View(v.axes[:-1], v.offset) for v in views)])
    inner: Nest = loop_nest([View.contiguous(shape[-1:]), *(View((v.axes[-1],)) for v in views)])
    inner = inner or [(1, (0,) * (len(views) + 1))]
    indexes = [
        f"{nest_index(outer, n, 'r', view.offset, code)} + {nest_index(inner, n, 'k', 0, code)}"
        for n, view in enumerate(views, start=1)
    ]
    return Rows(
        [f"const {x.dtype.c_type} *restrict x{n} = a[{n + first}];" for n, x in enumerate(inputs)],
        unravel([size for size, _ in outer], code),
        " ".join(
            f"for (long k{n} = 0; k{n} < {code(size)}; k{n}++)" for n, (size, _) in enumerate(inner)
        ),
        nest_index(inner, 0, "k", 0, code),
        print_expression(expression, indexes, code),
    )
