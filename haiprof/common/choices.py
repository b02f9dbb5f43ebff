"""For an unknown word, lists the known ones and suggests the most similar.

Tests: tests/common/test_asked.py.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from haiprof.common.printable import printable

#: How many are listed, and how many characters of each; names of kernels are long.
_NAMED: Final = 10
_SHOWN: Final = 80
#: How many are compared with the given word: quick, not exhaustive.
_COMPARED: Final = 2000


def did_you_mean(given: object, known: Iterable[str]) -> str:
    """Return ``did you mean 'x'?`` for the known word that is most like ``given``, or nothing."""
    word = _nearest(str(given), known)
    return "" if word is None else f"did you mean {_shown(word)!r}?"


def near_path(given: str | Path) -> str:
    """Return ``did you mean 'logs/x'?`` for the name in its folder most like it, or nothing."""
    path = Path(given)
    try:
        name = _nearest(path.name, os.listdir(path.parent))  # noqa: PTH208 (names alone)
        # Whole, to be copied.
        return "" if name is None else f"did you mean {printable(str(path.with_name(name)))!r}?"
    except (OSError, ValueError):
        return ""


def _nearest(given: str, known: Iterable[str]) -> str | None:
    import difflib

    text = given.lower()
    # Only words of about its length can be similar.
    near = sorted(set(known), key=lambda word: (abs(len(word) - len(text)), word))[:_COMPARED]
    words = {word.lower(): word for word in reversed(near)}
    found = difflib.get_close_matches(text, words)
    found.sort(key=lambda word: sorted(word) != sorted(text))  # first those with swapped letters
    if not found and len(text) > 2:
        found = [word for word in words if text in word][-1:]
    return words[found[0]] if found else None


def listed(known: Iterable[str]) -> str:
    """Return the first few of the known words, in the order of the alphabet, and how many more."""
    words = sorted(set(known))
    more = f" and {len(words) - _NAMED} more" if len(words) > _NAMED else ""
    return f"{', '.join(map(_shown, words[:_NAMED]))}{more}" if words else "none"


def unknown(given: object, known: Iterable[str], there: str = "available:") -> str:
    """Return the end of a message about an unknown word: a suggestion, and the known words.

    Args:
        given: the word.
        known: the known words.
        there: what precedes their list.
    """
    words = list(known)
    return f"{did_you_mean(given, words)} {there} {listed(words)}".lstrip()


def quoted(given: object) -> str:
    """Return the repr of an argument, shortened and printable."""
    return _shown(repr(given))


def _shown(word: str) -> str:
    text = printable(word)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
