"""Models: their files, tokenizers and graphs. Imports the engine's compiler and nothing of the serving side."""
