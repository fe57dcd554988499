"""Every setting of the server, its default and its environment variable, in one place.

The command line takes its options, help and defaults from here; `EGGLM_PORT=8001` and `--port 8001`
are the same.
"""

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from engine.config import EngineConfig

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12} | {
    "ki": 2**10,
    "mi": 2**20,
    "gi": 2**30,
    "ti": 2**40,
}


def parse_size(value: object) -> object:
    """Bytes of `"512MiB"`, `"2GB"`, `"1.5g"` or a plain number; pydantic refuses the rest."""
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?\s*", value.lower())
    if match is None or match[2] not in _UNITS:
        raise ValueError("use a number of bytes, or one with a unit such as 512MiB or 2GB")
    return int(float(match[1]) * _UNITS[match[2]])


def _split_list(value: object) -> object:
    """A comma-separated string, or such strings, as one list without blanks."""
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list | tuple):
        return items
    return [part.strip() for item in items for part in str(item).split(",") if part.strip()]


Size = Annotated[int, BeforeValidator(parse_size)]
Names = Annotated[list[str], NoDecode, BeforeValidator(_split_list)]
LogLevel = Annotated[
    Literal["debug", "info", "warning", "error"], BeforeValidator(lambda v: str(v).lower())
]


class Settings(BaseSettings):
    """Settings from the command line, then `EGGLM_*` variables, then these defaults."""

    model_config = SettingsConfigDict(env_prefix="EGGLM_", env_ignore_empty=True, extra="ignore")

    model: str | None = Field(
        None,
        description="A model directory, a GGUF file, or org/name on the Hugging Face hub "
        "[default: SmolLM2-135M-Instruct]",
    )
    host: str = Field("127.0.0.1", description="Address to listen on")
    port: int = Field(8000, ge=0, le=65535, description="Port to listen on; 0 picks a free one")
    served_model_name: Names = Field(
        [], description="Name of the model in the API, instead of its file's; several are aliases"
    )
    device: Literal["auto", "native", "reference"] = Field(
        "auto", description="Runtime: native (compiled C) or reference (NumPy, slow)"
    )
    quantize: Literal["int8", "int4"] | None = Field(
        None,
        description="Round float weights to int8 or int4 as they are loaded "
        "[default: as the model's files hold them]",
    )
    threads: int | None = Field(
        None,
        ge=1,
        le=1024,
        description="Compute threads [default: one a physical core that it may use]",
    )
    max_model_len: int | None = Field(
        None, ge=2, description="Longest prompt and answer together [default: the model's]"
    )
    max_num_seqs: int = Field(
        EngineConfig.max_num_seqs, ge=1, description="Most requests in one batch"
    )
    max_batch_tokens: int = Field(
        EngineConfig.max_batch_tokens, ge=1, description="Most tokens in one step"
    )
    max_queue: int = Field(
        EngineConfig.max_queue,
        ge=0,
        description="Most requests waiting to run; more get 429. n choices count as n",
    )
    kv_cache_memory: Size | None = Field(
        None, gt=0, description="Memory for the KV cache, such as 2GiB [default: by free memory]"
    )
    prefix_cache: bool = Field(
        EngineConfig.prefix_cache, description="Reuse the KV cache of shared prompt starts"
    )
    search_time_limit: float = Field(
        EngineConfig.search_time_limit_s,
        ge=0,
        description="Most seconds that the compiler searches at a first start",
    )
    cache_dir: Path | None = Field(
        None,
        description="Where compiled programs and the default model are kept [default: user's cache]",
    )
    api_key: Names = Field([], description="Key that clients must send; may be given several times")
    drain_timeout: float = Field(
        30.0, ge=0, description="Seconds that running requests may take after SIGTERM"
    )
    max_body_size: Size = Field(32 * 2**20, gt=0, description="Largest request body, such as 32MiB")
    sse_keep_alive: float = Field(
        5.0, gt=0, description="Seconds of silence after which a stream gets a comment"
    )
    metrics_compat: Literal["none", "vllm"] = Field(
        "none", description="vllm: offer the metrics under vLLM's names too"
    )
    log_level: LogLevel = Field("info", description="debug, info, warning or error")


class SettingsError(Exception):
    """Settings that contradict each other."""


def engine_config(settings: Settings, cache_dir: Path) -> EngineConfig:
    """The engine's part of the settings. Raises `SettingsError`."""
    try:
        return EngineConfig(
            max_model_len=settings.max_model_len,
            max_num_seqs=settings.max_num_seqs,
            max_batch_tokens=settings.max_batch_tokens,
            max_queue=settings.max_queue,
            kv_memory_bytes=settings.kv_cache_memory,
            threads=settings.threads,
            device=settings.device,
            cache_dir=cache_dir,
            prefix_cache=settings.prefix_cache,
            search_time_limit_s=settings.search_time_limit,
        )
    except ValueError as error:
        raise SettingsError(str(error)) from None


def env_name(field: str) -> str:
    """`EGGLM_KV_CACHE_MEMORY` for `kv_cache_memory`."""
    return f"EGGLM_{field.upper()}"
