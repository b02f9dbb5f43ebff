"""Texts and numbers of JSON that somebody else has written, checked.

Tests: tests/sources/test_hangs.py.
"""

from __future__ import annotations

from typing import Any, Final

from haiprof.common.printable import readable

_LONGEST: Final = 4000
_RANKS: Final = 100_000


def text_of(given: Any) -> str:
    """Return a text, cut and readable.

    Raises:
        TypeError: it is none.
    """
    if not isinstance(given, str):
        raise TypeError(given)
    return readable(given[:_LONGEST])


def text_or_none(given: Any) -> str | None:
    """Return the same of what may be null."""
    return None if given is None else text_of(given)


def number_of(given: Any, most: float) -> float:
    """Return a number.

    Raises:
        ValueError: it is none, or not between 0 and ``most``.
    """
    if type(given) not in (int, float) or not 0 <= given <= most:
        raise ValueError(given)
    return float(given)


def ranks_of(given: Any) -> tuple[int, ...]:
    """Return numbers of ranks, ascending.

    Raises:
        TypeError: they are no list, or too many.
        ValueError: something in it is no rank.
    """
    if not isinstance(given, list) or len(given) > _RANKS:
        raise TypeError("no ranks")
    if not all(type(each) is int and 0 <= each < 2**31 for each in given):
        raise ValueError("no ranks")
    return tuple(sorted(given))
