"""Reports of hangs in a run's folder: what their files are called, and what a report says.

Tests: tests/sources/test_hangs.py.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

from haiprof.common.foreign_json import number_of, ranks_of, text_of, text_or_none

NAME: Final = re.compile(r"hang-[\w.+=@-]{1,200}\.json")
#: No job waits for longer, s.
_LASTS: Final = 1e9


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
    return Hang(
        text_of(given["kind"]),
        text_of(given["problem"]),
        text_of(given["advice"]),
        ranks_of(given["ranks"]),
        ranks_of(given["waiting"]),
        number_of(given["lasts_s"], _LASTS),
        text_or_none(culprits[0]["line"]) if culprits else None,
        seen_ns,
    )
