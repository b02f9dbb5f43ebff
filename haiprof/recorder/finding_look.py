"""The process that says what costs a running job time: the recorder starts it, and reads it.

Its rules need libraries and memory that the recorder does without. So this is left to a process of
its own (:mod:`haiprof.answers.live`), which may fail, hang, or say anything.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Final

from haiprof.common.live_findings import Found, found_of
from haiprof.recorder.answering import Answering
from haiprof.recorder.launch import import_paths

#: How long it may take, with the time until what it looks at is over, s: other programs may have
#: all cores.
SECONDS: Final = 180
_PROGRAM: Final = (
    "import os, sys; sys.path[:] = {paths!r}; os.environ['POLARS_MAX_THREADS'] = '1'; "
    "from haiprof.answers.live import main; main()"
)
#: It says far fewer.
_MOST: Final = 100


class Look(Answering):
    """One such process."""

    def __init__(self, run: Path, node: str, windows: Sequence[tuple[int, int]]) -> None:
        """Start it.

        Args:
            run: folder of the run.
            node: its ranks are looked at.
            windows: ns UTC: the one that is looked at, or those before and after a change. The last
                one may end soon: then it waits for that.

        Raises:
            OSError: it cannot be started.
        """
        words = [sys.executable, "-c", _PROGRAM.format(paths=import_paths()), str(SECONDS)]
        words += [str(run), node, *map(str, chain.from_iterable(windows))]
        super().__init__(words, SECONDS)

    def answer(self) -> list[Found]:
        """Return what it found, the most important first. It is over.

        Raises:
            ValueError: it was ended, has failed, or has said something else.
        """
        try:
            said = json.loads(self.said())
            if said["problem"] is not None:
                raise ValueError(str(said["problem"])[:200])
            return [found_of(each) for each in said["findings"][:_MOST]]
        except (KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"said something else: {error!r:.200}") from None
