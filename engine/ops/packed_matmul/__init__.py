"""Products with float weights, packed so that a vector's lanes are output rows: `(PackedMatmul m n k x weights)`.

`(PackRows k w)` is f32, f16 or bf16 [n, k] as [blocks of 8 rows][k][8], rows padded with zeros; in bf16 two columns
stand side by side, [blocks][k / 2][8][2], so that a 32-bit lane holds a row's pair (k is padded to even).
"""

from collections.abc import Callable

import numpy as np

from engine.compiler.dtype import DType
from engine.compiler.shape import Dim, exact_quotient, parse_dim, product
from engine.ops.base import Array, Call, Counts, Dims, Fold, Kernel, Source, Spec, template

_SORTS = ("String", "String", "String")
LANES = 8


def rows_of(spec: Spec, k: int) -> int:
    """Rows n of weights held as n * k elements."""
    n = exact_quotient(product(spec.shape), k)
    assert isinstance(n, int)
    return n


def pack_rows(w: Array) -> Array:
    """[n, k] in packed order, as bytes."""
    n, k = w.shape
    side, blocks = _side_by_side(DType.of(w.dtype)), -(-n // LANES)
    full = np.zeros((blocks * LANES, -(-k // side) * side), w.dtype)
    full[:n, :k] = w
    order = full.reshape(blocks, LANES, -1, side).transpose(0, 2, 1, 3)
    return np.ascontiguousarray(order).view(np.uint8).reshape(-1)


def unpack_rows(packed: Array, n: int, k: int, dtype: DType) -> Array:
    """f32 [n, k] of packed weights."""
    blocks = -(-n // LANES)
    lanes = packed.view(dtype.numpy).reshape(blocks, -1, LANES, _side_by_side(dtype))
    rows = lanes.transpose(0, 2, 1, 3).reshape(blocks * LANES, -1)
    return rows[:n, :k].astype(np.float32)


def packed_row_bytes(k: int, dtype: DType) -> int:
    """Bytes that a row of k elements takes."""
    side = _side_by_side(dtype)
    return -(-k // side) * side * dtype.bits // 8


def _side_by_side(dtype: DType) -> int:
    return 2 if dtype is DType.BF16 else 1


def layout_type(spec: Spec) -> DType:
    """Element type of packed weights."""
    return DType(spec.layout.split()[1])


def _pack_spec(call: Call) -> Spec:
    k, dtype = int(call.params[0]), call.inputs[0].dtype
    blocks = -(-rows_of(call.inputs[0], k) // LANES)
    size = blocks * LANES * packed_row_bytes(k, dtype)
    return Spec((size,), DType.U8, f"lanes {dtype.value}")


def _pack(call: Call, dims: Dims, w: Array) -> Array:
    del dims
    return pack_rows(w.reshape(-1, int(call.params[0])))


def product_spec(call: Call) -> Spec:
    """f32 [m, n] of a kernel whose parameters are m, n, k."""
    m, n = (parse_dim(p) for p in call.params[:2])
    return Spec((m, n), DType.F32)


def product_counts(call: Call, dims: Dims) -> Counts:
    size = product_spec(call).bytes(dims)
    weights = sum(spec.layout.startswith("lanes") for spec in call.inputs)
    return Counts(
        sum(spec.bytes(dims) for spec in call.inputs),
        size,
        size / 2 * int(call.params[2]) * weights,
    )


def product_macros(call: Call, code: Callable[["int | Dim"], str]) -> tuple[tuple[str, str], ...]:
    m, n, k = (code(parse_dim(p)) for p in call.params[:3])
    held = layout_type(call.inputs[1])
    return (
        ("M", m),
        ("N", n),
        ("K", k),
        (f"HELD_{held.value.upper()}", "1"),
        ("COLUMNS", "2" if held is DType.BF16 else "1"),
        ("BLOCK_BYTES", str(LANES * packed_row_bytes(int(call.params[2]), held))),
    )


def multiply(call: Call, x: Array, weights: Array) -> Array:
    """x times the transpose of packed weights."""
    n, k = int(call.params[1]), int(call.params[2])
    return x.reshape(-1, k) @ unpack_rows(weights, n, k, layout_type(call.inputs[1])).T


def _matmul(call: Call, dims: Dims, x: Array, weights: Array) -> Array:
    del dims
    return multiply(call, x, weights)


def _matmul_add(call: Call, dims: Dims, x: Array, weights: Array, added: Array) -> Array:
    del dims
    y = multiply(call, x, weights)
    return added.reshape(-1, y.shape[1]) + y


def finish_macros(added: str = "") -> tuple[tuple[str, str], ...]:
    """Macros of `FINISH`: a "residual" [m, n], a "bias" [n] or nothing is added to the product."""
    return (
        ("ADD", str(int(bool(added)))),
        ("ADD_ROW", "N" if added == "residual" else "0"),
        ("STREAMS", "1"),
    )


def _kernel(name: str, added: str = "") -> Kernel:

    def source(call: Call, code: Callable[["int | Dim"], str]) -> Source:
        return Source(
            PRODUCT + FINISH + ENTRY, (*product_macros(call, code), *finish_macros(added))
        )

    return Kernel(
        name,
        _SORTS,
        3 if added else 2,
        product_spec,
        _matmul_add if added else _matmul,
        source=source,
        counts=product_counts,
        variants=VARIANTS,
        supersedes=frozenset({"Reduce"}),
    )


PRODUCT, FINISH, ENTRY = (
    template(__file__, f"{part}.c") for part in ("product", "native", "entry")
)
# TILE rows of activations by 16 outputs; for a single row, BLOCKS streams of 8 outputs; SHARE times BLOCKS a claim.
VARIANTS = tuple(
    (("TILE", str(tile)), ("BLOCKS", str(blocks)), ("SHARE", str(share)))
    for tile, blocks, share in ((4, 2, 4), (4, 4, 2), (6, 8, 1))
)
OPS = (
    Fold("PackRows", ("String",), 1, _pack_spec, _pack),
    _kernel("PackedMatmul"),
    _kernel("PackedMatmulAdd", "residual"),
    _kernel("PackedMatmulBias", "bias"),
)
