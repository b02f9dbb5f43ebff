"""Hangs that `haiprof run` saw while a job ran, from the run's folder."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final, NamedTuple

from haiprof.common.owned_files import Folder
from haiprof.sources.own import LATEST_NS, readable

_NAME: Final = re.compile(r"hang-[\w.-]{1,200}\.json")
#: No job waits for longer, s.
_LASTS: Final = 1e9
#: More of one run than anybody reads.
_MOST: Final = 32
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


def read_hangs(run: Path) -> tuple[list[Hang], list[str]]:
    """Return the hangs of a run, in their order, and a line for each file that is none."""
    hangs: list[Hang] = []
    problems: list[str] = []
    try:
        folder = Folder.at(run)
        named = [name for name in folder.names() if _NAME.fullmatch(name)]
    except OSError:
        return [], []
    for name in sorted(named)[:_MOST]:
        try:
            document = json.loads(folder.read(name))
            hangs.append(_hang(document["hang"], document["seen_ns"]))
        except OSError as error:
            problems.append(f"{run / name}: cannot be read ({error.strerror})")
        except (ValueError, KeyError, TypeError, RecursionError):
            problems.append(f"{run / name}: is no report of a hang that this version can read")
    return sorted(hangs, key=lambda hang: hang.seen_ns), problems


def _hang(given: dict[str, Any], seen_ns: Any) -> Hang:
    culprits = given["culprits"]
    line = culprits[0]["line"] if culprits else None
    lasts = given["lasts_s"]
    if type(lasts) not in (int, float) or not 0 <= lasts <= _LASTS:
        raise ValueError(lasts)
    if type(seen_ns) is not int or not 0 <= seen_ns < LATEST_NS:
        raise ValueError(seen_ns)
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
