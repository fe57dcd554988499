"""Element-wise primitives, and the fused regions that the native runtime runs them in."""

from engine.ops.elementwise.fused import FUSED
from engine.ops.elementwise.primitives import PRIMITIVES

OPS = (*PRIMITIVES, FUSED)
