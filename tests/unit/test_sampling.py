"""Sampling against plain references: one obvious function a feature, and values by hand."""

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from engine.logprobs import token_logprobs
from engine.messages import SamplingParams
from engine.sampling import Sampler, SamplingError, choose_tokens
from engine.topk import top_ids

VOCAB = 1000
NO_PROMPT = np.array([0], np.int32)


def logits_of(seed: int, vocab: int = VOCAB, spread: float = 3.0) -> NDArray[np.float32]:
    generator = np.random.default_rng(seed)
    return (generator.standard_normal(vocab) * spread).astype(np.float32)


def sampler(prompt: list[int] | None = None, vocab: int = VOCAB, **params: Any) -> Sampler:
    sampling = SamplingParams(**{"max_tokens": 100, **params})
    return Sampler(sampling, np.array(prompt or [0], np.int32), vocab)


def allowed(row: NDArray[np.float32], params: SamplingParams) -> NDArray[np.float64]:
    """Probabilities [vocab] after temperature, top_k, top_p and min_p, by sorting all of it."""
    scaled = row.astype(np.float64) / params.temperature
    order = np.argsort(-scaled, kind="stable")
    if params.top_k:
        order = order[: params.top_k]
    probabilities = np.exp(scaled[order] - scaled[order[0]])
    probabilities /= probabilities.sum()
    before = np.cumsum(probabilities) - probabilities
    keep = (before < params.top_p) & (probabilities >= params.min_p * probabilities[0])
    result = np.zeros(len(row))
    result[order[keep]] = probabilities[keep] / probabilities[keep].sum()
    return result


def chi_square_fits(counts: Counter[int], expected: NDArray[np.float64], draws: int) -> bool:
    """Whether the counts are within 5 standard deviations of the chi-square's mean."""
    tokens = np.flatnonzero(expected * draws >= 5)
    observed = np.array([counts[int(token)] for token in tokens], np.float64)
    wanted = expected[tokens] * draws
    rest, rest_wanted = draws - observed.sum(), draws - wanted.sum()
    statistic = float(((observed - wanted) ** 2 / wanted).sum())
    freedom = len(tokens) - 1
    if rest_wanted >= 5:
        statistic += float((rest - rest_wanted) ** 2 / rest_wanted)
        freedom += 1
    return statistic < freedom + 5 * math.sqrt(2 * max(freedom, 1))


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.7},
        {"top_k": 5},
        {"top_p": 0.6},
        {"min_p": 0.1},
        {"top_k": 40, "top_p": 0.9, "min_p": 0.02, "temperature": 1.3},
        {"top_p": 0.95, "min_p": 0.01},
        {"temperature": 2.0, "top_p": 0.999},
    ],
)
@pytest.mark.parametrize("vocab", [1000, 77])
def test_draws_follow_the_distribution(params: dict[str, Any], vocab: int) -> None:
    row, draws = logits_of(1, vocab, 1.5), 5000
    chooser = sampler(vocab=vocab, seed=11, **params)
    counts = Counter(chooser.choose(row) for _ in range(draws))
    expected = allowed(row, chooser.params)
    assert all(expected[token] > 0 for token in counts)
    assert chi_square_fits(counts, expected, draws)


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    temperature=st.floats(0.1, 3.0),
    top_k=st.sampled_from([0, 1, 3, 50, 999, 5000]),
    top_p=st.sampled_from([0.01, 0.5, 0.9, 0.9999, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 1.0]),
    vocab=st.sampled_from([2, 63, 64, 65, 1000]),
    spread=st.sampled_from([0.0, 0.1, 3.0, 30.0]),
)
def test_only_allowed_tokens_are_drawn(
    seed: int, temperature: float, top_k: int, top_p: float, min_p: float, vocab: int, spread: float
) -> None:
    row = logits_of(seed, vocab, spread)
    chooser = sampler(
        vocab=vocab, seed=seed, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p
    )
    # Rounding may move the edges of the nucleus and of min_p by one part in 10^5.
    wider = SamplingParams(
        max_tokens=1,
        temperature=temperature,
        top_k=top_k,
        top_p=min(top_p * 1.00001, 1.0),
        min_p=min_p * 0.99999,
    )
    expected = allowed(row, wider)
    assert all(expected[chooser.choose(row)] > 0 for _ in range(20))


