"""Qwen2 and 2.5: Llama's layer with biases on the projections to q, k and v (Yang et al. 2024)."""

from dataclasses import replace

from models import llama
from models.architecture import Architecture

ARCHITECTURE = Architecture(llama.build, read=lambda _, common: replace(common, qkv_bias=True))
