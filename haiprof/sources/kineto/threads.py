"""Numbers of threads, unique in a file: two processes in one may have a thread of one number."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from haiprof.sources.kineto.columns import Group, codes
from haiprof.sources.kineto.texts import NO_CODE, Texts


class Threads:
    """Which number each thread of a file has."""

    def __init__(self, texts: Texts) -> None:
        """Begin without any; ``texts`` are the file's."""
        self._texts = texts
        self._known: dict[tuple[int, int], int] = {}
        self._taken: set[int] = set()

    def of_host(self, group: Group) -> npt.NDArray[np.uint32]:
        """Return each row's thread: its number, or the next if another process has that one."""
        return self._column(group, claim=True)

    def of_any(self, group: Group) -> npt.NDArray[np.uint32]:
        """Return each row's thread as the host's rows have it, else its number: a stream's."""
        return self._column(group, claim=False)

    def _column(self, group: Group, *, claim: bool) -> npt.NDArray[np.uint32]:
        processes, threads = codes(group, "process"), codes(group, "thread")
        made = np.zeros(len(threads), np.uint32)
        # Threads run long: few rows are not of the thread of the row before.
        changes = np.flatnonzero((np.diff(processes) != 0) | (np.diff(threads) != 0)) + 1
        begins = np.concatenate(([0], changes))
        pairs = zip(processes[begins].tolist(), threads[begins].tolist(), strict=True)
        numbers = np.array([self._number(pair, claim) for pair in pairs], np.uint32)
        made = np.repeat(numbers, np.diff(np.concatenate((begins, [len(threads)]))))
        return made

    def _number(self, pair: tuple[int, int], claim: bool) -> int:
        known = self._known.get(pair)
        if known is not None:
            return known
        number = (whole(self._texts[pair[1]]) or 0) & 0xFFFFFFFF if pair[1] != NO_CODE else 0
        if claim:
            while number in self._taken:
                number = (number + 1) & 0xFFFFFFFF
            self._known[pair] = number
            self._taken.add(number)
        return number


def whole(text: str) -> int | None:
    """Return the number that a text is."""
    try:
        return int(text)
    except ValueError:
        return None
