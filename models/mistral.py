"""Mistral: Llama's layer, with a window on every layer in the first of them (Jiang et al. 2023)."""

from models import llama
from models.architecture import Architecture
from models.windows import on_every_layer

ARCHITECTURE = Architecture(llama.build, windows=on_every_layer)
