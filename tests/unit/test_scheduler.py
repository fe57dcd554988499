"""The engine's loop on a model that notices every misplaced token."""

from pathlib import Path

import numpy as np
import pytest
from hash_runner import VOCAB_SIZE, HashRunner, continuation
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import EngineConfig
from engine.core import EngineCore
from engine.messages import Delta, Generate, SamplingParams, TokenLogprobs
from engine.scheduler import split_budget

STEP_LIMIT = 20_000


def config(
    max_num_seqs: int = 8, max_batch_tokens: int = 32, prefix_cache: bool = True
) -> EngineConfig:
    return EngineConfig(
        cache_dir=Path(),
        max_num_seqs=max_num_seqs,
        max_batch_tokens=max_batch_tokens,
        prefix_cache=prefix_cache,
    )


class Harness:
    """An engine, and what each request has been answered so far."""

    def __init__(
        self, num_pages: int = 64, max_model_len: int = 256, settings: EngineConfig | None = None
    ) -> None:
        settings = settings or config()
        self.runner = HashRunner(num_pages, max_model_len, settings.max_logit_rows)
        self.core = EngineCore(self.runner, settings)
        self.tokens: dict[str, list[int]] = {}
        self.last: dict[str, Delta] = {}

    def add(
        self, name: str, prompt: list[int], max_tokens: int, priority: int = 0, **params: object
    ) -> None:
        sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, **params)  # type: ignore[arg-type]
        self.tokens[name] = []
        self.receive(self.core.add(Generate(name, prompt, sampling, priority)))

    def receive(self, delta: Delta | None) -> None:
        if delta is not None:
            assert delta.request_id not in self.last, "a delta after the last one"
            self.tokens[delta.request_id] += delta.token_ids
            if delta.finish_reason is not None:
                self.last[delta.request_id] = delta

    def step(self) -> list[Delta]:
        deltas = self.core.step()
        for delta in deltas:
            self.receive(delta)
        return deltas

    def run(self) -> None:
        for _ in range(STEP_LIMIT):
            if not self.core.busy:
                return
            self.step()
        raise AssertionError("the engine makes no end")

    def assert_all_pages_free(self) -> None:
        stats = self.core.stats()
        assert (stats.running, stats.waiting, stats.kv_usage) == (0, 0, 0.0)


