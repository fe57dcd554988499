"""Building blocks composed of primitives: what a model file is written in.

Nothing here is an operation of its own, except `paged_attention`: the compiler's rules find normalisations, matmuls,
rotary embeddings and gated units in the primitives.
"""

from engine.compiler.nn.attention import attention, causal_mask, paged_attention
from engine.compiler.nn.convolution import conv, max_pool, mean_pool, upsample
from engine.compiler.nn.experts import expert_weights, experts_glu, route
from engine.compiler.nn.layers import (
    dequantize,
    embedding,
    gather_rows,
    geglu,
    group_norm,
    layer_norm,
    linear,
    rms_norm,
    row_indexes,
    scatter_rows,
    swiglu,
    width,
)
from engine.compiler.nn.rotary import (
    inverse_frequencies,
    rotary,
    rotary_tables,
)

__all__ = [
    "attention",
    "causal_mask",
    "conv",
    "dequantize",
    "embedding",
    "expert_weights",
    "experts_glu",
    "gather_rows",
    "geglu",
    "group_norm",
    "inverse_frequencies",
    "layer_norm",
    "linear",
    "max_pool",
    "mean_pool",
    "paged_attention",
    "rms_norm",
    "rotary",
    "rotary_tables",
    "route",
    "row_indexes",
    "scatter_rows",
    "swiglu",
    "upsample",
    "width",
]
