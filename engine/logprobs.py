"""Log-probabilities of tokens, from raw logits."""

import math

import numpy as np
from numpy.typing import NDArray

from engine.messages import TokenLogprobs
from engine.topk import top_ids


def token_logprobs(logits: NDArray[np.float32], token_id: int, top: int) -> TokenLogprobs:
    """Log-softmax of `logits` [vocab] at `token_id` and at the `top` most likely tokens."""
    best = logits.max()
    shifted = logits - best
    log_total = float(best) + math.log(np.exp(shifted, out=shifted).sum())
    value = logits[token_id]
    ids = top_ids(logits, top) if top else np.empty(0, np.int64)
    values = logits[ids].astype(np.float64) - log_total
    return TokenLogprobs(
        token_id=token_id,
        logprob=float(value) - log_total,
        rank=1 + int(np.count_nonzero(logits > value)),
        top=list(zip(ids.tolist(), values.tolist(), strict=True)),
    )
