"""A memory of computed epsilons."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedprivacy.accounting.arrays import FloatArray, IntArray, located

_MOST_REMEMBERED = 2**20


class Memo:
    """Values by key, for sorted arrays of keys: what a dictionary is for one key, at the speed of arrays."""

    def __init__(self) -> None:
        self._keys, self._values = np.empty(0, dtype=np.int64), np.empty(0)

    def get(self, keys: IntArray, compute: Callable[[IntArray], FloatArray]) -> FloatArray:
        """The value of every key; what is not remembered is computed.

        Args:
            keys: distinct and increasing, shape [keys].
            compute: the values of some places in `keys`.
        """
        values = np.empty(keys.size)
        places, known = located(self._keys, keys)
        values[known] = self._values[places[known]]
        missing = np.flatnonzero(~known)
        if missing.size:
            values[missing] = compute(missing)
            self._remember(keys[missing], values[missing])
        return values

    def _remember(self, keys: IntArray, values: FloatArray) -> None:
        if self._keys.size + keys.size > _MOST_REMEMBERED:
            self._keys, self._values = self._keys[:0], self._values[:0]
        places = np.searchsorted(self._keys, keys)
        self._keys, self._values = np.insert(self._keys, places, keys), np.insert(self._values, places, values)
