"""How often a request has used each token, kept so that a step costs no Python work per token."""

import numpy as np
from numpy.typing import NDArray


class TokenCounts:
    """Distinct token ids and their counts, in two arrays that grow in place."""

    def __init__(self, token_ids: NDArray[np.int32] | None = None) -> None:
        ids, counts = np.unique(
            np.empty(0, np.int32) if token_ids is None else token_ids, return_counts=True
        )
        self._places = {int(token): place for place, token in enumerate(ids)}
        self._ids = ids.astype(np.int64)
        self._counts = counts.astype(np.float32)

    @property
    def ids(self) -> NDArray[np.int64]:
        """[n] distinct token ids."""
        return self._ids[: len(self._places)]

    @property
    def counts(self) -> NDArray[np.float32]:
        """[n] how often each of `ids` occurred."""
        return self._counts[: len(self._places)]

    def add(self, token_id: int) -> None:
        place = self._places.setdefault(token_id, len(self._places))
        if place == len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros(place + 16, np.int64)])
            self._counts = np.concatenate([self._counts, np.zeros(place + 16, np.float32)])
        self._ids[place] = token_id
        self._counts[place] += 1
