"""What costs the job time while it runs: made known to whoever wants to know.

A finding is a row of the node's ``events``, and while it holds it is in a file beside the rings,
for ``haiprof ps``.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

from haiprof.common.live_findings import Found
from haiprof.common.owned_files import Folder
from haiprof.common.places import FINDINGS_NAME, node_name
from haiprof.recorder.finding_watch import FindingWatch, Ongoing
from haiprof.recorder.hangs import Tell
from haiprof.recorder.process import RecordedProcess
from haiprof.recorder.process_folder import write_json

log = logging.getLogger(__name__)

KIND: Final = "finding"


class Findings:
    """Watches for what costs time, and makes it known."""

    def __init__(
        self, run: Folder, rings: Folder, tell: Tell, on_slower: Callable[[], None]
    ) -> None:
        """Begin to watch.

        Args:
            run: its folder.
            rings: the folder of its rings.
            tell: takes events: kind, text and attributes.
            on_slower: called when steps have become slower, some time before it is looked why.
        """
        self._rings, self._tell = rings, tell
        self._ongoing: list[Ongoing] = []
        self._watch: FindingWatch | None = FindingWatch(
            run.path,
            node_name(),
            on_finding=self._begins,
            on_end=self._ends,
            on_slower=on_slower,
        )
        if rings.has(FINDINGS_NAME):
            text = "a new recorder took over, and looks anew at what costs time"
            tell(KIND, text, {"over": True})
            self._forget()

    def turn(self, processes: Sequence[RecordedProcess]) -> None:
        """Look at the processes if it is time to. Never raises.

        Args:
            processes: those that are recorded.
        """
        if self._watch is None:
            return
        try:
            self._watch.turn([one for one in processes if one.role == "rank"])
        except Exception:  # the recording is worth more
            log.exception("what costs time is not looked for any more")
            self.close()

    def close(self) -> None:
        """Watch no longer."""
        if self._watch is not None:
            self._watch.end()
            self._watch = None
        self._forget()

    def _begins(self, one: Ongoing) -> None:
        self._ongoing.append(one)
        about = {**_about(one.found), "since_ns": one.since_ns, "over": False}
        self._tell(KIND, one.found.problem, about)
        self._keep()

    def _ends(self, one: Ongoing, why: str) -> None:
        self._ongoing.remove(one)
        text = f"no longer, {why}: {one.found.problem}"
        self._tell(KIND, text, {**_about(one.found), "over": True})
        self._keep()

    def _keep(self) -> None:
        """Write what holds beside the rings."""
        if not self._ongoing:
            self._forget()
            return
        said = [{"problem": one.found.problem, "since_ns": one.since_ns} for one in self._ongoing]
        with contextlib.suppress(OSError):
            write_json(self._rings, FINDINGS_NAME, {"findings": said})

    def _forget(self) -> None:
        with contextlib.suppress(OSError):
            self._rings.remove(FINDINGS_NAME)


def _about(found: Found) -> dict[str, Any]:
    return {
        "kind": found.kind,
        "ranks": list(found.ranks),
        "line": found.line,
        "share": found.share,
        "advice": found.advice,
    }
