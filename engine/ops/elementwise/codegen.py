"""C for element-wise expressions.

Values of float types are computed as `float` and rounded back after each operation, integers as `int32_t` or
`int64_t`, booleans as `int`: a fused region has the bits of its operations run one by one.
"""

from collections.abc import Callable

from engine.compiler.dtype import DType
from engine.compiler.shape import Dim, parse_dim
from engine.ops.expression import Expression

Code = Callable[["int | Dim"], str]

_CALLS = {
    "Log2": "log2f({0})",
    "Exp2": "egg_exp2f({0})",
    "Sin": "sinf({0})",
    "Sqrt": "sqrtf({0})",
    "Recip": "(1.0f / {0})",
    "Add": "({0} + {1})",
    "Mul": "({0} * {1})",
    "LessThan": "({0} < {1})",
    "Equal": "({0} == {1})",
    "Select": "({0} ? {1} : {2})",
}
_LOADS = {
    DType.F16: "egg_f16_to_f32({0})",
    DType.BF16: "egg_bf16_to_f32({0})",
    DType.F8E4M3: "egg_f8e4m3_to_f32({0})",
    DType.F8E5M2: "egg_f8e5m2_to_f32({0})",
}
_STORES = {
    DType.F16: "egg_f32_to_f16({0})",
    DType.BF16: "egg_f32_to_bf16({0})",
    DType.F8E4M3: "egg_f32_to_f8e4m3({0})",
    DType.F8E5M2: "egg_f32_to_f8e5m2({0})",
}


def load(dtype: DType, pointer: str, index: str) -> str:
    """The element as a computed value."""
    if dtype is DType.U4:
        return f"(({pointer}[({index}) >> 1] >> ((({index}) & 1) * 4)) & 15)"
    element = f"{pointer}[{index}]"
    return "(" + _LOADS[dtype].format(element) + ")" if dtype in _LOADS else element


def store(dtype: DType, value: str) -> str:
    """A computed value as an element."""
    return _STORES.get(dtype, f"({dtype.c_type})({{0}})").format(value)


def _rounded(dtype: DType, value: str) -> str:
    if dtype in _STORES:
        return "(" + _LOADS[dtype].format(store(dtype, value)) + ")"
    return value


def print_expression(e: Expression, indexes: list[str], code: Code) -> str:
    """C of the tree's value; `indexes` holds an index expression for each of `e.views`, in order."""
    remaining = iter(indexes)

    def render(node: Expression) -> str:
        if node.op == "Load":
            return load(node.dtype, f"x{node.data[0]}", next(remaining))
        if node.op == "Iota":
            return f"(int32_t)({next(remaining)})"
        if node.op == "Const":
            return _constant(node, code)
        operands = [render(child) for child in node.children]
        if node.op == "Cast":
            return _rounded(node.dtype, _cast(operands[0], node.children[0].dtype, node.dtype))
        if node.op == "Mod":
            form = "fmodf({0}, {1})" if node.dtype.is_float else "egg_remainder({0}, {1})"
        else:
            form = _CALLS[node.op]
        return _rounded(node.dtype, form.format(*operands))

    return render(e)


def _constant(node: Expression, code: Code) -> str:
    if not node.dtype.is_float:
        return f"({node.dtype.c_type})({code(parse_dim(node.data))})"
    value = float(node.data)
    if value != value:
        return "NAN"
    if value in (float("inf"), float("-inf")):
        return "INFINITY" if value > 0 else "-INFINITY"
    return f"{value!r}f" if "." in repr(value) or "e" in repr(value) else f"{value!r}.0f"


def _cast(value: str, source: DType, target: DType) -> str:
    if target is DType.BOOL:
        return f"({value} != 0)"
    if target.is_float:
        return value if source.is_float else f"(float)({value})"
    return f"({target.c_type})({value})"
