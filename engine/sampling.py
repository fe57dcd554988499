"""Choosing the next token of each request from a step's logits.

Greedy requests without penalties are answered by one argmax over the batch. All others are handled
row by row: a row of logits fits the CPU's second-level cache where a batch does not, a request's
tokens cannot depend on what else is in the batch, and a fault stays with its request.
"""

import secrets
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from engine.messages import SamplingParams
from engine.penalties import TokenCounts
from engine.topk import top_ids

_GREEDY_BELOW = 1e-5
"""Temperatures under this are taken as 0: scaled logits would leave the range of float32."""
_FIRST_NUCLEUS = 256
"""How many of the best tokens are looked at first for top_p; four times as many in each retry."""
_COLUMN = 64


class SamplingError(Exception):
    """The logits of a request leave no token to choose."""


class Sampler:
    """Chooses one request's tokens, one after another.

    A request's randomness is its own PCG64 stream, of which each token takes the next draws. With a
    seed, equal logits give equal tokens, alone or in any batch.

    Raises `ValueError` when a token id in `logit_bias` is outside the vocabulary.
    """

    def __init__(
        self, params: SamplingParams, prompt_ids: NDArray[np.int32], vocab_size: int
    ) -> None:
        self.params = params
        self.greedy = params.temperature < _GREEDY_BELOW
        self._num_chosen = 0
        if not self.greedy:
            seed = secrets.randbits(128) if params.seed is None else params.seed % 2**64
            self._stream = np.random.PCG64(seed)
        ends = {*params.eos_token_ids, *params.stop_token_ids} if params.min_tokens else ()
        self._masked = np.array(sorted(i for i in ends if 0 <= i < vocab_size), np.int64)
        self._bias_ids = np.array(list(params.logit_bias), np.int64)
        self._bias = np.array(list(params.logit_bias.values()), np.float32)
        outside = self._bias_ids[(self._bias_ids < 0) | (self._bias_ids >= vocab_size)]
        if len(outside):
            raise ValueError(
                f"logit_bias names token {outside[0]}, the vocabulary has {vocab_size} tokens"
            )
        self._seen = TokenCounts(prompt_ids) if params.repetition_penalty != 1.0 else None
        penalised = params.presence_penalty != 0.0 or params.frequency_penalty != 0.0
        self._output = TokenCounts() if penalised else None
        self._always_edits = len(self._bias) > 0 or self._seen is not None or penalised

    @property
    def is_argmax(self) -> bool:
        """Whether the next token is the argmax of the raw logits."""
        return self.greedy and not self._edits

    @property
    def _edits(self) -> bool:
        return self._always_edits or self._masks_ends

    @property
    def _masks_ends(self) -> bool:
        return len(self._masked) > 0 and self._num_chosen < self.params.min_tokens

    def observe(self, token_id: int) -> None:
        """Takes note of the token that the request went on with."""
        self._num_chosen += 1
        if self._seen is not None:
            self._seen.add(token_id)
        if self._output is not None:
            self._output.add(token_id)

    def choose(self, logits: NDArray[np.float32]) -> int:
        """The next token for raw `logits` [vocab], which are not changed.

        Raises `SamplingError` when a logit is not a number, or none is finite.
        """
        row = self._edited(logits) if self._edits else logits
        best = int(row.argmax())
        check_best(row[best])
        return best if self.greedy else self._draw(row, float(row[best]))

    def _edited(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        params = self.params
        row = logits.copy()
        if self._seen is not None:
            # Keskar et al. 2019, CTRL, as in transformers: negative logits are multiplied.
            ids = self._seen.ids
            values = row[ids]
            penalty = np.float32(params.repetition_penalty)
            row[ids] = np.where(values > 0, values / penalty, values * penalty)
        if self._output is not None:
            row[self._output.ids] -= np.float32(
                params.frequency_penalty
            ) * self._output.counts + np.float32(params.presence_penalty)
        if len(self._bias):
            row[self._bias_ids] += self._bias
        if self._masks_ends:
            row[self._masked] = -np.inf
        return row

    def _draw(self, row: NDArray[np.float32], best: float) -> int:
        params = self.params
        if 0 < params.top_k < len(row):
            ids = top_ids(row, params.top_k)
            weights = _weights(row[ids], best, params.temperature)
            if params.top_p < 1.0:
                kept = _nucleus_size(weights, params.top_p * float(weights.sum(dtype=np.float64)))
                ids, weights = ids[:kept], weights[:kept]
        elif params.top_p < 1.0:
            ids, weights = _nucleus(row, best, params.temperature, params.top_p)
        elif params.min_p > 0.0:
            ids = np.flatnonzero(row >= best + params.temperature * np.log(params.min_p))
            weights = _weights(row[ids], best, params.temperature)
        else:
            return self._pick_any(_weights(row, best, params.temperature))
        if params.min_p > 0.0:
            weights = np.where(weights >= params.min_p, weights, 0.0)
        return int(ids[_pick(weights, self._uniform())])

    def _pick_any(self, weights: NDArray[np.float32]) -> int:
        """Draws from the whole vocabulary without a cumulative sum over it.

        First one of the columns of [64, n/64], or the rest that fills no row, then a token of it.
        """
        columns = len(weights) // _COLUMN
        table = weights[: columns * _COLUMN].reshape(_COLUMN, columns)
        rest = weights[columns * _COLUMN :]
        sums = np.empty(columns + 1, np.float32)
        table.sum(axis=0, out=sums[:columns])
        sums[columns] = rest.sum()
        column = _pick(sums, self._uniform())
        if column == columns:
            return columns * _COLUMN + _pick(rest, self._uniform())
        return column + columns * _pick(table[:, column], self._uniform())

    def _uniform(self) -> float:
        """The stream's next number in [0, 1), a multiple of 2**-53."""
        return int(self._stream.random_raw() >> 11) * 2.0**-53


def choose_tokens(
    logits: NDArray[np.float32], rows: Sequence[int], samplers: Sequence[Sampler]
) -> list[int | Exception]:
    """The next token of each sampler from `logits[rows[i]]`, `logits` being [o, vocab].

    An exception takes the place of the token where choosing failed.
    """
    if all(sampler.is_argmax for sampler in samplers):
        chosen = logits if len(rows) == len(logits) else logits[list(rows)]
        best = chosen.argmax(axis=1)
        if np.isfinite(chosen[np.arange(len(best)), best]).all():
            return list(best.tolist())
    return [_choose(logits[row], sampler) for row, sampler in zip(rows, samplers, strict=True)]


def check_best(value: np.float32) -> None:
    """Raises `SamplingError` unless the best logit is finite (argmax finds any NaN)."""
    if not np.isfinite(value):
        raise SamplingError(f"the model's best logit is {value}: no token can be chosen")


def _choose(row: NDArray[np.float32], sampler: Sampler) -> int | Exception:
    try:
        return sampler.choose(row)
    except Exception as error:
        return error


def _weights(values: NDArray[np.float32], best: float, temperature: float) -> NDArray[np.float32]:
    """Probabilities over the probability of the best token."""
    scaled = values - np.float32(best)
    if temperature != 1.0:
        scaled *= np.float32(1.0 / temperature)
    np.exp(scaled, out=scaled)
    return scaled


def _nucleus(
    row: NDArray[np.float32], best: float, temperature: float, top_p: float
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The fewest best tokens whose probabilities reach `top_p`, best first, and their weights."""
    weights = _weights(row, best, temperature)
    mass = top_p * float(weights.sum())
    size = _FIRST_NUCLEUS
    while True:
        ids = top_ids(row, size)
        top = weights[ids]
        if size >= len(row) or float(top.sum(dtype=np.float64)) >= mass:
            kept = _nucleus_size(top, mass)
            return ids[:kept], top[:kept]
        size *= 4


def _nucleus_size(weights: NDArray[np.float32], mass: float) -> int:
    """How many of the leading weights are needed to reach `mass`."""
    cumulative = np.cumsum(weights, dtype=np.float64)
    return min(int(np.searchsorted(cumulative, mass)) + 1, len(weights))


def _pick(weights: NDArray[np.float32], uniform: float) -> int:
    """Inverse of the cumulative distribution: an index drawn in proportion to `weights` [n]."""
    cumulative = weights.cumsum(dtype=np.float64)
    total = cumulative[-1]
    index = cumulative.searchsorted(uniform * total, side="right")
    if index == len(weights):  # the product was rounded up to the total
        index = cumulative.searchsorted(total)
    return int(index)
