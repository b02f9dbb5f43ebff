"""A run that is watched: its processes, what each wrote since the last look, its state.

Tests: tests/show/test_live.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from haiprof import schema
from haiprof.errors import HaiprofError
from haiprof.findings.endings import ended_badly
from haiprof.findings.kinds import KINDS
from haiprof.runs import ROLE_NODE, ROLE_RANK, Process
from haiprof.show.live.history import TREND_SECONDS, StepHistory, Values
from haiprof.show.live.places import Places
from haiprof.show.live.waits import WANTED as COLLECTIVES
from haiprof.show.live.waits import Late, Newest, late, suitable
from haiprof.sources.follow import NO_TEXT, FolderFollower, Part, Wanted
from haiprof.sources.own import is_process_folder, read_process, read_run

_SPANS: Final = Wanted(
    schema.SPANS,
    ("start", "duration", "category", "name", "thread", "step"),
    TREND_SECONDS + 20,
)
#: Slow sources are read every 64 s at least.
_SAMPLES: Final = Wanted(schema.SAMPLES, ("time", "metric", "instance", "value"), 80)
_EVENTS: Final = Wanted(schema.EVENTS, ("time", "kind", "text"), 20)
#: Causes for which a record is lost; others lose a part of one.
_LOST: Final = ("overwritten", "nested", "too_big", "no_lane", "no_place")
#: A node's say in their attributes whether a hang goes on.
_OF_NODE: Final = _EVENTS._replace(columns=(*_EVENTS.columns, "attributes"))
_HANG: Final = "hang"
#: … and whether a finding does.
_FINDING: Final = "finding"
#: Kinds of events that are worth a line while the job runs.
SHOWN_EVENTS: Final = frozenset(
    {
        "lost",
        "exit",
        "exception",
        _HANG,
        _FINDING,
        "disk",
        "gpu_lost",
        "xid",
        "ecc",
        "throttle",
        "link",
        "kernel_log",
        "oom",
        "recorder",
    }
)
#: Culprits of a hang that are named, and ranks of a finding.
_NAMED: Final = 4
#: Findings of a node that are kept, the newest; characters of what is said; findings of all nodes
#: that are said. A recorder reports far fewer, but a run may be forged.
_KEPT: Final = 20
_LONGEST: Final = 300
_SAID: Final = 4
_LIVE: Final = "live"
#: Silence of this many seconds is reported: a recorder writes once a second.
SILENT: Final = 10.0
#: Collectives are matched this often, s: it takes longer than the rest of a frame.
_MATCHED_EVERY_S: Final = 5.0
_NS: Final = 1_000_000_000


class Event(NamedTuple):
    """An event: when (ns UTC), to whom, what."""

    time: int
    label: str
    text: str


@dataclass(slots=True)
class Watched:
    """One process or node of the job."""

    process: Process
    follower: FolderFollower
    steps: StepHistory = field(default_factory=StepHistory)
    values: Values = field(default_factory=Values)
    collectives: Newest = field(default_factory=Newest)
    #: Records that its ring had lost when it was last written.
    lost: int = 0
    event: Event | None = None
    #: Of a node: whom its ranks wait for in a hang that goes on; empty: there is none.
    hang: str = ""
    #: Of a node: what costs its ranks time, by the hash of kind and ranks.
    findings: dict[int, str] = field(default_factory=dict)
    #: Where it is; None: nobody wants to see that.
    places: Places | None = None
    #: When it was last read, and when that last gave something new (time.monotonic).
    asked: float = 0.0
    grown: float | None = None

    @property
    def live(self) -> bool:
        """Whether its recorder has not closed it."""
        return self.process.state == _LIVE

    @property
    def newest(self) -> int:
        """Time of the newest row, ns UTC; 0 without one."""
        return max(self.values.newest, self.steps.ended or 0)

    def silent(self) -> float:
        """Return for how long, s, nothing new had arrived when it was last read."""
        if self.grown is not None:
            return self.asked - self.grown
        begun = self.newest or self.process.started_ns or 0
        return max(0.0, (time.time_ns() - begun) / _NS)


class State(NamedTuple):
    """The state of the job: a word or two, and what to do about it."""

    word: str
    more: str = ""


class Job:
    """A run in progress."""

    def __init__(self, folder: Path, recorder_lives: Callable[[], bool | None]) -> None:
        """Begin to watch a run folder; only ``run.json`` is read yet.

        Args:
            folder: of the run.
            recorder_lives: asked when nothing is written any more; None if it cannot be determined
                (the recorder is on another machine, or another user's).

        Raises:
            HaiprofError: it is not a run, or not one that this version can read.
        """
        self.folder = folder
        self.run = read_run(folder)
        self._recorder_lives = recorder_lives
        #: Whether to read where each rank is.
        self.shows_places = False
        self.watched: dict[Path, Watched] = {}
        #: Folder -> the line that says why it is left out.
        self._refused: dict[Path, str] = {}
        self._unread: list[Path] = []
        self._listed = -1
        self._next = 0
        self._rank_gpus: dict[Path, list[tuple[Watched, list[str]]]] = {}
        self._gpus_known = True
        #: One in so many collectives is kept.
        self._every = 1
        self._late: list[Late] = []
        self._late_until = 0.0

    # -- reading ---------------------------------------------------------------------------------

    def look(self, seconds: float) -> None:
        """Read what was written since the last look, for about ``seconds`` at most.

        If that is not enough for all processes, the next look begins with the remaining ones.
        """
        until = time.monotonic() + seconds
        self._find()
        while self._unread and time.monotonic() < until:
            self._open(self._unread.pop())
        everybody = list(self.watched.values())
        for turn in range(len(everybody)):
            place = (self._next + turn) % len(everybody)
            if time.monotonic() >= until:
                self._next = place
                break
            self._read(everybody[place])
        kept = suitable([watched.collectives for watched in everybody], self._every)
        if kept > self._every:
            for watched in everybody:
                watched.collectives.thin(kept)
        self._every = kept

    @property
    def unread(self) -> int:
        """How many process folders have not been read yet."""
        return len(self._unread)

    def _find(self) -> None:
        try:
            changed = self.folder.stat().st_mtime_ns
            if changed == self._listed:
                return
            with os.scandir(self.folder) as entries:
                folders = [Path(entry.path) for entry in entries if entry.is_dir()]
        except OSError as error:
            self._refused[self.folder] = f"{self.folder}: cannot be read ({error.strerror})"
            return
        # A folder that is being created changes again within the tick of the file system's clock.
        self._listed = changed if time.time_ns() - changed > 2 * _NS else -1
        for folder in self.watched.keys() - set(folders):
            del self.watched[folder]
        waiting = set(self._unread)
        new = [f for f in folders if f not in self.watched and f not in waiting]
        # Some unreadable files are only being created.
        self._refused = {f: line for f, line in self._refused.items() if f in folders}
        self._unread += sorted(new, reverse=True)

    def _open(self, folder: Path) -> None:
        try:
            if not is_process_folder(folder):
                return
            process = read_process(folder)
        except HaiprofError as error:
            if (folder / schema.PROCESS_FILE).exists():
                self._refused[folder] = str(error)
            self._listed = self._listed if folder in self._refused else -1
            return
        self._refused.pop(folder, None)
        of_process = (_SPANS, _SAMPLES, _EVENTS, COLLECTIVES)
        wanted = (_SAMPLES, _OF_NODE) if process.role == ROLE_NODE else of_process
        self.watched[folder] = Watched(process, FolderFollower(folder, wanted))
        self._gpus_known = False

    def _read(self, watched: Watched) -> None:
        new = watched.follower.read()
        looked_before, watched.asked = watched.asked, time.monotonic()
        if watched.follower.changed:
            try:
                process = read_process(watched.process.folder)
            except HaiprofError:
                process = watched.process  # its next version will follow
            if process != watched.process:
                watched.process = process
                self._gpus_known = False
        if self.shows_places and watched.process.role != ROLE_NODE:
            watched.places = watched.places or Places(watched.process.folder)
            watched.places.read()
        for part in new.get("spans", ()):
            watched.steps.add(part)
        for part in new.get("samples", ()):
            watched.values.add(part)
        for part in new.get(COLLECTIVES.table.name, ()):
            watched.collectives.add(part, self._every)
        for part in new.get("events", ()):
            watched.event = _latest_event(part, watched) or watched.event
            if watched.process.role == ROLE_NODE:
                watched.hang = _latest_hang(part, watched.hang)
                _keep_findings(part, watched.findings)
        for parts in new.values():
            watched.lost = max(watched.lost, *map(_lost, parts))
        if new and looked_before:  # the first file may be old
            watched.grown = watched.asked

    # -- who -------------------------------------------------------------------------------------

    @property
    def nodes(self) -> list[Watched]:
        """The nodes, by name."""
        found = [w for w in self.watched.values() if w.process.role == ROLE_NODE]
        return sorted(found, key=lambda w: w.process.folder.name)

    @property
    def ranks(self) -> list[Watched]:
        """The newest process of each rank, and any other process with steps, by rank."""
        newest: dict[tuple[str, int | None, int | None], Watched] = {}
        for watched in self.watched.values():
            process = watched.process
            if process.role == ROLE_NODE:
                continue
            if process.role != ROLE_RANK and watched.steps.ended is None:
                continue
            helper = process.role != ROLE_RANK or process.rank is None
            key = process.node, process.rank, process.pid if helper else None
            before = newest.get(key)
            if before is None or (process.started_ns or 0) >= (before.process.started_ns or 0):
                newest[key] = watched
        return sorted(
            newest.values(),
            key=lambda w: (w.process.rank is None, w.process.rank or 0, w.process.folder.name),
        )

    def late(self) -> list[Late]:
        """Return for which ranks the others wait, those with the most waiting first."""
        if time.monotonic() >= self._late_until:
            self._late = self._find_late()
            self._late_until = time.monotonic() + _MATCHED_EVERY_S
        return self._late

    def _find_late(self) -> list[Late]:
        ranks = [each for each in self.ranks if each.process.rank is not None]
        # Operations of an earlier attempt have the same numbers.
        attempt = max((each.process.attempt or 0 for each in ranks), default=0)
        return late(
            {
                each.process.rank: (each.process.node, each.collectives)
                for each in ranks
                if each.process.rank is not None and (each.process.attempt or 0) == attempt
            }
        )

    def gpus_of(self, watched: Watched) -> list[tuple[Watched, list[str]]]:
        """Return the nodes' folders that sampled the GPUs of a rank, and which GPUs those are."""
        if not self._gpus_known:
            self._join_gpus()
        return self._rank_gpus.get(watched.process.folder, [])

    def _join_gpus(self) -> None:
        self._gpus_known = True
        self._rank_gpus = {}
        around: dict[str, list[Watched]] = {}
        for node in self.nodes:
            if node.process.gpus:
                around.setdefault(node.process.node, []).append(node)
        if not around:
            return
        from haiprof.views.run.gpus import instances

        for watched in self.watched.values():
            nodes = around.get(watched.process.node, [])
            if watched.process.role == ROLE_NODE or not nodes:
                continue
            found = instances(watched.process, [node.process for node in nodes])
            self._rank_gpus[watched.process.folder] = [
                (node, found[node.process.folder.name])
                for node in nodes
                if node.process.folder.name in found
            ]

    # -- what of it ------------------------------------------------------------------------------

    @property
    def now(self) -> int:
        """The time of the newest row of all, ns UTC; the clock's if there is none."""
        return max((w.newest for w in self.watched.values()), default=0) or time.time_ns()

    @property
    def problems(self) -> list[str]:
        """One line for each folder or file that cannot be read."""
        lines = [*self.run.problems, *self._refused.values()]
        for watched in self.watched.values():
            lines += watched.follower.problems
        return lines

    @property
    def event(self) -> Event | None:
        """The newest event that is worth a line."""
        found = [w.event for w in self.watched.values() if w.event is not None]
        return max(found, default=None)

    def state(self) -> State:
        """Say what the job does, as far as its files show."""
        everybody = list(self.watched.values())
        live = [w for w in everybody if w.live]
        if not everybody:
            return self._waiting()
        if not live:
            bad = ended_badly(w.process for w in everybody if w.process.role != ROLE_NODE)
            return State(f"ended, {bad}" if bad else "ended")
        silence = min(w.silent() for w in live)
        if silence > SILENT:
            return self._gone(silence)
        ranks = self.ranks
        if not any(w.live for w in ranks):
            return State("ranks ended" if ranks else self._waiting().word)
        hang = next((w.hang for w in self.nodes if w.live and w.hang), "")
        if hang:
            return State("hangs", hang)
        if all(w.steps.ended is None for w in ranks):
            return State("recording", "no step yet")
        costs = list(
            dict.fromkeys(c for w in self.nodes if w.live for c in reversed(w.findings.values()))
        )
        costs[_SAID:] = [f"and {len(costs) - _SAID} more"] if len(costs) > _SAID else []
        ends = ended_badly(w.process for w in ranks)
        return State("recording", ", ".join([*([ends] if ends else []), *costs]))

    def _waiting(self) -> State:
        left = self.run.warmup - (time.time_ns() - self.run.created_ns) / _NS
        if left > 0:
            return State("warming up", f"{left:.0f} s more")
        return State("waiting", "no rank has recorded anything yet")

    def _gone(self, silence: float) -> State:
        if self._recorder_lives() is False:
            return State("recorder gone", f"haiprof recover {self.folder} writes what is left")
        return State("silent", f"nothing written for {silence:.0f} s")


def _latest_event(part: Part, watched: Watched) -> Event | None:
    columns, texts = part.columns, part.texts
    kinds = {n for n, kind in enumerate(texts["kind"]) if kind in SHOWN_EVENTS}
    for row in range(len(columns["time"]) - 1, -1, -1):
        text = int(columns["text"][row])
        if int(columns["kind"][row]) in kinds and text != NO_TEXT:
            return Event(int(columns["time"][row]), label(watched), texts["text"][text])
    return None


def _latest_hang(part: Part, before: str) -> str:
    """Return whom ranks wait for, by the newest event of a hang; ``before`` without one."""
    columns, texts = part.columns, part.texts
    for row in range(len(columns["time"]) - 1, -1, -1):
        said = int(columns["attributes"][row])
        if texts["kind"][int(columns["kind"][row])] == _HANG and said != NO_TEXT:
            return _culprits(texts["attributes"][said])
    return before


def _culprits(attributes: str) -> str:
    try:
        about = json.loads(attributes)
        if about["over"]:
            return ""
        ranks = ", ".join(str(int(rank)) for rank in about["ranks"][:_NAMED])
        line = f", at {about['line']}" if about["line"] else ""
        if not about["waiting"]:
            return f"gets no further{line}"[:_LONGEST]
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return ""
    return f"waits for rank {ranks}{line}"[:_LONGEST] if ranks else "all ranks have come"


def _keep_findings(part: Part, findings: dict[int, str]) -> None:
    """Add what costs time, by the new events, and forget what does no longer."""
    columns, texts = part.columns, part.texts
    for row in range(len(columns["time"])):
        said = int(columns["attributes"][row])
        if texts["kind"][int(columns["kind"][row])] != _FINDING or said == NO_TEXT:
            continue
        with contextlib.suppress(ValueError, TypeError, KeyError, OverflowError, RecursionError):
            about = json.loads(texts["attributes"][said])
            if about["over"] and "kind" not in about:
                findings.clear()
                continue
            kind, ranks = str(about["kind"]), [int(rank) for rank in about["ranks"]]
            key = hash((kind, *ranks))
            findings.pop(key, None)
            if not about["over"]:
                findings[key] = _words(kind, ranks, about["line"])[:_LONGEST]
            if len(findings) > _KEPT:
                del findings[next(iter(findings))]


def _words(kind: str, ranks: Sequence[int], line: str | None) -> str:
    """Say in a few words what costs time."""
    text = KINDS[kind].title if kind in KINDS else kind
    if 0 < len(ranks) <= _NAMED:
        text += f" (rank {', '.join(map(str, ranks))})"
    return f"{text}, at {line}" if line else text


def _lost(part: Part) -> int:
    try:
        causes = json.loads(part.metadata.get(schema.KEY_LOST.encode(), b"{}"))
        return sum(int(causes.get(cause, 0)) for cause in _LOST)
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        return 0


def label(watched: Watched) -> str:
    """Name a process in a line of text: ``rank 3``, ``node n1``, ``pid 41``."""
    process = watched.process
    if process.role == ROLE_NODE:
        return f"node {process.node}"
    if process.rank is None:
        return f"pid {process.pid}"
    return f"rank {process.rank}"
