"""What costs the job time while it runs: made known to whoever wants to know.

A finding is a row of the node's ``events``, and while it holds it is in a file beside the rings,
for ``haiprof ps``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from haiprof.common.live_findings import Found
from haiprof.common.owned_files import Folder
from haiprof.common.places import FINDINGS_NAME, node_name
from haiprof.recorder.finding_watch import FindingWatch, Ongoing
from haiprof.recorder.process import RecordedProcess
from haiprof.recorder.watching import Tell, Watching


class Findings(Watching[FindingWatch]):
    """Watches for what costs time, and makes it known."""

    kind = "finding"
    file = FINDINGS_NAME
    looks = "at what costs time"

    def __init__(
        self, run: Folder, rings: Folder, tell: Tell, on_slower: Callable[[], None]
    ) -> None:
        """Begin to watch.

        Args:
            run: its folder.
            rings: the folder of its rings.
            tell: takes events.
            on_slower: called when steps have become slower, some time before it is looked why.
        """
        self._ongoing: list[Ongoing] = []
        watch = FindingWatch(
            run.path,
            node_name(),
            on_finding=self._begins,
            on_end=self._ends,
            on_slower=on_slower,
        )
        super().__init__(rings, tell, watch)

    def turn(self, processes: Sequence[RecordedProcess]) -> None:
        """Look at the processes if it is time to. Never raises.

        Args:
            processes: those that are recorded.
        """
        ranks = [one for one in processes if one.role == "rank"]
        self._turn(lambda watch: watch.turn(ranks))

    def _begins(self, one: Ongoing) -> None:
        self._ongoing.append(one)
        about = {**_about(one.found), "since_ns": one.since_ns, "over": False}
        self._tell(self.kind, one.found.problem, about)
        self._show()

    def _ends(self, one: Ongoing, why: str) -> None:
        self._ongoing.remove(one)
        text = f"no longer, {why}: {one.found.problem}"
        self._tell(self.kind, text, {**_about(one.found), "over": True})
        self._show()

    def _show(self) -> None:
        """Keep what holds beside the rings."""
        if not self._ongoing:
            self._forget()
            return
        said = [{"problem": one.found.problem, "since_ns": one.since_ns} for one in self._ongoing]
        self._keep({"findings": said})


def _about(found: Found) -> dict[str, Any]:
    return {
        "kind": found.kind,
        "ranks": list(found.ranks),
        "line": found.line,
        "share": found.share,
        "advice": found.advice,
    }