def test_flat_large_vocabulary_has_the_right_nucleus() -> None:
    row = logits_of(3, 20_000, 0.5)
    chooser = sampler(vocab=20_000, seed=1, top_p=0.5)
    expected = allowed(row, chooser.params)
    size = int((expected > 0).sum())
    assert size > 4096
    drawn = {chooser.choose(row) for _ in range(300)}
    assert all(expected[token] > 0 for token in drawn)
    ranks = [int((row > row[token]).sum()) for token in drawn]
    assert max(ranks) > size * 0.9


@pytest.mark.parametrize("temperature", [0.0, 1e-6])
def test_temperature_zero_is_argmax_whatever_the_other_limits(temperature: float) -> None:
    row = logits_of(5)
    chooser = sampler(temperature=temperature, top_p=0.9, top_k=7, min_p=0.3, seed=1)
    assert chooser.choose(row) == int(np.argmax(row))


def test_ties_go_to_the_lowest_id() -> None:
    row = np.zeros(VOCAB, np.float32)
    row[[70, 300, 900]] = 2.0
    for chooser in (
        sampler(temperature=0.0),
        sampler(seed=3, top_k=1),
        sampler(seed=3, top_p=0.001),
    ):
        assert chooser.choose(row) == 70


def test_a_seed_gives_the_same_tokens_alone_and_in_any_batch() -> None:
    steps = [logits_of(100 + i) for i in range(20)]
    params: dict[str, Any] = {"seed": 42, "temperature": 0.8}

    def follow(chooser: Sampler, others: list[Sampler], place: int) -> list[int]:
        tokens = []
        for row in steps:
            samplers = [*others[:place], chooser, *others[place:]]
            batch = np.stack([logits_of(7 + i) for i in range(len(samplers))])
            batch[place] = row
            chosen = choose_tokens(batch, range(len(samplers)), samplers)
            token = chosen[place]
            assert isinstance(token, int)
            tokens.append(token)
            chooser.observe(token)
        return tokens

    alone = follow(sampler(**params), [], 0)
    mixed = [
        sampler(),
        sampler(temperature=0.0),
        sampler(top_k=5),
        sampler(seed=42, top_p=0.9),
        sampler(temperature=0.0, presence_penalty=1.0),
    ]
    assert follow(sampler(**params), mixed, 0) == alone
    assert follow(sampler(**params), mixed * 3, 9) == alone
    assert follow(sampler(**{**params, "seed": 43}), [], 0) != alone


def test_unseeded_requests_differ() -> None:
    row = np.zeros(VOCAB, np.float32)
    first, second = sampler(), sampler()
    assert [first.choose(row) for _ in range(10)] != [second.choose(row) for _ in range(10)]


@pytest.mark.parametrize("seed", [0, -1, 2**63 - 1, 2**64 + 5])
def test_any_integer_is_a_seed(seed: int) -> None:
    row = logits_of(1)
    assert sampler(seed=seed).choose(row) == sampler(seed=seed).choose(row)


def greedy(row: list[float], prompt: list[int], output: list[int], **params: Any) -> int:
    chooser = sampler(prompt, len(row), temperature=0.0, **params)
    for token in output:
        chooser.observe(token)
    return chooser.choose(np.array(row, np.float32))


def test_repetition_penalty_counts_prompt_and_output_and_scales_by_sign() -> None:
    # Positive logits are divided, negative ones multiplied: 4/2=2 < 3.
    assert greedy([4.0, 3.0, 0.0], [0], [], repetition_penalty=2.0) == 1
    assert greedy([4.0, 3.0, 0.0], [2], [0], repetition_penalty=2.0) == 1
    assert greedy([4.0, 3.0, 0.0], [2], [], repetition_penalty=2.0) == 0
    assert greedy([-1.0, -1.5], [0], [], repetition_penalty=2.0) == 1
    # Once, however often a token was used: 4/1.2 = 3.33 > 3.
    assert greedy([4.0, 3.0, 0.0], [0, 0, 0], [0, 0], repetition_penalty=1.2) == 0


def test_presence_and_frequency_count_the_output_only() -> None:
    row = [2.0, 1.0, 0.0]
    assert greedy(row, [0, 0, 0, 0], [], presence_penalty=2.0, frequency_penalty=2.0) == 0
    assert greedy(row, [0], [0], presence_penalty=1.5) == 1
    assert greedy(row, [0], [0, 0, 0], presence_penalty=0.9) == 0
    assert greedy(row, [0], [0, 0], frequency_penalty=0.6) == 1
    assert greedy(row, [0], [0], frequency_penalty=0.6) == 0
    assert greedy(row, [0], [2], presence_penalty=-2.0, frequency_penalty=-1.0) == 2


