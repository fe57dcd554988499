"""Whether a request could run at all, asked where it is submitted and again in the engine."""

from engine.errors import RequestTooLarge
from engine.kv_cache import PAGE_SIZE
from engine.messages import EngineInfo


def check_size(prompt_len: int, max_tokens: int, info: EngineInfo) -> None:
    """Raises `RequestTooLarge` for a request that could not run alone, `ValueError` for no prompt.

    A prompt needs room for one generated token, unless none is asked for.
    """
    if prompt_len == 0:
        raise ValueError("a prompt needs at least one token")
    least = prompt_len + min(max_tokens, 1)
    if least > info.max_model_len:
        raise RequestTooLarge("the prompt with one token after it", least, info.max_model_len)
    total = min(prompt_len + max_tokens, info.max_model_len)
    entries = prompt_len if max_tokens == 0 else total - 1
    capacity = info.kv_tokens // PAGE_SIZE * PAGE_SIZE
    if entries > capacity:
        raise RequestTooLarge("the request's KV cache", entries, capacity)
