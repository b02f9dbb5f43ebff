"""Texts of a trace as the parser numbers them, and columns of such numbers.

Tests: tests/sources/kineto/test_import.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

#: Numbers of texts; one per row.
Codes: TypeAlias = npt.NDArray[np.uint32]
#: Stands for a missing text, and for a missing 32-bit number.
NO_CODE: Final = 0xFFFFFFFF


class Texts:
    """The texts of one trace so far; a text keeps its number."""

    def __init__(self) -> None:
        """Begin without any."""
        self._texts: list[str] = []

    def __len__(self) -> int:
        return len(self._texts)

    def __getitem__(self, code: int) -> str:
        return self._texts[code]

    def extend(self, texts: Sequence[str]) -> None:
        """Append the parser's new texts."""
        self._texts += texts

    def used(self, codes: Codes) -> npt.NDArray[np.intp]:
        """Return the distinct numbers in ``codes``, ascending."""
        seen = np.zeros(len(self._texts) + 1, np.bool_)
        seen[np.minimum(codes, len(self._texts))] = True
        return np.flatnonzero(seen[:-1])

    def ranked(self, codes: Codes) -> tuple[Codes, npt.NDArray[np.intp]]:
        """Return the distinct ``codes`` (that of no text last), and each row's index in them."""
        used = self.used(codes)
        index = np.full(len(self._texts) + 1, len(used), np.intp)
        index[used] = np.arange(len(used))
        known = np.append(used, NO_CODE).astype(np.uint32)
        return known, index[np.minimum(codes, len(self._texts))]

    def spread(
        self, codes: Codes, meaning: Callable[[str], Any], none: int, kind: type[Any]
    ) -> npt.NDArray[Any]:
        """Return the meaning of each row's text, computed once per text.

        Args:
            codes: numbers of texts.
            meaning: of a text; None if it has none.
            none: replaces None, and stands for a missing text.
            kind: the numpy type.
        """
        table = np.full(len(self._texts) + 1, none, kind)
        for code in self.used(codes):
            value = meaning(self._texts[code])
            if value is not None:
                table[code] = value
        meanings: npt.NDArray[Any] = table[np.minimum(codes, len(self._texts))]
        return meanings

    def column(self, codes: Codes, missing: str | None = None) -> pa.Array:
        """Return Arrow's dictionary column of these texts, without texts that no row has.

        Args:
            codes: numbers of texts.
            missing: replaces a missing text; by default it is null.
        """
        used = self.used(codes)
        index = np.zeros(len(self._texts) + 1, np.uint32)
        index[used] = np.arange(len(used), dtype=np.uint32)
        words = [self._texts[code] for code in used]
        none = codes >= len(self._texts)
        nulls = none if missing is None and none.any() else None
        if missing is not None and none.any():
            if missing not in words:
                words.append(missing)
            index[-1] = words.index(missing)
        indices = pa.array(index[np.minimum(codes, len(self._texts))], mask=nulls)
        return pa.DictionaryArray.from_arrays(indices, pa.array(words, pa.utf8()), safe=False)


def word_column(indices: npt.NDArray[Any], known: Sequence[str | None]) -> pa.Array:
    """Return a column of ``known`` words by their indices; None and negative indices are null."""
    places: dict[str, int] = {}
    table = [-1 if word is None else places.setdefault(word, len(places)) for word in known]
    place = np.array([*table, -1], np.int64)[np.maximum(indices, -1)]
    none = place < 0
    array = pa.array(np.where(none, 0, place).astype(np.uint32), mask=none if none.any() else None)
    return pa.DictionaryArray.from_arrays(array, pa.array(list(places), pa.utf8()), safe=False)
