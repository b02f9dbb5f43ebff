"""What is said of a running job that costs time: between who finds it, who says it, who shows it.

Tests: tests/recorder/test_finding_look.py.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from haiprof.common.printable import printable, readable

_LONGEST: Final = 2000
_RANKS: Final = 100_000


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
    ranks, share, line = given["ranks"], given["share"], given["line"]
    if not isinstance(ranks, list) or len(ranks) > _RANKS:
        raise TypeError("no ranks")
    if not all(type(each) is int and 0 <= each < 2**31 for each in ranks):
        raise ValueError("no ranks")
    if type(share) not in (int, float) or not 0 <= share <= 1:
        raise ValueError(share)
    return Found(
        _text(given["kind"]),
        _text(given["problem"]),
        _text(given["advice"]),
        tuple(sorted(ranks)),
        float(share),
        None if line is None else _text(line),
    )


def _text(given: Any) -> str:
    if not isinstance(given, str):
        raise TypeError(given)
    return printable(readable(given[:_LONGEST]))
