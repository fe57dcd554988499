"""From chat messages to the prompt's text and tokens."""
