"""``haiprof recover``: writes out what is left of runs whose job and recorder have died.

Tests: tests/recorder/test_recover.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from haiprof.cli.process.console import spinner
from haiprof.common.printable import printable

if TYPE_CHECKING:
    from haiprof.recorder.recover import Recovered


def recover_all(paths: Sequence[Path]) -> int:
    """Recover this machine's rings, then the folders ``paths``; print a line for each run.

    Returns:
        The exit code: 1 when something could not be recovered.

    Raises:
        HaiprofError: one of ``paths`` is not a run.
    """
    with spinner("recovering"):
        from haiprof.recorder.recover import recover_folder, recover_rings

        outcomes = list(recover_rings())
    said = _print(outcomes)
    for path in paths:
        with spinner(f"closing {path}"):
            outcomes += (more := list(recover_folder(path)))
        said += _print(more)
    if not said:
        print("nothing to recover: every ring in shared memory has its recorder")
    return 1 if any(o.failed for o in outcomes) else 0


def _print(outcomes: Iterable[Recovered]) -> int:
    count = 0
    for outcome in outcomes:
        print(printable(str(outcome)))
        count += 1
    return count
