"""A fused element-wise region: `(Fused shape expression)` evaluates an expression for each element of `shape`."""

from collections.abc import Callable, Sequence

import numpy as np

from engine.compiler.dtype import DType
from engine.compiler.shape import Axis, Dim, Nest, View, evaluate, loop_nest, product
from engine.ops.base import Array, Call, Counts, Dims, Kernel, Source, Spec
from engine.ops.elementwise.codegen import print_expression, store
from engine.ops.elementwise.primitives import FUNCTIONS, convert, number
from engine.ops.expression import Expression
from engine.ops.views import as_shape, read, sizes

_CHUNK = 8192  # elements that a thread claims at a time


def evaluate_expression(e: Expression, leaves: Sequence[tuple[Array, Spec]], dims: Dims) -> Array:
    """An expression's value with NumPy, in its iteration shape (constants broadcast)."""
    match e.op:
        case "Load":
            number_of_leaf, view = e.data
            array, spec = leaves[number_of_leaf]
            return read(array, spec, view, dims)
        case "Const":
            return number(e.data, e.dtype, dims)
        case "Iota":
            # Element z of an iota is z, so a view of it reads its own index.
            length = 1 + max_index(e.data, dims)
            return read(np.arange(length, dtype=np.int32), Spec((length,), DType.I32), e.data, dims)
    values = [evaluate_expression(child, leaves, dims) for child in e.children]
    with np.errstate(all="ignore"):
        if e.op == "Cast":
            return convert(values[0], e.dtype)
        return FUNCTIONS[e.op](*values)


def max_index(view: View, dims: Dims) -> int:
    """Largest flat index that a view reads."""
    total = evaluate(view.offset, dims)
    for axis in view.axes:
        for size, stride in axis:
            total += max(0, (evaluate(size, dims) - 1) * evaluate(stride, dims))
    return total


def _spec(call: Call) -> Spec:
    assert call.expression is not None
    return Spec(as_shape(call.params[0]), call.expression.dtype)


def _meaning(call: Call, dims: Dims, *inputs: Array) -> Array:
    assert call.expression is not None
    value = evaluate_expression(call.expression, list(zip(inputs, call.inputs, strict=True)), dims)
    shape = sizes(as_shape(call.params[0]), dims)
    return np.array(np.broadcast_to(value, shape), order="C")


def _counts(call: Call, dims: Dims) -> Counts:
    assert call.expression is not None
    spec = _spec(call)
    count = evaluate(product(spec.shape), dims)
    operations = sum(1 for e in call.expression.walk() if e.children)
    return Counts(leaf_bytes(call.expression, dims), spec.bytes(dims), operations * count)


def leaf_bytes(e: Expression, dims: Dims) -> float:
    """Bytes that an expression's loads touch; a repeated (stride 0) axis is read once, equal loads count once."""
    total = 0.0
    for leaf, view, dtype in {(x.data[0], x.data[1], x.dtype) for x in e.walk() if x.op == "Load"}:
        del leaf
        distinct = [
            evaluate(size, dims) for axis in view.axes for size, stride in axis if stride != 0
        ]
        total += float(np.prod(distinct, dtype=np.float64)) * dtype.bits / 8
    return total


def nest_index(
    nest: Nest, view: int, variable: str, offset: "int | Dim", code: Callable[["int | Dim"], str]
) -> str:
    """C of a view's flat index inside a loop nest whose counters are `variable`0, `variable`1, ..."""
    terms = []
    for axis, (_, strides) in enumerate(nest):
        stride, counter = strides[view], f"{variable}{axis}"
        if isinstance(stride, tuple):
            terms.append(factors_index(stride, counter, code))
        elif stride != 0:
            terms.append(counter + ("" if stride == 1 else f" * ({code(stride)})"))
    if offset != 0 or not terms:
        terms.append(code(offset))
    return " + ".join(terms)


def flat_index(view: View, flat: str, code: Callable[["int | Dim"], str]) -> str:
    """C of the place that a view's element `flat`, in row-major order, has in the buffer."""
    terms = [code(view.offset)]
    if view.factors:
        terms.append(factors_index(view.factors, flat, code))
    return " + ".join(terms)


def factors_index(factors: Axis, flat: str, code: Callable[["int | Dim"], str]) -> str:
    """C of what (size, stride) factors add to an index at place `flat` of their row-major order."""
    terms = []
    for at, (size, stride) in enumerate(factors):
        below = code(product(s for s, _ in factors[at + 1 :]))
        terms.append(f"{flat} / ({below}) % ({code(size)}) * ({code(stride)})")
    return " + ".join(terms)


def _source(call: Call, code: Callable[["int | Dim"], str]) -> Source:
    expression = call.expression
    assert expression is not None
    spec = _spec(call)
    views = [View.contiguous(spec.shape), *expression.views]
    nest = loop_nest(views) or [(1, (0,) * len(views))]
    outer, inner = [size for size, _ in nest[:-1]], code(nest[-1][0])
    indexes = [nest_index(nest, n, "r", view.offset, code) for n, view in enumerate(views)]
    value = store(spec.dtype, print_expression(expression, indexes[1:], code))
    lines = [f"  {spec.dtype.c_type} *restrict y = a[0];"]
    lines += [
        f"  const {leaf.dtype.c_type} *restrict x{n} = a[{n + 1}];"
        for n, leaf in enumerate(call.inputs)
    ]
    rows, last = code(product(outer)), f"r{len(outer)}"
    lines += [
        f"  const long inner = {inner}, rows = {rows};",
        f"  const long piece = rows > 1 || inner < {_CHUNK} ? inner : {_CHUNK};",
        "  const long pieces = inner > 0 ? (inner + piece - 1) / piece : 0;",
        f"  const long share = piece > 0 && piece < {_CHUNK} ? {_CHUNK} / piece : 1;",
        "  for (long c; (c = egg_claim(ctx)) * share < rows * pieces;)",
        "    for (long n = c * share; n < (c + 1) * share && n < rows * pieces; n++) {",
        "      const long row = n / pieces, lo = n % pieces * piece;",
        "      const long hi = lo + piece < inner ? lo + piece : inner;",
        *(f"      {line}" for line in unravel(outer, code)),
        f"      for (long {last} = lo; {last} < hi; {last}++) y[{indexes[0]}] = {value};",
        "    }",
    ]
    body = "\n".join(lines)
    text = (
        f"void NAME(void *const *a, const long *dims, egg_ctx *ctx) {{\n{body}\n  (void)dims;\n}}"
    )
    return Source(text, ())


def unravel(outer: Sequence["int | Dim"], code: Callable[["int | Dim"], str]) -> list[str]:
    """C that splits `row` into `r0`, `r1`, ... over the outer sizes."""
    lines = []
    for axis in range(len(outer)):
        below = product(outer[axis + 1 :])
        quotient = "row" if below == 1 else f"row / ({code(below)})"
        lines.append(
            f"const long r{axis} = {quotient}" + (f" % ({code(outer[axis])});" if axis else ";")
        )
    return [*lines, "(void)row;"]


FUSED = Kernel(
    "Fused",
    ("Dims",),
    0,
    _spec,
    _meaning,
    takes_expression=True,
    source=_source,
    counts=_counts,
)
