"""A scripted engine and a tiny tokenizer, for answers whose exact text a test decides."""

import asyncio
import json
import threading
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path

import numpy as np
from msgspec.structs import replace
from tokenizers import Tokenizer as HFTokenizer
from tokenizers import decoders, models, pre_tokenizers, processors

from engine.errors import EngineDied, NotReady, QueueFull
from engine.messages import (
    Counters,
    Delta,
    EngineInfo,
    Progress,
    SamplingParams,
    Stats,
    Timings,
    TokenLogprobs,
)
from engine.pooling import Pooling

BOS, EOS, END_OF_TURN = 0, 1, 2
SPECIAL = {"<s>": BOS, "</s>": EOS, "<|end|>": END_OF_TURN}
FIRST_BYTE = 3
WHOLE_TOKENS = ["DEF", "GHI", " world", "hello", "REFUSE"]
VOCAB_SIZE = FIRST_BYTE + 256 + len(WHOLE_TOKENS)
CONTEXT = 128
QUEUE_LIMIT = 12

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m['content'] == 'REFUSE' %}{{ raise_exception('Roles must alternate') }}{% endif %}"
    "<{{ m['role'][0] }}>{{ m['content'] }}"
    "{% if not (continue_final_message and loop.last) %}<|end|>{% endif %}{% endfor %}"
    "{% if shout is defined %}!{% endif %}{% if add_generation_prompt %}<a>{% endif %}"
)


