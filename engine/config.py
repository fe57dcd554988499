"""What an engine process is told at start: limits, memory, device."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Device = Literal["auto", "native", "reference"]

_MIN_LOGIT_ROWS = 64


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Settings of one engine process.

    Raises `ValueError`, naming the setting and its value, when a limit makes no sense.
    """

    cache_dir: Path
    """Where compiled programs are kept between starts."""
    max_model_len: int | None = None
    """Longest prompt plus output in tokens; None takes the model's context length."""
    max_num_seqs: int = 64
    """Requests that may run at the same time."""
    max_batch_tokens: int = 256
    """Tokens of one step, decodes and prefill chunks together: running streams wait as long for
    their next token as such a step takes."""
    max_queue: int = 256
    """Requests that may wait beyond the `max_num_seqs` that may run."""
    kv_memory_bytes: int | None = None
    """Size of the KV pool; None lets the runner choose from free memory."""
    threads: int | None = None
    device: Device = "auto"
    prefix_cache: bool = True
    whole_prompts: bool = False
    """Prompts are computed in one step each, and the rows of all their tokens are wanted: for embeddings."""
    search_time_limit_s: float = 30.0
    seed: int = 0
    """Seed of the compiler's search; sampling has its own seed in each request."""
    silence_limit_s: float = 10.0
    """A ready engine that sends nothing for this long is reported as unresponsive."""
    hang_limit_s: float = 300.0
    """A ready engine that is silent, or makes no step while requests run, for this long is killed
    and restarted."""

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_batch_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.max_queue < 0:
            raise ValueError(f"max_queue must not be negative, got {self.max_queue}")
        if self.max_batch_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_batch_tokens ({self.max_batch_tokens}) must be at least max_num_seqs "
                f"({self.max_num_seqs}), so that one step can decode every running request"
            )
        for name in ("max_model_len", "kv_memory_bytes", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        for name in ("silence_limit_s", "hang_limit_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")

    @property
    def max_logit_rows(self) -> int:
        """The most rows of logits that one step may ask for (`o` of a batch)."""
        if self.whole_prompts:
            return self.max_batch_tokens
        return max(self.max_num_seqs, min(_MIN_LOGIT_ROWS, self.max_batch_tokens))
