"""Which positions each layer sees, by the keys that architectures have for it.

Each function gives for every layer how many positions it sees, None for all of them; an empty tuple if all layers see
all.
"""

from collections.abc import Callable

from models.fields import Fields

Windows = tuple[int | None, ...]
_KINDS = ("full_attention", "sliding_attention")


def by_layer_types(fields: Fields) -> Windows | None:
    """What newer configs say for each layer; None for one that does not."""
    layers, kinds = fields.size("num_hidden_layers"), fields.value("layer_types")
    if kinds is None:
        return None
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise fields.wrong("layer_types", f"a list of {layers}")
    if unknown := [kind for kind in kinds if kind not in _KINDS]:
        raise fields.unsupported(f"a layer of type {unknown[0]!r}")
    if "sliding_attention" not in kinds:
        return ()
    window = fields.size("sliding_window")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def on_every_layer(fields: Fields) -> Windows:
    """`sliding_window` on all layers, if it is there (Mistral)."""
    if fields.value("sliding_window") is None:
        return ()
    return (fields.size("sliding_window"),) * fields.size("num_hidden_layers")


def after_max_window_layers(fields: Fields) -> Windows:
    """`sliding_window` on the layers from `max_window_layers` on, if `use_sliding_window` (Qwen).

    GGUF has neither of these keys, and only those that see a window have `sliding_window`.
    """
    if fields.is_gguf:
        return on_every_layer(fields)
    if fields.value("sliding_window") is None or not fields.value("use_sliding_window"):
        return ()
    layers = fields.size("num_hidden_layers")
    full = fields.value("max_window_layers", layers)
    return tuple(None if layer < full else fields.size("sliding_window") for layer in range(layers))


def but_each(period: int, default: int | None = None) -> Callable[[Fields], Windows]:
    """`sliding_window` on all layers but each `period`-th (Gemma)."""

    def windows(fields: Fields) -> Windows:
        window = fields.size("sliding_window", default)
        layers = fields.size("num_hidden_layers")
        return tuple(window if (layer + 1) % period else None for layer in range(layers))

    return windows