def test_penalties_of_many_tokens_equal_a_plain_count() -> None:
    row = logits_of(8, 200)
    output = np.random.default_rng(0).integers(0, 200, 400).tolist()
    prompt = list(range(0, 200, 3))
    chooser = sampler(
        prompt,
        200,
        temperature=0.0,
        presence_penalty=0.3,
        frequency_penalty=0.2,
        repetition_penalty=1.3,
    )
    expected = row.copy()
    for token in range(200):
        if token in prompt or token in output:
            value = expected[token]
            expected[token] = value / 1.3 if value > 0 else value * 1.3
        count = output.count(token)
        if count:
            expected[token] -= 0.3 + 0.2 * count
    for token in output:
        chooser.observe(token)
    assert chooser.choose(row) == int(expected.argmax())
    assert np.array_equal(row, logits_of(8, 200)), "raw logits are changed"


def test_logit_bias_bans_and_forces() -> None:
    row = [5.0, 4.0, 3.0]
    assert greedy(row, [0], [], logit_bias={0: -100.0}) == 1
    assert greedy(row, [0], [], logit_bias={2: 100.0}) == 2
    with pytest.raises(ValueError, match="logit_bias names token 3, the vocabulary has 3"):
        sampler(vocab=3, logit_bias={3: 1.0})


def test_min_tokens_masks_every_end_until_reached() -> None:
    row = [5.0, 4.0, 3.0]
    ends: dict[str, Any] = {"eos_token_ids": (0,), "stop_token_ids": (1,), "min_tokens": 2}
    assert greedy(row, [0], [], **ends) == 2
    assert greedy(row, [0], [2], **ends) == 2
    assert greedy(row, [0], [2, 2], **ends) == 0


@pytest.mark.parametrize("params", [{"temperature": 0.0}, {"seed": 1}, {"seed": 1, "top_p": 0.5}])
def test_a_row_that_is_not_a_number_fails_alone(params: dict[str, Any]) -> None:
    batch = np.stack([logits_of(1), logits_of(2), logits_of(3)])
    batch[1, 500] = np.nan
    chosen = choose_tokens(batch, [0, 1, 2], [sampler(**params) for _ in range(3)])
    assert isinstance(chosen[1], SamplingError)
    assert isinstance(chosen[0], int)
    assert isinstance(chosen[2], int)


def test_greedy_batch_takes_the_rows_it_is_told() -> None:
    batch = np.stack([logits_of(i) for i in range(6)])
    rows = [5, 0, 3]
    chosen = choose_tokens(batch, rows, [sampler(temperature=0.0) for _ in rows])
    assert chosen == [int(batch[row].argmax()) for row in rows]


@settings(max_examples=200, deadline=None)
@given(
    values=st.lists(
        st.sampled_from([-math.inf, -1.0, 0.0, 0.5, 1.0, 7.0]), min_size=1, max_size=300
    ),
    k=st.integers(1, 400),
)
def test_top_ids_is_a_stable_sort(values: list[float], k: int) -> None:
    row = np.array(values, np.float32)
    expected = sorted(range(len(values)), key=lambda i: (-values[i], i))[:k]
    assert top_ids(row, k).tolist() == expected


@pytest.mark.parametrize("k", [1, 5, 20, 64, 700, 10_000])
def test_top_ids_of_a_vocabulary(k: int) -> None:
    row = logits_of(4, 49_152)
    assert top_ids(row, k).tolist() == np.argsort(-row, kind="stable")[:k].tolist()


def test_logprobs_by_hand() -> None:
    row = np.log(np.array([0.1, 0.2, 0.3, 0.4], np.float32)) + np.float32(50.0)
    scored = token_logprobs(row, 1, 2)
    assert scored.token_id == 1
    assert scored.rank == 3
    assert scored.logprob == pytest.approx(math.log(0.2), abs=1e-5)
    assert [token for token, _ in scored.top] == [3, 2]
    assert scored.top[0][1] == pytest.approx(math.log(0.4), abs=1e-5)
    assert token_logprobs(row, 3, 0).top == []


def test_logprobs_of_the_whole_vocabulary_sum_to_one() -> None:
    row = logits_of(9)
    scored = token_logprobs(row, 0, VOCAB)
    assert sum(math.exp(logprob) for _, logprob in scored.top) == pytest.approx(1.0, abs=1e-5)
    assert dict(scored.top)[0] == pytest.approx(scored.logprob)
    assert [token for token, _ in scored.top].index(0) == scored.rank - 1
