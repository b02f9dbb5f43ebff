"""Keeps what is concluded from short texts: the ranks of a job have the same names and shapes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Final, TypeVar

Made = TypeVar("Made")

#: Calls of which the results are kept, and the characters of the longest of them: 8 million in all.
_CALLS: Final = 4096
_CHARACTERS: Final = 2000


def kept_if_short(make: Callable[..., Made]) -> Callable[..., Made]:
    """Keep the results of the last calls of ``make``, a function of texts, unless they are long."""
    kept = functools.lru_cache(_CALLS)(make)

    @functools.wraps(make)
    def asked(*texts: str | None) -> Made:
        short = sum(len(text) for text in texts if text is not None) <= _CHARACTERS
        return (kept if short else make)(*texts)

    return asked
