"""Lattice noise in one compiled pass, where numba is installed: the same bits as numpy's passes in half of their time.

numpy reads and writes a block of draws eight times: a word becomes a layer, a width, a draw, a sum. Compiled,
it stays in a register. numba compiles the function below as it stands, without reordering or fusing any arithmetic,
once in a process and only after so many draws that it pays: short runs do not even import it. Before it is used, its
result on made-up words is compared with Python's, bit for bit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np

log = logging.getLogger(__name__)

_WORTH = 2**28
"""Number of draws before compilation: numpy needs 0.8 s more for them, and compiling takes 1 to 2 s."""

_TRIED = 2**12
"""Number of made-up words on which compiled code is checked."""

Array = np.ndarray[Any, np.dtype[Any]]

OnePass = Callable[[Array, Array, int, Array, float, Array, Array], int]


def release(  # noqa: PLR0917 - numba takes no names
    words: Array,
    widths: Array,
    rectangles: int,
    sums: Array,
    centre: float,
    released: Array,
    outside: Array,
) -> int:
    """Round sums to the lattice, add to each the draw of its word, rounded too, and write the result.

    Args:
        words: shape [n], int64, one for each sum.
        widths: widths of the layers' rectangles, float64; their number is a power of two.
        rectangles: number of layers that have a rectangle.
        sums: shape [n], float64, finite and within the lattice's range.
        centre: number that is added and subtracted to round: 1.5 2^52 steps of the lattice.
        released: output, shape [n], float32.
        outside: output, shape [n] or longer: places of the words whose layer has no rectangle.

    Returns:
        Number of words that fell outside.
    """
    found, mask = 0, len(widths) - 1
    for place in range(len(words)):
        layer = words[place] & mask
        released[place] = ((sums[place] + centre) + words[place] * widths[layer]) - centre
        if layer >= rectangles:
            outside[found] = place
            found += 1
    return found


class WhenWorth:
    """The function `release`, compiled once this process has made enough draws for that to pay.

    Attributes:
        drawn: number of draws so far.
        compiled: whether compiled code is in use.
    """

    def __init__(self) -> None:
        self.drawn = 0
        self._compiled: OnePass | None = None
        self._tried = False

    @property
    def compiled(self) -> bool:
        """True once this process has compiled it."""
        return self._compiled is not None

    def next(self, draws: int) -> OnePass | None:
        """Return the compiled function for the next `draws` draws; None: numpy makes them."""
        self.drawn += draws
        if self.drawn > _WORTH and not self._tried:
            self._tried, self._compiled = True, compile_release()
        return self._compiled


def compile_release() -> OnePass | None:
    """Compile `release` by numba; None: it is not installed, or does not compute the same bits here."""
    try:
        from numba import njit

        fast: OnePass = njit(nogil=True)(release)
        if _release_made_up_words(fast) == _release_made_up_words(release):
            return fast
        log.warning("Noise is drawn by numpy: what numba compiles on this machine has other bits.")
    except ImportError:
        log.debug("Noise is drawn by numpy: numba is not installed.")
    except Exception:
        log.warning("Noise is drawn by numpy: numba cannot compile here.", exc_info=True)
    return None


def _release_made_up_words(one_pass: OnePass) -> tuple[int, bytes, bytes]:
    random = np.random.default_rng(0)
    words = random.integers(-(2**63), 2**63, _TRIED)
    widths, sums = random.random(2**8) * 2.0**-62, random.standard_normal(_TRIED)
    released, outside = np.empty(_TRIED, dtype=np.float32), np.zeros(_TRIED, dtype=np.intp)
    found = one_pass(words, widths, 2**8 - 4, sums, 1.5 * 2.0**28, released, outside)
    return found, released.tobytes(), outside.tobytes()
