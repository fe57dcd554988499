"""Qwen3: Llama's layer with an RMSNorm of each head of q and k (Yang et al. 2025)."""

from functools import partial

from models import llama
from models.architecture import Architecture

ARCHITECTURE = Architecture(partial(llama.build, head_norms=True))
