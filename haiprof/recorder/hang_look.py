"""The process that says why ranks wait: the recorder starts it, and reads what it says.

Reading stacks takes seconds, and the recorder must not be late. So this is left to a process of its
own (:mod:`haiprof.control.hang_report`), which may fail, hang, or say anything.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any, Final

from haiprof.common.hang_files import hang_of
from haiprof.recorder.answering import Answering
from haiprof.recorder.launch import import_paths

#: How long it may take beside the time between its two looks, s.
SECONDS: Final = 60.0
_PROGRAM: Final = (
    "import sys; sys.path[:] = {paths!r}; from haiprof.control.hang_report import main; main()"
)


class Look(Answering):
    """One such process."""

    def __init__(self, run: str, pids: Sequence[int], hang_after: float, between: float) -> None:
        """Start it.

        Args:
            run: name of the run.
            pids: of the ranks, and of the command that has started them.
            hang_after: what lasts less is no hang, s.
            between: how far apart it looks twice, s.

        Raises:
            OSError: it cannot be started.
        """
        words = [sys.executable, "-c", _PROGRAM.format(paths=import_paths())]
        words += [run, repr(hang_after), repr(between), *map(str, pids)]
        super().__init__(words, SECONDS + between)

    def answer(self) -> dict[str, Any] | None:
        """Return why the job hangs, as :func:`hang_of` reads it; None: it does not. It is over.

        Raises:
            ValueError: it was ended, has failed, or has said something else.
        """
        try:
            said = json.loads(self.said())
            if said["problem"] is not None:
                raise ValueError(str(said["problem"])[:200])
            hang: dict[str, Any] | None = said["hang"]
            if hang is not None:
                hang_of(hang, 0)
        except (KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"said something else: {error!r:.200}") from None
        return hang
