"""Says of a word that is unknown which ones there are, and which of them may have been meant.

Tests: tests/common/test_asked.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from haiprof.common.printable import printable

#: So many are named, so many characters of each; names of kernels are long.
_NAMED: Final = 10
_SHOWN: Final = 80
#: So many are compared with what was given: it has to be quick, not exhaustive.
_COMPARED: Final = 2000


def did_you_mean(given: object, known: Iterable[str]) -> str:
    """Return ``did you mean 'x'?`` for the known word that is most like ``given``, or nothing."""
    import difflib

    text = str(given).lower()
    # Those of about its length: only they can be like it.
    near = sorted(set(known), key=lambda word: (abs(len(word) - len(text)), word))[:_COMPARED]
    words = {word.lower(): word for word in reversed(near)}
    found = difflib.get_close_matches(text, words)
    found.sort(key=lambda word: sorted(word) != sorted(text))  # first, two letters that swapped
    if not found and len(text) > 2:
        found = [word for word in words if text in word][-1:]
    return f"did you mean {_shown(words[found[0]])!r}?" if found else ""


def listed(known: Iterable[str]) -> str:
    """Return the first few of the known words, in the order of the alphabet, and how many more."""
    words = sorted(set(known))
    more = f" and {len(words) - _NAMED} more" if len(words) > _NAMED else ""
    return f"{', '.join(map(_shown, words[:_NAMED]))}{more}" if words else "none"


def unknown(given: object, known: Iterable[str], there: str = "there are") -> str:
    """Return the end of a sentence about an unknown word: what may be meant, and what there is.

    Args:
        given: the word.
        known: those that there are.
        there: what stands before their list.
    """
    words = list(known)
    return f"{did_you_mean(given, words)} {there} {listed(words)}".lstrip()


def quoted(given: object) -> str:
    """Return what was given as it may stand in a line."""
    return _shown(repr(given))


def _shown(word: str) -> str:
    text = printable(word)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
