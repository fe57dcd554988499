"""The k largest of a row without sorting it."""

import numpy as np
from numpy.typing import NDArray

_COLUMN = 64


def top_ids(row: NDArray[np.float32], k: int) -> NDArray[np.int64]:
    """Ids of the k largest entries of `row` [n], largest first, the lower id first among equals.

    The k-th largest of the maxima of n/64 groups is a lower bound of the k-th largest entry, and a
    close one while k is small, so one pass over the row leaves little more than k entries to sort.
    """
    n = len(row)
    if k >= n:
        return np.argsort(-row, kind="stable")
    groups = n // _COLUMN
    if k <= groups:
        maxima = row[: groups * _COLUMN].reshape(_COLUMN, groups).max(axis=0)
        bound = np.partition(maxima, groups - k)[groups - k]
    else:
        bound = np.partition(row, n - k)[n - k]
    ids: NDArray[np.int64] = (row >= bound).nonzero()[0]
    return ids[(-row[ids]).argsort(kind="stable")[:k]]
