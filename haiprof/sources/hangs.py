"""Hangs that recorders saw while a job ran, from the run's folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from haiprof.common.hang_files import NAME, Hang, hang_of
from haiprof.common.owned_files import Folder
from haiprof.sources.own import LATEST_NS

#: More of one run than anybody reads.
_MOST: Final = 32


def read_hangs(run: Path) -> tuple[list[Hang], list[str]]:
    """Return the hangs of a run, in their order, and a line for each file that is none."""
    hangs: list[Hang] = []
    problems: list[str] = []
    try:
        folder = Folder.at(run)
        named = [name for name in folder.names() if NAME.fullmatch(name)]
    except OSError:
        return [], []
    for name in sorted(named)[:_MOST]:
        try:
            hangs.append(_hang(json.loads(folder.read(name))))
        except OSError as error:
            problems.append(f"{run / name}: cannot be read ({error.strerror})")
        except (ValueError, KeyError, TypeError, RecursionError):
            problems.append(f"{run / name}: is no report of a hang that this version can read")
    return sorted(hangs, key=lambda hang: hang.seen_ns), problems


def _hang(document: dict[str, Any]) -> Hang:
    seen_ns = document["seen_ns"]
    if type(seen_ns) is not int or not 0 <= seen_ns < LATEST_NS:
        raise ValueError(seen_ns)
    return hang_of(document["hang"], seen_ns)
