"""What is said of a running job that costs time: between who finds it, who says it, who shows it.

Tests: tests/recorder/test_finding_look.py.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from haiprof.common.foreign_json import number_of, ranks_of, text_of, text_or_none
from haiprof.common.printable import printable


class Found(NamedTuple):
    """One thing that costs a running job time.

    Attributes:
        kind: of the finding.
        problem: one sentence without its full stop.
        advice: what to do, without a full stop.
        ranks: that it concerns, ascending.
        share: of the steps' time.
        line: of the job, as ``function (file:line)``; None: not known.
    """

    kind: str
    problem: str
    advice: str
    ranks: tuple[int, ...]
    share: float
    line: str | None

    @property
    def key(self) -> tuple[str, tuple[int, ...]]:
        """What is equal of one finding that is found again."""
        return self.kind, self.ranks

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON takes it."""
        return {**self._asdict(), "ranks": list(self.ranks)}


def found_of(given: dict[str, Any]) -> Found:
    """Return a finding as :meth:`Found.as_json` has it.

    Raises:
        TypeError: it is none.
        KeyError: neither.
        ValueError: neither.
    """
    line = text_or_none(given["line"])
    return Found(
        printable(text_of(given["kind"])),
        printable(text_of(given["problem"])),
        printable(text_of(given["advice"])),
        ranks_of(given["ranks"]),
        number_of(given["share"], 1),
        None if line is None else printable(line),
    )
