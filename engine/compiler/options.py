"""What a caller can ask of a compilation."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import inf
from typing import Any, Self


@dataclass(frozen=True)
class DimBucket:
    """An inclusive range of a symbol's values that shares one program; candidates are timed at `at`."""

    min: int
    max: int
    at: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.min <= self.max:
            raise ValueError(f"a bucket needs 0 <= min <= max, not {self.min}..{self.max}")
        if self.at is not None and not self.min <= self.at <= self.max:
            raise ValueError(f"representative {self.at} is outside bucket {self.min}..{self.max}")

    def representative(self, value: int) -> "DimBucket":
        """The same range, timed at `value`."""
        return DimBucket(self.min, self.max, value)

    @property
    def value(self) -> int:
        return self.at if self.at is not None else (self.min + self.max) // 2

    def __contains__(self, value: int) -> bool:
        return self.min <= value <= self.max

    def __str__(self) -> str:
        return str(self.min) if self.min == self.max else f"{self.min}..{self.max}"


DimsOf = Callable[[Mapping[str, int]], Mapping[str, int]]


@dataclass(frozen=True)
class CompileOptions:
    """Options of a search; each can be given by keyword or by `with_(...)` on another set.

    search_graph_limit: whole programs timed at most, per bucket.
    search_time_limit: seconds for all buckets together; None has no limit, 0 times one program a bucket.
    max_memory_bytes: cap on a program's intermediate buffers; None has no cap.
    generation_size: programs that one generation times. mutations: choices changed at most between parent and child.
    trials: timings of a program, of which the least counts. keep_best: parents of the next generation.
    profile_timeout: seconds after which a candidate is discarded.
    profile_dims: values at which to time symbols that have no bucket, or a function of the bucketed ones.
    dim_buckets: symbol -> its buckets. seed: of the search's random choices.
    """

    search_graph_limit: int = 100
    search_time_limit: float | None = None
    max_memory_bytes: int | None = None
    generation_size: int = 10
    mutations: int = 10
    trials: int = 3
    keep_best: int = 1
    profile_timeout: float = 1.0
    profile_dims: Mapping[str, int] | DimsOf = field(default_factory=dict)
    dim_buckets: Mapping[str, tuple[DimBucket, ...]] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("search_graph_limit", "generation_size", "mutations", "trials", "keep_best"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.search_time_limit is not None and self.search_time_limit < 0:
            raise ValueError(f"search_time_limit must not be negative: {self.search_time_limit}")
        if self.max_memory_bytes is not None and self.max_memory_bytes < 0:
            raise ValueError(f"max_memory_bytes must not be negative: {self.max_memory_bytes}")
        if not self.profile_timeout > 0:
            raise ValueError(f"profile_timeout must be positive: {self.profile_timeout}")
        for symbol, buckets in self.dim_buckets.items():
            ordered = sorted(buckets, key=lambda b: b.min)
            for low, high in pairwise(ordered):
                if low.max >= high.min:
                    raise ValueError(f"buckets {low} and {high} of {symbol!r} overlap")

    def with_(self, **changes: Any) -> Self:
        """A copy with some options changed."""
        return replace(self, **changes)

    def dims_at(self, bucket: Mapping[str, DimBucket]) -> dict[str, int]:
        """All symbols' values at which a bucket's candidates are timed."""
        chosen = {symbol: b.value for symbol, b in bucket.items()}
        others = self.profile_dims(chosen) if callable(self.profile_dims) else self.profile_dims
        return {**others, **chosen}

    @property
    def time_limit(self) -> float:
        return inf if self.search_time_limit is None else self.search_time_limit
