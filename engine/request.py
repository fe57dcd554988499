"""The state of one request inside the engine: its tokens, its pages, what was computed."""

from time import monotonic

import numpy as np
from numpy.typing import NDArray

from engine.kv_cache import PAGE_SIZE, page_digest
from engine.messages import Generate, SamplingParams, Timings, TokenLogprobs
from engine.sampling import Sampler


class Request:
    """One request from its arrival to its end, in the engine's process.

    `tokens[:num_tokens]` are the prompt and the output so far. The KV entries of the first
    `num_computed` of them are in the pool, or will be after the step being planned; token i lives
    in slot `pages[i // 16] * 16 + i % 16`.
    """

    def __init__(
        self, message: Generate, arrival: int, max_model_len: int, sampler: Sampler
    ) -> None:
        params = message.params
        self.request_id: str = message.request_id
        self.params: SamplingParams = params
        self.sampler: Sampler = sampler
        self.order: tuple[int, int] = (message.priority, arrival)
        """Who goes first: the smaller."""
        self.prompt_len: int = len(message.prompt_ids)
        self.max_tokens: int = min(params.max_tokens, max_model_len - self.prompt_len)
        """Tokens that may be generated, the context's limit included."""
        self.tokens: NDArray[np.int32] = np.array(message.prompt_ids, dtype=np.int32)
        self.num_tokens: int = self.prompt_len
        self.num_computed: int = 0
        self.pages: NDArray[np.int32] = np.zeros(-(-self.prompt_len // PAGE_SIZE) + 1, np.int32)
        self.num_pages: int = 0
        self.num_published: int = 0
        """Leading pages that the prefix index has seen."""
        self.digests: list[bytes] = []
        self.running: bool = False
        self.prompt_logprobs: list[TokenLogprobs | None] | None = (
            None if params.prompt_logprobs is None else [None]
        )
        self.delivered_prompt_logprobs: bool = params.prompt_logprobs is None
        self.cached_tokens: int = 0
        self.preemptions: int = 0
        self.submitted_s: float = message.submitted_s or monotonic()
        self.started_s: float | None = None
        self.first_token_s: float | None = None

    @property
    def num_output(self) -> int:
        return self.num_tokens - self.prompt_len

    @property
    def num_remaining(self) -> int:
        """Tokens whose KV entries are still to be computed; a decoding request has 1."""
        return self.num_tokens - self.num_computed

    @property
    def kv_tokens(self) -> int:
        """KV entries that the request needs at its longest. Its last token needs none."""
        return self.prompt_len + max(self.max_tokens - 1, 0)

    @property
    def wants_prompt_rows(self) -> bool:
        """Whether prompt log-probabilities are still to be computed."""
        return self.prompt_logprobs is not None and len(self.prompt_logprobs) < self.prompt_len

    @property
    def next_prompt_row(self) -> int:
        """The first position whose logits give a prompt log-probability still to be computed."""
        assert self.prompt_logprobs is not None
        return len(self.prompt_logprobs) - 1

    def append_token(self, token_id: int) -> None:
        if self.num_tokens == len(self.tokens):
            self.tokens = _doubled(self.tokens)
        self.tokens[self.num_tokens] = token_id
        self.num_tokens += 1

    def append_pages(self, pages: list[int]) -> None:
        needed = self.num_pages + len(pages)
        while needed > len(self.pages):
            self.pages = _doubled(self.pages)
        self.pages[self.num_pages : needed] = pages
        self.num_pages = needed

    def take_pages(self) -> list[int]:
        """Forgets all pages and what was computed, and returns the pages for release."""
        pages: list[int] = self.pages[: self.num_pages].tolist()
        self.num_pages = self.num_published = self.num_computed = 0
        return pages

    def page_digests(self, num_pages: int) -> list[bytes]:
        """The digests of (at least) the first `num_pages` pages, all of which must be full."""
        digests = self.digests
        for index in range(len(digests), num_pages):
            parent = digests[-1] if digests else b""
            start = index * PAGE_SIZE
            digests.append(page_digest(parent, self.tokens[start : start + PAGE_SIZE]))
        return digests

    def timings(self) -> Timings:
        """Where the time went, as of now."""
        now = monotonic()
        started = now if self.started_s is None else self.started_s
        first = now if self.first_token_s is None else self.first_token_s
        return Timings(
            queue_s=max(started - self.submitted_s, 0.0),
            prefill_s=max(first - started, 0.0),
            decode_s=max(now - first, 0.0),
            preemptions=self.preemptions,
        )


def _doubled(array: NDArray[np.int32]) -> NDArray[np.int32]:
    grown = np.zeros(2 * len(array), np.int32)
    grown[: len(array)] = array
    return grown
