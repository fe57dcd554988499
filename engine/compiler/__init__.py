"""From a graph of primitive operations to a program per shape bucket. Imports `engine.ops`, never the serving side."""