REQUESTS = st.lists(
    st.tuples(
        st.integers(0, 2),  # family: prompts of one family share their beginning
        st.integers(1, 88),  # prompt length
        st.integers(1, 40),  # max_tokens
        st.integers(0, 6),  # steps before it arrives
        st.integers(0, 1),  # priority
        st.one_of(st.none(), st.integers(0, 12)),  # aborted so many steps later
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=150, deadline=None)
@given(
    requests=REQUESTS,
    num_pages=st.integers(8, 24),
    max_num_seqs=st.integers(1, 6),
    max_batch_tokens=st.sampled_from([6, 17, 32, 100]),
    prefix_cache=st.booleans(),
)
def test_any_mix_of_requests_gets_the_tokens_of_a_solo_run(
    requests: list[tuple[int, int, int, int, int, int | None]],
    num_pages: int,
    max_num_seqs: int,
    max_batch_tokens: int,
    prefix_cache: bool,
) -> None:
    run = Harness(num_pages, 128, config(max_num_seqs, max_batch_tokens, prefix_cache))
    aborts: dict[int, list[str]] = {}
    arrivals = {}
    clock = 0
    for index, (family, length, max_tokens, delay, priority, abort_after) in enumerate(requests):
        prompt = [(family + i * i) % VOCAB_SIZE for i in range(length)]
        arrivals[str(index)] = (clock := clock + delay, prompt, max_tokens, priority)
        if abort_after is not None:
            aborts.setdefault(clock + abort_after, []).append(str(index))
    for now in range(STEP_LIMIT):
        for name, (time, prompt, max_tokens, priority) in arrivals.items():
            if time == now:
                run.add(name, prompt, max_tokens, priority)
        for name in aborts.get(now, []):
            run.receive(run.core.abort(name))
        run.step()
        if now > clock and not run.core.busy:
            break
    assert set(run.last) == set(arrivals)
    for name, (_, prompt, max_tokens, _) in arrivals.items():
        expected = continuation(prompt, max_tokens)
        if run.last[name].finish_reason == "abort":
            assert run.tokens[name] == expected[: len(run.tokens[name])]
        else:
            assert run.last[name].finish_reason == "length"
            assert run.tokens[name] == expected
    run.assert_all_pages_free()


def test_when_pages_run_out_requests_are_preempted_and_go_on_with_the_same_tokens() -> None:
    run = Harness(num_pages=9, max_model_len=128)
    prompts = {str(i): [i, *range(1, 20)] for i in range(6)}
    for name, prompt in prompts.items():
        run.add(name, prompt, 60)
    run.run()
    assert run.core.stats().counters.preemptions > 0
    for name, prompt in prompts.items():
        assert run.tokens[name] == continuation(prompt, 60)
    timings = run.last["5"].timings
    assert timings is not None
    assert timings.preemptions > 0


def test_the_oldest_request_is_never_preempted() -> None:
    run = Harness(num_pages=8, max_model_len=128)
    run.add("old", [1] * 10, 100)
    for i in range(5):
        run.add(str(i), [i] * 30, 30)
    run.run()
    timings = run.last["old"].timings
    assert timings is not None
    assert timings.preemptions == 0


def test_a_prefill_takes_its_pages_back_from_a_younger_request_that_grew() -> None:
    run = Harness(num_pages=8, max_model_len=128, settings=config(4, 8))
    long = [i % VOCAB_SIZE for i in range(100)]
    run.add("old", long, 20)
    run.add("young", [1, 2, 3, 4], 60)
    for _ in range(18):  # 4 tokens in the first step, 7 beside the other's decode in each other
        run.step()
    assert run.tokens["old"]
    run.run()
    young, old = run.last["young"].timings, run.last["old"].timings
    assert young is not None
    assert old is not None
    assert (old.preemptions, young.preemptions > 0) == (0, True)
    assert run.tokens == {"old": continuation(long, 20), "young": continuation([1, 2, 3, 4], 60)}


def test_pages_that_a_running_prompt_still_needs_are_not_given_to_a_waiting_one() -> None:
    run = Harness(num_pages=8, max_model_len=128, settings=config(4, 8))
    for token, name in enumerate(("first", "second", "third")):
        run.add(name, [token] * 100, 1)
        if name != "first":
            run.step()
    assert (run.core.stats().running, run.core.stats().waiting) == (1, 2)
    run.run()
    assert run.core.stats().counters.preemptions == 0


def test_a_smaller_priority_goes_first_then_the_earlier_arrival() -> None:
    run = Harness(settings=config(max_num_seqs=1))
    for name, priority in [("c", 1), ("a", 0), ("d", 1), ("b", 0)]:
        run.add(name, [5, 6], 3, priority)
    run.run()
    assert list(run.last) == ["a", "b", "c", "d"]


def test_a_long_prompt_delays_short_ones_by_few_steps() -> None:
    run = Harness(num_pages=300, max_model_len=4096, settings=config(32, 64))
    run.add("long", [i % VOCAB_SIZE for i in range(3000)], 2)
    for i in range(8):
        run.add(str(i), [i] * 16, 1)
    for _ in range(6):
        run.step()
    assert set(run.last) == {str(i) for i in range(8)}
    run.run()
    assert run.tokens["long"] == continuation([i % VOCAB_SIZE for i in range(3000)], 2)


def test_running_requests_decode_in_every_step_of_a_long_prefill() -> None:
    run = Harness(num_pages=100, max_model_len=1024, settings=config(4, 32))
    run.add("chat", [1, 2, 3], 30)
    run.step()
    run.add("long", [1] * 600, 1)
    for _ in range(15):
        assert [delta.request_id for delta in run.step()] == ["chat"]
    assert all(len(batch.token_ids) <= 32 for batch in run.runner.batches)


@pytest.mark.parametrize(
    ("remaining", "budget", "grants"),
    [
        ([100], 64, [64]),
        ([100, 100], 64, [64, 0]),
        ([1000, 10, 20], 64, [34, 10, 20]),
        ([1000, 30, 30], 64, [32, 30, 2]),
        ([5, 1000], 64, [5, 59]),
        ([3, 4], 64, [3, 4]),
        ([10, 10], 1, [1, 0]),
        ([10, 10], 0, [0, 0]),
    ],
)
def test_split_budget(remaining: list[int], budget: int, grants: list[int]) -> None:
    assert split_budget(remaining, budget) == grants


def test_second_equal_prompt_is_taken_from_the_cache() -> None:
    run = Harness()
    prompt = [i % VOCAB_SIZE for i in range(100)]
    run.add("first", prompt, 4)
    run.run()
    run.add("second", prompt, 4)
    run.run()
    assert (run.last["first"].cached_tokens, run.last["second"].cached_tokens) == (0, 96)
    assert run.tokens["first"] == run.tokens["second"] == continuation(prompt, 4)
    counters = run.core.stats().counters
    assert (counters.prefix_queries, counters.prefix_hits) == (200, 96)


def test_a_fully_cached_prompt_still_computes_a_token() -> None:
    run = Harness()
    prompt = [3] * 64
    run.add("first", prompt, 2)
    run.run()
    run.add("second", prompt, 2)
    run.run()
    assert run.last["second"].cached_tokens == 48
    assert run.tokens["second"] == continuation(prompt, 2)


def test_equal_prompts_that_arrive_together_are_computed_once() -> None:
    run = Harness(settings=config(8, 64))
    prompt = [i % VOCAB_SIZE for i in range(130)]
    for i in range(4):
        run.add(str(i), prompt, 1)
    run.run()
    assert run.runner.computed_tokens <= 130 + 3 * 16
    assert all(run.tokens[str(i)] == continuation(prompt, 1) for i in range(4))


def test_without_prefix_cache_nothing_is_reused() -> None:
    run = Harness(settings=config(prefix_cache=False))
    for name in ("first", "second"):
        run.add(name, [1] * 50, 2)
        run.run()
    assert run.last["second"].cached_tokens == 0
    assert run.core.stats().counters.prefix_queries == 0


def test_generated_pages_are_reused_by_the_next_turn() -> None:
    run = Harness()
    prompt = [9] * 20
    run.add("first", prompt, 40)
    run.run()
    turn = prompt + run.tokens["first"] + [1, 2, 3]
    run.add("second", turn, 3)
    run.run()
    assert run.last["second"].cached_tokens == 48
    assert run.tokens["second"] == continuation(turn, 3)


def test_prompt_one_below_the_context_gives_one_token_and_length() -> None:
    run = Harness(max_model_len=64)
    run.add("ok", [1] * 63, 100)
    run.add("full", [1] * 64, 1)
    run.run()
    assert run.tokens["ok"] == continuation([1] * 63, 1)
    assert run.last["ok"].finish_reason == "length"
    assert run.last["full"].finish_reason == "error"
    assert run.last["full"].error is not None
    assert "65" in run.last["full"].error
    assert "64" in run.last["full"].error


def test_a_request_larger_than_the_pool_is_refused_with_both_numbers() -> None:
    run = Harness(num_pages=4, max_model_len=256)
    run.add("exact", [1] * 40, 25)
    run.add("over", [1] * 40, 26)
    run.run()
    assert run.tokens["exact"] == continuation([1] * 40, 25)
    assert run.last["over"].error == "the request's KV cache needs 65 tokens, the limit is 64"


@pytest.mark.parametrize("prompt", [[], [VOCAB_SIZE], [-1], [10**9]])
def test_a_bad_prompt_is_answered_and_the_engine_goes_on(prompt: list[int]) -> None:
    run = Harness()
    run.add("bad", prompt, 4)
    run.add("good", [1], 2)
    run.run()
    assert run.last["bad"].finish_reason == "error"
    assert run.tokens["good"] == continuation([1], 2)


def test_end_and_stop_tokens_end_a_request() -> None:
    prompt = [4, 5]
    said = continuation(prompt, 30)
    third = said[2]
    first_at = said.index(third) + 1
    run = Harness()
    run.add("eos", prompt, 30, eos_token_ids=(third,))
    run.add("stop", prompt, 30, stop_token_ids=(third,))
    run.add("both", prompt, 30, eos_token_ids=(third,), stop_token_ids=(third,))
    run.run()
    for name, stop_token_id in [("eos", None), ("stop", third), ("both", None)]:
        assert run.tokens[name] == said[:first_at]
        assert run.last[name].finish_reason == "stop"
        assert run.last[name].stop_token_id == stop_token_id


def test_min_tokens_masks_the_end() -> None:
    prompt = [4, 5]
    first = continuation(prompt, 1)[0]
    run = Harness()
    run.add("r", prompt, 8, eos_token_ids=(first,), min_tokens=4)
    run.run()
    assert first not in run.tokens["r"][:4]
    assert len(run.tokens["r"]) >= 4


def one_hot_logprobs(token_id: int, best: int) -> tuple[float, int]:
    """Log-softmax of logits that are 1 at `best` and 0 elsewhere, and the rank."""
    log_total = float(np.log(np.e + VOCAB_SIZE - 1))
    return (1 - log_total, 1) if token_id == best else (-log_total, 2)


@pytest.mark.parametrize("max_tokens", [0, 2])
@pytest.mark.parametrize("num_pages", [9, 64])
def test_prompt_logprobs_score_each_token_given_all_before_it(
    max_tokens: int, num_pages: int
) -> None:
    prompt = [*continuation([7], 50), 1, 2, 3]
    run = Harness(num_pages=num_pages, settings=config(2, 16))
    deltas: list[Delta] = []
    run.add("warm", prompt, 30)
    run.add("score", prompt, max_tokens, prompt_logprobs=2)
    while run.core.busy:
        deltas += [delta for delta in run.step() if delta.request_id == "score"]
    scores = deltas[0].prompt_logprobs
    assert scores is not None
    assert all(delta.prompt_logprobs is None for delta in deltas[1:])
    assert len(scores) == len(prompt)
    assert scores[0] is None
    for place in range(1, len(prompt)):
        score = scores[place]
        assert isinstance(score, TokenLogprobs)
        best = continuation(prompt[:place], 1)[0]
        logprob, rank = one_hot_logprobs(prompt[place], best)
        assert score.token_id == prompt[place]
        assert score.logprob == pytest.approx(logprob, abs=1e-5)
        assert score.rank == rank
        assert score.top[0][0] == best
        assert len(score.top) == 2
    assert run.tokens["score"] == continuation(prompt, max_tokens)
    assert run.last["score"].finish_reason == "length"


def test_score_of_one_token_prompt_is_none() -> None:
    run = Harness()
    run.add("score", [1], 0, prompt_logprobs=0)
    run.run()
    assert run.last["score"].prompt_logprobs == [None]
    assert run.last["score"].finish_reason == "length"


def test_abort_frees_pages_of_waiting_and_running_requests() -> None:
    run = Harness(settings=config(max_num_seqs=1))
    run.add("running", [1] * 40, 100)
    run.add("waiting", [1] * 40, 100)
    run.step()
    for name in ("running", "waiting", "unknown"):
        run.receive(run.core.abort(name))
    assert run.last["running"].finish_reason == run.last["waiting"].finish_reason == "abort"
    run.assert_all_pages_free()
    assert not run.core.busy


def test_a_request_id_in_use_is_refused() -> None:
    run = Harness()
    run.add("a", [1], 3)
    refusal = run.core.add(Generate("a", [1], SamplingParams(max_tokens=1)))
    assert refusal is not None
    assert refusal.finish_reason == "error"
    run.run()
    assert run.tokens["a"] == continuation([1], 3)
