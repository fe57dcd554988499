"""The architectures that are supported, by the name that checkpoints give them."""

# One line an architecture: its module has `build`.
MODULES = {
    "llama": "models.llama",
}
