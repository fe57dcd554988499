"""Repositories of the Hugging Face hub."""

from pathlib import Path

from models.errors import PullError

_NEEDED = [
    "config.json",
    "generation_config.json",
    "model*.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
]


def fetch_repository(name: str) -> Path:
    """The directory of `org/name` in Hugging Face's cache, brought up to date if the hub answers.

    Raises `PullError`.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError

    try:
        directory = Path(snapshot_download(name, allow_patterns=_NEEDED))
    except GatedRepoError:
        raise PullError(
            f"{name} on the Hugging Face hub asks for its terms to be accepted: accept them there, "
            "then log in with `hf auth login` or set HF_TOKEN"
        ) from None
    except RepositoryNotFoundError:
        raise PullError(
            f"{name} is no path here and no repository on the Hugging Face hub (a private one "
            "needs `hf auth login` or HF_TOKEN)"
        ) from None
    except (HfHubHTTPError, OSError, ValueError) as error:
        raise PullError(f"{name} cannot be fetched from the Hugging Face hub: {error}") from error
    if not (directory / "config.json").exists() or not list(directory.glob("model*.safetensors")):
        raise PullError(
            f"{name} has no config.json with model.safetensors, and no other form is read from the "
            "hub; download its GGUF file and give its path"
        )
    return directory
