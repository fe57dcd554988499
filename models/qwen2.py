"""Qwen2 and 2.5: Llama's layer with biases on the projections to q, k and v (Yang et al. 2024)."""

from functools import partial

from models import llama

build = partial(llama.build, biases=True)