def _byte_letters() -> dict[int, str]:
    """GPT-2's printable stand-in for each byte, as byte-level BPE vocabularies spell it."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {byte: chr(byte) for byte in plain}
    others = [byte for byte in range(256) if byte not in letters]
    return letters | {byte: chr(256 + i) for i, byte in enumerate(others)}


def write_tokenizer(folder: Path) -> None:
    """A byte-level tokenizer: one token a byte, and a few longer ones that only the engine uses."""
    letters = _byte_letters()
    vocab = dict(SPECIAL)
    vocab |= {letters[byte]: FIRST_BYTE + byte for byte in range(256)}
    for token in WHOLE_TOKENS:
        vocab["".join(letters[byte] for byte in token.encode())] = len(vocab)
    tokenizer = HFTokenizer(models.BPE(vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", BOS)]
    )
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": CHAT_TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def bytes_of(text: str) -> list[int]:
    """One token a byte of `text`."""
    return [FIRST_BYTE + byte for byte in text.encode()]


def whole(token: str) -> int:
    return FIRST_BYTE + 256 + WHOLE_TOKENS.index(token)


Script = Callable[[list[int], SamplingParams], Sequence[int]]


class ScriptedEngine:
    """Plays `script(prompt_ids, params)` a token a step, and ends as the real engine does.

    The script ends with an end token, or goes on forever by its last token. Tests steer it from
    their own thread: `gate` cleared holds every request after `pass_first` tokens, `die()` is the
    process's death.
    """

    failure: str | None = None
    progress: Progress | None = None

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.active: set[str] = set()
        self._deaths = 0
        self.reset()

    def reset(self) -> None:
        """Back to how it started."""
        self.script: Script = lambda ids, params: [*bytes_of("ok"), EOS]
        self.state = "ready"
        self.info = EngineInfo(
            model="scripted",
            max_model_len=CONTEXT,
            vocab_size=VOCAB_SIZE,
            kv_tokens=CONTEXT * 4,
            max_concurrency=4.0,
            device="scripted",
            threads=1,
        )
        self.gate.set()
        self.pass_first = 0
        self.tokens_a_delta = 1
        self.seen: list[tuple[list[int], SamplingParams]] = []
        self.cached_tokens = 0
        self.error_after: int | None = None
        self.queue_limit = QUEUE_LIMIT

    def embeds(self) -> None:
        """From now on a model that makes embeddings of three numbers: the prompt's length, its first id and 1."""
        self.info = replace(self.info, pooling=Pooling("mean", False), embedding_size=3)

    @property
    def stats(self) -> Stats:
        return Stats(len(self.active), 0, len(self.active) / 16, 16, Counters())

    def die(self) -> None:
        self._deaths += 1

    async def start(self) -> None:
        return None

    async def wait_ready(self) -> EngineInfo:
        return self.info

    async def close(self, drain_s: float = 0.0) -> None:
        return None

    def check_admission(self, count: int = 1) -> None:
        if self.state != "ready":
            raise NotReady(self.state)
        if len(self.active) + count > self.queue_limit:
            raise QueueFull(len(self.active), self.queue_limit)

    def generate(
        self, request_id: str, prompt_ids: list[int], params: SamplingParams, priority: int = 0
    ) -> "ScriptedStream":
        self.check_admission()
        assert request_id not in self.active
        self.active.add(request_id)
        self.seen.append((prompt_ids, params))
        played = self._play(request_id, prompt_ids, params, self._deaths)
        return ScriptedStream(self, request_id, played)

    async def _play(
        self, request_id: str, prompt_ids: list[int], params: SamplingParams, deaths: int
    ) -> AsyncGenerator[Delta, None]:
        started_s = time.monotonic()
        sent = 0
        for delta in self._deltas(request_id, prompt_ids, params):
            while sent >= self.pass_first and not self.gate.is_set() and self._deaths == deaths:
                await asyncio.sleep(0.005)
            if self._deaths > deaths:
                raise EngineDied("killed")
            sent += len(delta.token_ids)
            if self.error_after is not None and sent > self.error_after:
                yield Delta(request_id, [], finish_reason="error", error="scripted failure")
                return
            if delta.finish_reason is not None:
                delta.timings = Timings(0.0, 0.0, time.monotonic() - started_s, 0)
            yield delta
            await asyncio.sleep(0)

    def _deltas(
        self, request_id: str, prompt_ids: list[int], params: SamplingParams
    ) -> list[Delta]:
        if self.info.pooling is not None:
            vector = np.array([len(prompt_ids), prompt_ids[0], 1], np.float32)
            return [Delta(request_id, [], finish_reason="stop", embedding=vector.tobytes())]
        ids, reason, stop_id = self._tokens(prompt_ids, params)
        groups = [
            ids[i : i + self.tokens_a_delta] for i in range(0, len(ids), self.tokens_a_delta)
        ] or [[]]
        deltas = [Delta(request_id, group, cached_tokens=self.cached_tokens) for group in groups]
        if params.logprobs is not None:
            for delta in deltas:
                delta.logprobs = [logprob_of(i, params.logprobs) for i in delta.token_ids]
        if params.prompt_logprobs is not None:
            count = params.prompt_logprobs
            deltas[0].prompt_logprobs = [None, *(logprob_of(i, count) for i in prompt_ids[1:])]
        deltas[-1].finish_reason = reason
        deltas[-1].stop_token_id = stop_id
        return deltas

    def _tokens(
        self, prompt_ids: list[int], params: SamplingParams
    ) -> tuple[list[int], str, int | None]:
        script = list(self.script(prompt_ids, params))
        limit = min(params.max_tokens, CONTEXT - len(prompt_ids))
        ids: list[int] = []
        while len(ids) < limit:
            token = script[min(len(ids), len(script) - 1)]
            ids.append(token)
            if len(ids) <= params.min_tokens:
                continue
            if token in params.stop_token_ids:
                return ids, "stop", token
            if token in params.eos_token_ids:
                return ids, "stop", None
        return ids, "length", None


class ScriptedStream:
    """The deltas of one request; it is active until they end or are closed."""

    def __init__(
        self, engine: ScriptedEngine, request_id: str, deltas: AsyncGenerator[Delta, None]
    ) -> None:
        self._engine = engine
        self._request_id = request_id
        self._deltas = deltas

    def __aiter__(self) -> "ScriptedStream":
        return self

    async def __anext__(self) -> Delta:
        try:
            delta = await anext(self._deltas)
        except BaseException:
            self._engine.active.discard(self._request_id)
            raise
        if delta.finish_reason is not None:
            self._engine.active.discard(self._request_id)
        return delta

    async def aclose(self) -> None:
        self._engine.active.discard(self._request_id)
        await self._deltas.aclose()


def logprob_of(token_id: int, top: int) -> TokenLogprobs:
    """A made-up logprob that depends on the id alone; the token itself is third best."""
    better = [(EOS, -0.25), (END_OF_TURN, -0.5)]
    alternatives = [*better, (token_id, -token_id / 1000 - 1)]
    return TokenLogprobs(token_id, -token_id / 1000 - 1, 3, alternatives[:top])
