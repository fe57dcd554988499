"""OpenAI-shaped JSON of answers, whole and as stream chunks, written straight to bytes."""
