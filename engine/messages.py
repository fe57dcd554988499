"""What crosses the sockets between the server and an engine process (msgpack).

To the engine: `Generate`, `Abort`, `Shutdown`. From the engine: `Progress`, `Ready`, `Failed`,
`Stats`, `Deltas`.
"""

from typing import Literal

import msgspec

from engine.pooling import Pooling

FinishReason = Literal["stop", "length", "abort", "error"]


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How the tokens of one request are chosen. The server has validated the ranges."""

    max_tokens: int
    """0 computes the prompt and generates nothing, which scores it with `prompt_logprobs`."""
    temperature: float = 1.0
    """0 takes the best token, whatever `top_k`, `top_p` and `min_p` say."""
    top_p: float = 1.0
    top_k: int = 0
    """0 is off."""
    min_p: float = 0.0
    seed: int | None = None
    """None draws a seed from the operating system."""
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    eos_token_ids: tuple[int, ...] = ()
    """The model's end tokens; empty to ignore them."""
    logprobs: int | None = None
    """None gives none; k gives the chosen token's log-probability and those of the k best."""
    prompt_logprobs: int | None = None
    """The same for each prompt token but the first."""


class Generate(msgspec.Struct, tag=True, frozen=True):
    request_id: str
    prompt_ids: list[int]
    params: SamplingParams
    priority: int = 0
    """Lower runs first; first come first served among equals."""
    submitted_s: float = 0.0
    """`time.monotonic()` when the server submitted it (one clock for all processes of a host)."""


class Abort(msgspec.Struct, tag=True, frozen=True):
    request_id: str


class Shutdown(msgspec.Struct, tag=True, frozen=True):
    pass


class TokenLogprobs(msgspec.Struct, array_like=True, gc=False):
    """Natural log-probabilities from the raw logits, before temperature, bias and penalties."""

    token_id: int
    logprob: float
    rank: int
    """1 for the most likely token."""
    top: list[tuple[int, float]]
    """(token id, logprob) of the most likely tokens, best first."""


class Timings(msgspec.Struct, array_like=True, gc=False):
    """Where a finished request's time went, in seconds."""

    queue_s: float
    """From submission to the first step that computed some of it."""
    prefill_s: float
    """From there to the first token, or to the end where there was none."""
    decode_s: float
    """From the first token to the last."""
    preemptions: int


class Delta(msgspec.Struct, array_like=True, gc=False):
    """What one step added to one request.

    When `finish_reason` is "stop" the last id of `token_ids` is the token that ended the request:
    it counts as generated, and it is not part of the text.
    """

    request_id: str
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None
    """One for each of `token_ids`, when asked for."""
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    """One for each prompt token (None for the first), in the first delta, when asked for."""
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    """Set when an entry of `stop_token_ids` ended the request, None when an end token did."""
    cached_tokens: int = 0
    """Prompt tokens that were taken from the prefix cache."""
    error: str | None = None
    """Set when `finish_reason` is "error"."""
    embedding: bytes | None = None
    """Of the prompt, f32; in the one delta of a model that makes embeddings."""
    timings: Timings | None = None
    """Set on the last delta."""


class Deltas(msgspec.Struct, tag=True):
    """All that one step produced."""

    deltas: list[Delta]


class Progress(msgspec.Struct, tag=True, frozen=True):
    """How far loading is: `done` of `total` units of `stage`."""

    stage: str
    done: int
    total: int


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What was loaded, announced once at start. Sizes in bytes."""

    model: str
    max_model_len: int
    vocab_size: int
    kv_tokens: int
    """Tokens that the KV pool holds."""
    max_concurrency: float
    """Requests of full length that the KV pool holds."""
    device: str
    threads: int
    pooling: Pooling | None = None
    """How a model makes embeddings, None for one that generates."""
    embedding_size: int | None = None
    weights_bytes: int = 0
    kv_bytes: int = 0
    workspace_bytes: int = 0


class Ready(msgspec.Struct, tag=True, frozen=True):
    info: EngineInfo


class Failed(msgspec.Struct, tag=True, frozen=True):
    """The last message of a process that ends by an exception."""

    message: str


class Counters(msgspec.Struct, frozen=True):
    """Totals since the engine was first started."""

    preemptions: int = 0
    prefix_queries: int = 0
    """Prompt tokens looked up in the prefix cache."""
    prefix_hits: int = 0
    """Prompt tokens found there."""
    prompt_tokens: int = 0
    generation_tokens: int = 0
    steps: int = 0

    def __add__(self, other: "Counters") -> "Counters":
        return Counters(
            *(getattr(self, name) + getattr(other, name) for name in self.__struct_fields__)
        )


class Stats(msgspec.Struct, tag=True, frozen=True):
    """The engine's gauges and totals; sent each second as its heartbeat, and when it falls idle."""

    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    """Share of the KV pages that running requests hold, 0 to 1."""
    kv_pages_total: int = 0
    counters: Counters = Counters()


ToEngine = Generate | Abort | Shutdown
FromEngine = Progress | Ready | Failed | Stats | Deltas

encode = msgspec.msgpack.Encoder().encode
decode_to_engine = msgspec.msgpack.Decoder(ToEngine).decode
decode_from_engine = msgspec.msgpack.Decoder(FromEngine).decode
