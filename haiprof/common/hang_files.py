"""Reports of hangs in a run's folder: what their files are called, and what a report says.

Tests: tests/sources/test_hangs.py.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

from haiprof.common.printable import readable

NAME: Final = re.compile(r"hang-[\w.+=@-]{1,200}\.json")
#: No job waits for longer, s.
_LASTS: Final = 1e9
_LONGEST: Final = 4000
_RANKS: Final = 100_000


class Hang(NamedTuple):
    """One hang.

    Attributes:
        kind: of the finding.
        problem: one sentence without its full stop.
        advice: what to do, without a full stop.
        ranks: the culprits.
        waiting: the ranks that waited.
        lasts_s: for how long, when it was seen.
        line: of the job's code that the first culprit was at; None: not known.
        seen_ns: when it was seen, ns UTC.
    """

    kind: str
    problem: str
    advice: str
    ranks: tuple[int, ...]
    waiting: tuple[int, ...]
    lasts_s: float
    line: str | None
    seen_ns: int


def file_name(node: str, recorder: int, number: int) -> str:
    """Return the name of a report: of which node and recorder (its pid), and a number from 1."""
    return f"hang-{node}-{recorder}-{number}.json"


def document(hang: dict[str, Any], seen_ns: int) -> dict[str, Any]:
    """Return what a file holds."""
    return {"format": "haiprof-hang", "version": "1.0", "seen_ns": seen_ns, "hang": hang}


def hang_of(given: dict[str, Any], seen_ns: int) -> Hang:
    """Return a hang as a report has it.

    Raises:
        TypeError: it is none.
        KeyError: neither.
        ValueError: neither.
    """
    culprits = given["culprits"]
    line = culprits[0]["line"] if culprits else None
    lasts = given["lasts_s"]
    if type(lasts) not in (int, float) or not 0 <= lasts <= _LASTS:
        raise ValueError(lasts)
    return Hang(
        _text(given["kind"]),
        _text(given["problem"]),
        _text(given["advice"]),
        _numbers(given["ranks"]),
        _numbers(given["waiting"]),
        float(lasts),
        None if line is None else _text(line),
        seen_ns,
    )


def _text(given: Any) -> str:
    if not isinstance(given, str):
        raise TypeError(given)
    return readable(given[:_LONGEST])


def _numbers(given: Any) -> tuple[int, ...]:
    if not isinstance(given, list) or len(given) > _RANKS:
        raise TypeError("no ranks")
    if not all(type(each) is int and 0 <= each < 2**31 for each in given):
        raise ValueError("no ranks")
    return tuple(sorted(given))
