"""Products with group-quantised weights, read in 4 or 8 bits as the model holds them.

`(Scaled n b g codes scale)` and `(Affine n b g codes scale minimum)` are dequantisations found in primitives: codes
[n, b*g] of U4 (0..15) or I8, scale and minimum [n, b]. `PackScaled` and `PackAffine` lay them out for the kernel once,
and `(QuantMatmul m n k g rows weights)` multiplies quantised activation rows with them (`quantize_rows`).
"""

from collections.abc import Callable

import numpy as np

from engine.compiler.dtype import DType
from engine.compiler.shape import Dim, parse_dim
from engine.ops.base import Array, Call, Counts, Dims, Fold, Kernel, Op, Source, Spec, template
from engine.ops.packed_matmul import ENTRY, FINISH, finish_macros
from engine.ops.quant_matmul import layout
from engine.ops.quantize_rows import dequantize as dequantize_rows

PRODUCT = template(__file__, "product.c")
_SORTS = ("String", "String", "String", "String")


def dequantize(
    codes: Array, scale: Array, minimum: Array | None, dtype: DType, group: int
) -> Array:
    """f32 [n, k] of codes as the model holds them."""
    if dtype is DType.U4:
        codes = np.stack([codes & 15, codes >> 4], axis=-1).reshape(len(codes), -1)
    value = (
        codes.reshape(len(codes), -1, group).astype(np.float32)
        * scale.astype(np.float32)[..., None]
    )
    if minimum is not None:
        value = value + minimum.astype(np.float32)[..., None]
    return value.reshape(len(codes), -1)


def _weights_spec(call: Call) -> Spec:
    n, b, g = (int(p) for p in call.params)
    return Spec((n, b, g), DType.F32)


def _weights(call: Call, dims: Dims, codes: Array, scale: Array, *minimum: Array) -> Array:
    del dims
    n, b, g = (int(p) for p in call.params)
    low = minimum[0].reshape(n, b) if minimum else None
    flat = dequantize(codes.reshape(n, -1), scale.reshape(n, b), low, call.inputs[0].dtype, g)
    return flat.reshape(n, b, g)


def _format(call: Call) -> layout.Format:
    n, k, g = (int(p) for p in call.params)
    codes, scale = call.inputs[:2]
    return layout.Format(n, k, g, codes.dtype.bits, scale.dtype.bits, len(call.inputs) == 3)


def _pack_spec(call: Call) -> Spec:
    form = _format(call)
    return Spec((form.bytes,), DType.U8, str(form))


def _pack(call: Call, dims: Dims, codes: Array, scale: Array, *minimum: Array) -> Array:
    del dims
    form = _format(call)
    groups = (form.n, form.k // form.group)
    low = minimum[0].reshape(groups) if minimum else None
    return layout.pack(form, codes.reshape(form.n, -1), scale.reshape(groups), low)


def product_spec(call: Call) -> Spec:
    """f32 [m, n] of a kernel whose parameters begin with m, n, k, g."""
    m, n = (parse_dim(p) for p in call.params[:2])
    return Spec((m, n), DType.F32)


def product_counts(call: Call, dims: Dims) -> Counts:
    """Counts of such a kernel over activation rows and one or two packed weights."""
    size = product_spec(call).bytes(dims)
    read = sum(spec.bytes(dims) for spec in call.inputs)
    weights = sum(spec.layout.startswith("packed") for spec in call.inputs)
    return Counts(read, size, 2.0 * size / 4 * int(call.params[2]) * weights)


def product_macros(call: Call, code: Callable[["int | Dim"], str]) -> tuple[tuple[str, str], ...]:
    """Macros of such a kernel."""
    m, n, k = (code(parse_dim(p)) for p in call.params[:3])
    form = layout.Format.parse(call.inputs[1].layout)
    return (
        ("M", m),
        ("N", n),
        ("K", k),
        *form.macros,
        ("GROUPS", "(K / G)"),
        ("PLACES", str(16 // form.bits)),
        ("GROUP_BYTES", "EGG_GROUP_BYTES(G, BITS, SCALE_BITS, HAS_MIN)"),
        ("BLOCK_BYTES", "(GROUPS * GROUP_BYTES)"),
        ("ROW_BYTES", "EGG_ROW_BYTES(K, G)"),
    )


def product(call: Call, rows: Array, weights: Array) -> Array:
    """The meaning of such a kernel."""
    k, g = int(call.params[2]), int(call.params[3])
    form = layout.Format.parse(call.inputs[1].layout)
    return dequantize_rows(rows, k, g) @ layout.dequantize(form, weights).T


def _matmul(call: Call, dims: Dims, rows: Array, weights: Array) -> Array:
    del dims
    return product(call, rows, weights)


def _matmul_add(call: Call, dims: Dims, rows: Array, weights: Array, added: Array) -> Array:
    y = _matmul(call, dims, rows, weights)
    return added.reshape(-1, y.shape[1]) + y


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


# TILE rows of activations by 16 outputs (8 need 32 vector registers); for a single row, BLOCKS streams of 8 outputs;
# SHARE times BLOCKS blocks a claim.
VARIANTS = tuple(
    (("TILE", str(tile)), ("BLOCKS", str(blocks)), ("SHARE", str(share)))
    for tile, blocks, share in ((8, 4, 1), (4, 4, 1), (8, 8, 1), (4, 2, 2))
)

OPS = (
    Op("Scaled", ("String",) * 3, 2, _weights_spec, _weights),
    Op("Affine", ("String",) * 3, 3, _weights_spec, _weights),
    Fold("PackScaled", ("String",) * 3, 2, _pack_spec, _pack),
    Fold("PackAffine", ("String",) * 3, 3, _pack_spec, _pack),
    _kernel("QuantMatmul"),
    _kernel("QuantMatmulAdd", "residual"),
    _kernel("QuantMatmulBias", "bias"),
)
