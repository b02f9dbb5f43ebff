"""What steps were spent on since the last look, by what the recorder has put beside the rings.

Tests: tests/capture/test_trackers.py.
"""

from __future__ import annotations

import json
import os
from typing import Any, Final, NamedTuple

from haiprof import _core
from haiprof.capture.where import recorded
from haiprof.common.foreign_json import text_of
from haiprof.common.owned_files import Folder
from haiprof.common.places import FIGURES_MARK, FIGURES_NAME, FINDINGS_NAME, open_rings, safe_name
from haiprof.common.printable import printable

_NS: Final = 1e9
#: A rule says far fewer at once.
_MOST_FINDINGS: Final = 20
_MOST_RANKS: Final = 4096
#: Where ranks wait for each other: in collectives, and where DistributedDataParallel does.
_WAITING: Final = ("wait_seconds", "phase/gradient_sync_seconds")


class Now(NamedTuple):
    """What is shown: values by their names, the number of the step, and what costs time."""

    values: dict[str, float]
    step: int
    findings: str


class Figures:
    """Reads them, and returns what was new since the last time."""

    def __init__(self) -> None:
        """Nothing was read yet."""
        #: By pid of the rank: what its sums were the last time.
        self._before: dict[int, dict[str, int]] = {}

    def ask(self) -> None:
        """Ask the recorder to make them known.

        Raises:
            OSError: the folder of the rings is not there.
        """
        if (folder := _rings()) is not None:
            os.close(folder.update(FIGURES_MARK))

    def read(self) -> Now | None:
        """Return means of the steps since the last call; None: there were none, or none known."""
        try:
            folder = _rings()
            if folder is None:
                return None
            ranks = json.loads(folder.read(FIGURES_NAME))["ranks"][:_MOST_RANKS]
            new = {pid: sums for pid, sums in map(self._since, ranks) if sums["steps"] > 0}
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None
        own = new.get(os.getpid())
        if own is None:
            return None
        values = {f"haiprof/{name}": value for name, value in _means(own).items()}
        if len(new) > 1:
            all_ranks = [_means(sums) for sums in new.values()]
            steps = [each["step_seconds"] for each in all_ranks]
            waits = [sum(each.get(name, 0.0) for name in _WAITING) for each in all_ranks]
            values["haiprof/node/ranks"] = float(len(new))
            values["haiprof/node/step_seconds_max"] = max(steps)
            values["haiprof/node/wait_seconds_min"] = min(waits)
            values["haiprof/node/wait_seconds_max"] = max(waits)
        findings = _findings(folder)
        values["haiprof/findings"] = float(len(findings))
        step = _core.current_step()
        return Now(values, step if step is not None else 0, "; ".join(findings))

    def _since(self, rank: Any) -> tuple[int, dict[str, int]]:
        """Return the pid of a rank, and what its sums have grown by.

        Raises:
            TypeError, KeyError, AttributeError: it is none.
        """
        pid = rank["pid"]
        sums = {name: rank[name] for name in ("steps", "duration")}
        sums |= {f"phase/{_name(name)}": ns for name, ns in rank["phases"].items()}
        sums |= {_name(name): ns for name, ns in rank["parts"].items()}
        if type(pid) is not int or any(type(each) is not int for each in sums.values()):
            raise TypeError(rank)
        before = self._before.get(pid, {})
        if sums["steps"] < before.get("steps", 0):
            before = {}  # a new recorder counts anew
        self._before[pid] = sums
        return pid, {name: value - before.get(name, 0) for name, value in sums.items()}


def _means(sums: dict[str, int]) -> dict[str, float]:
    """Return seconds of a step, by what they were spent on."""
    steps = sums["steps"]
    names = {name: f"{name}_seconds" for name in sums if name != "steps"}
    names["duration"] = "step_seconds"
    return {name: sums[of] / steps / _NS for of, name in names.items()}


def _name(given: str) -> str:
    """Return a name that all trackers take."""
    return safe_name(given).replace("=", "-").replace("+", "-").replace("@", "-") or "unnamed"


def _findings(folder: Folder) -> list[str]:
    try:
        said = json.loads(folder.read(FINDINGS_NAME))["findings"][:_MOST_FINDINGS]
        return [printable(text_of(one["problem"])) for one in said]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return []  # usually there is no such file


def _rings() -> Folder | None:
    place = recorded()
    ring = None if place is None else place.ring
    return None if ring is None else open_rings(ring.parent)
