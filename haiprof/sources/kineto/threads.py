"""Thread numbers, unique within a file: two processes in one may use the same thread number.

Tests: tests/sources/kineto/test_import.py.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from haiprof.sources.kineto.columns import Group, codes
from haiprof.sources.kineto.texts import NO_CODE, Texts

#: With this many (process, thread) pairs per row, sorting is cheaper than a table.
_SPARSE: Final = 4


class Threads:
    """The number of each thread of a file."""

    def __init__(self, texts: Texts) -> None:
        """Start without any; ``texts`` are the file's."""
        self._texts = texts
        self._known: dict[tuple[int, int], int] = {}
        self._taken: set[int] = set()

    def of_host(self, group: Group) -> npt.NDArray[np.uint32]:
        """Return each row's thread: its number, or a free one if another process has it."""
        return self._column(group, claim=True)

    def of_any(self, group: Group) -> npt.NDArray[np.uint32]:
        """Return each row's thread as the host's rows have it, else its number: a stream's."""
        return self._column(group, claim=False)

    def _column(self, group: Group, *, claim: bool) -> npt.NDArray[np.uint32]:
        processes, process = self._texts.ranked(codes(group, "process"))
        threads, thread = self._texts.ranked(codes(group, "thread"))
        pairs, first, row = _pairs(process, thread, len(threads))
        numbers = np.zeros(len(pairs), np.uint32)
        # The first one keeps the number.
        for at in np.argsort(first, kind="stable"):
            of, number = divmod(int(pairs[at]), len(threads))
            numbers[at] = self._number((int(processes[of]), int(threads[number])), claim)
        return numbers[row]

    def _number(self, pair: tuple[int, int], claim: bool) -> int:
        known = self._known.get(pair)
        if known is not None:
            return known
        named = pair[1] != NO_CODE
        number = (whole(self._texts[pair[1]]) or 0) & 0xFFFFFFFF if named else 0
        if claim:
            while number in self._taken:
                number = (number + 1) & 0xFFFFFFFF
            self._known[pair] = number
            self._taken.add(number)
        return number


def _pairs(
    process: npt.NDArray[np.intp], thread: npt.NDArray[np.intp], threads: int
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Return the distinct pairs, the first row of each, and each row's index in them."""
    keys = process * threads + thread
    most = (int(process.max()) + 1) * threads
    if most > len(keys) * _SPARSE:
        pairs, first, row = np.unique(keys, return_index=True, return_inverse=True)
        return pairs, first, row.reshape(-1)
    # Without sorting: of several values assigned to one place, the last stays.
    at = np.full(most, -1, np.intp)
    at[keys[::-1]] = np.arange(len(keys) - 1, -1, -1)
    pairs = np.flatnonzero(at >= 0)
    index = np.zeros(most, np.intp)
    index[pairs] = np.arange(len(pairs))
    return pairs, at[pairs], index[keys]


def whole(text: str) -> int | None:
    """Return the number that a text spells."""
    try:
        return int(text)
    except ValueError:
        return None
