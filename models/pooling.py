"""How a directory says that its model makes embeddings: the files of sentence-transformers."""

from pathlib import Path

from engine.pooling import Kind, Pooling
from models.errors import ModelFileError
from models.fields import Fields
from models.json_files import read_list, read_object

_FLAGS: dict[str, Kind] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "last",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
}
_MODULES = ("Transformer", "Pooling", "Normalize")


def read_pooling(directory: Path) -> Pooling:
    """What `modules.json` and the configs that it names say; without them the mean of all tokens, of length 1.

    Raises `ModelFileError` for modules and poolings that are not built.
    """
    path = directory / "modules.json"
    if not path.exists():
        return Pooling(_kind(directory / "1_Pooling"), normalise=True)
    modules = read_list(path)
    kind, kinds = None, []
    for module in modules:
        if not isinstance(module, dict):
            raise ModelFileError(path, f"it holds {module!r}, not an object")
        kinds.append(str(module.get("type")).rpartition(".")[2])
        if kinds[-1] not in _MODULES:
            known = ", ".join(_MODULES)
            raise ModelFileError(
                path, f"module {kinds[-1]!r} is not supported (supported: {known})"
            )
        if kinds[-1] == "Pooling":
            kind = _kind(directory / str(module.get("path")))
    return Pooling(kind or "mean", normalise="Normalize" in kinds)


def longest_prompt(directory: Path, context_length: int) -> int:
    """Tokens of the longest text that the model was made for."""
    path = directory / "sentence_bert_config.json"
    if not path.exists():
        return context_length
    return min(
        Fields(path, read_object(path)).size("max_seq_length", context_length), context_length
    )


def _kind(folder: Path) -> Kind:
    path = folder / "config.json"
    if not path.exists():
        return "mean"
    raw = read_object(path)
    fields = Fields(path, raw)
    flags = [key for key in raw if key.startswith("pooling_mode_") and fields.value(key)]
    if (named := fields.value("pooling_mode")) is not None:
        flags = [key for key, kind in _FLAGS.items() if kind == named] or [str(named)]
    found = [kind for flag, kind in _FLAGS.items() if flag in flags]
    if len(found) != 1 or len(flags) != 1:
        raise fields.unsupported(f"pooling by {', '.join(flags) or 'nothing'}", *_FLAGS)
    return found[0]
