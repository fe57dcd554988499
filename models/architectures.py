"""The architectures that are supported, by the names that checkpoints give them."""

# Hugging Face's model type, or GGUF's architecture -> the module that has `build`.
MODULES = {
    "gemma3": "models.gemma3",
    "gemma3_text": "models.gemma3",
    "llama": "models.llama",
    "mistral": "models.llama",
    "qwen2": "models.qwen2",
    "qwen3": "models.qwen3",
}
