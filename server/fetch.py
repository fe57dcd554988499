"""Finding the model: its files, its names, its tokenizer."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from models.checkpoint import open_checkpoint
from models.pull import DEFAULT_MODEL, default_cache_dir, resolve
from models.tokenizer import Tokenizer, load_tokenizer
from server.settings import Settings

Result = TypeVar("Result")


def fetch_model(settings: Settings) -> Path:
    """The model's local path, downloaded into the cache folder if it is not there yet."""
    return resolve(settings.model, cache_folder(settings))


def cache_folder(settings: Settings) -> Path:
    return settings.cache_dir or default_cache_dir()


def served_names(settings: Settings) -> list[str]:
    """The model's names in the API: as set, else as it is called on the hub or by its file."""
    if settings.served_model_name:
        return settings.served_model_name
    if settings.model is None:
        return [DEFAULT_MODEL]
    path = Path(settings.model)
    if not path.exists():
        return [settings.model]
    return [path.stem if path.is_file() else path.resolve().name]


def read_text_side(path: Path) -> tuple[Tokenizer, tuple[int, ...]]:
    """The tokenizer, and the ids that end a text by the word of checkpoint or tokenizer."""
    checkpoint = open_checkpoint(path)
    config = checkpoint.config
    checkpoint.close()
    tokenizer = load_tokenizer(path)
    return tokenizer, tuple(dict.fromkeys((*config.eos_token_ids, *tokenizer.eos_token_ids)))


async def in_background(run: Callable[[], Result]) -> Result:
    """`run()` on a daemon thread: unlike the loop's executor, it does not hold up the exit."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[Result] = loop.create_future()

    def settle(error: Exception | None, value: Result | None) -> None:
        if outcome.done():
            return
        if error is not None:
            outcome.set_exception(error)
        else:
            outcome.set_result(value)  # type: ignore[arg-type]

    def work() -> None:
        try:
            value = run()
        except Exception as error:
            loop.call_soon_threadsafe(settle, error, None)
        else:
            loop.call_soon_threadsafe(settle, None, value)

    threading.Thread(target=work, daemon=True).start()
    return await outcome
