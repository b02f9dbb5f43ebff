"""One recorded process: its ring, its folder, its life.

Tests: tests/recorder/test_process_folder.py.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import time
from collections.abc import Callable, Hashable
from functools import partial
from pathlib import Path
from typing import Any, Final

from haiprof import schema
from haiprof._core import Chore, RingReader, StackSampler
from haiprof.common.advance import LEAVES, Advance, Standing
from haiprof.common.owned_files import Folder
from haiprof.common.places import RING_SUFFIX, removed
from haiprof.common.process_life import Life, parent_of, started_at
from haiprof.recorder import ending
from haiprof.recorder.arrow_stream import Batch
from haiprof.recorder.figures import StepSums
from haiprof.recorder.memory_kills import MemoryKills
from haiprof.recorder.process_folder import claim, document, gpus_of, whole, write_json
from haiprof.recorder.reach import Reach
from haiprof.recorder.segments import TableWriter, close_left, reached
from haiprof.recorder.stacks import ProcessStacks
from haiprof.recorder.storage import Storage
from haiprof.recorder.tables import RingTables, RowTable

log = logging.getLogger(__name__)

#: Rows wait at most this long (s) or this many before they are written; not for a wake-up of its
#: own that is a little later.
WRITE_SECONDS: Final = 5.0
EARLY_SECONDS: Final = 0.1
WRITE_ROWS: Final = 16384
_TAKE: Final = 1 << 18
#: Takes per turn; a job that records faster must not keep the others waiting.
_TAKES: Final = 4
#: How long a process may take to end after its goodbye, s; then its files are closed anyway.
_ENDING_SECONDS: Final = 600.0


class RecordedProcess:
    """Drains one ring into one folder, until the writer says goodbye or dies."""

    def __init__(
        self,
        ring: Path,
        run: Path | Folder,
        kills: MemoryKills | None = None,
        stacks: StackSampler | None = None,
        storage: Storage | None = None,
    ) -> None:
        """Open the ring and its folder; continue where an earlier recorder stopped.

        Args:
            ring: its file.
            run: folder of the run.
            kills: counts kills for lack of memory; None: a new one for this process.
            stacks: samples its Python stacks; None: nobody does.
            storage: limits what its tables take; None: nothing does.

        Raises:
            BlockingIOError: the ring is still being made.
            ValueError: the file is not a ring that this version can read.
            OSError: the folder cannot be made or written.
        """
        self.ring = ring
        header = RingReader(ring).header
        self.pid: int = header["pid"]
        self.rank: int | None = header["rank"]
        self.start_time: int = header["start_time"]
        self.local_rank: int | None = header["local_rank"]
        #: Takes the rows of the process as they are written, and never raises.
        self.on_rows: Callable[[Batch], None] | None = None
        self.ended = False
        #: Whether it waited for its files and has not ended yet.
        self.lingers = False
        self._header = header
        self._begun = time.time_ns()
        self._process_started = started_at(self.start_time)
        self._gpus: dict[int, dict[str, Any]] = {}
        utc_offset_ns = None
        claimed = claim(Folder.at(run), header)
        known = claimed.known
        self.files, self.rank_folder, self.role = claimed.folder, claimed.plain, claimed.role
        self.folder = self.files.path
        #: Whether an earlier recorder began it.
        self.taken_over = known is not None
        if known is not None:
            self._begun = whole(known, "started_ns") or self._begun
            self._process_started = whole(known, "process_started_ns") or self._process_started
            utc_offset_ns = whole(known, "utc_offset_ns")
            self._gpus = {
                gpu["device"]: gpu for gpu in gpus_of(known) if type(gpu.get("device")) is int
            }
        through = {}
        before = Reach()
        for name, table in schema.TABLES.items():
            reach = reached(self.files, table)
            before.merge(Reach(lost=reach.lost))
            if reach.lanes:
                through[name] = reach.lanes
        not_closed = close_left(self.files)
        self._reader = RingReader(ring, through, utc_offset_ns)
        #: What an earlier recorder's reader lost; the ring itself counts the other causes.
        self._lost_before = {c: n for c, n in before.lost.items() if c in _READERS_CAUSES}
        self._part = None if storage is None else storage.part(self.files, self._now)
        self._tables = RingTables()
        self._writers: dict[str, TableWriter] = {}
        sampled = (known or {}).get("stacks")
        earlier = sampled if isinstance(sampled, dict) else None
        self._stacks = ProcessStacks(stacks, ring, header, self.files, earlier, self._part)
        self._events = RowTable(schema.EVENTS)
        self._events_writer = TableWriter(self.files, schema.EVENTS, self._part)
        self._written_at = time.monotonic()
        self._reported_losses = before.lost
        self._wall_clock_reported = 0
        self._flush_answered = 0
        self._finishing = False
        self._dropping = False
        self._kills = kills or MemoryKills()
        self._words = ending.LastWords()
        self._advance = Advance()
        #: None: nobody wants them.
        self._sums: StepSums | None = None
        #: Collectives that it had asked for at the last look, and since when it is so many, s.
        self._asked = 0
        self._asked_at: float | None = None
        #: Of what an earlier recorder has taken, the number of steps is not known.
        self._from_the_begin = known is None
        #: Since when its ring has been closed, s.
        self._closed_since: float | None = None
        self._ending: dict[str, Any] | None = None
        if known is not None:
            self.event("recorder", "a new recorder took over; the ring was kept meanwhile")
            with contextlib.suppress(ValueError):
                earlier_records = RingReader(ring)
                earlier_records.take(_TAKE)
                self._advance.read(earlier_records.rows().get("spans", {}))
        for lost in not_closed:
            self.event("recorder", lost)
        self._write_process_file("live")
        self.life = Life(self.pid, self.start_time)
        self._parent = parent_of(self.pid) if self.role == "process" else 0
        self._kills.join(self.pid, self.start_time)

    def _write_process_file(self, state: str) -> None:
        losses = self._losses()
        process_document = document(
            self._header,
            role=self.role,
            state=state,
            process_started_ns=self._process_started,
            started_ns=self._begun,
            ended_ns=None if state == "live" else self._words.goodbye_ns or self._now(),
            utc_offset_ns=self._reader.utc_offset_ns,
            ring=self.ring.name,
            gpus=self.gpus,
            lost={"records": _lost_records(losses), **losses},
            ended=self._ending,
            stacks=self._stacks.described(),
            steps=self._advance.steps if self._from_the_begin and state != "live" else None,
        )
        write_json(self.files, schema.PROCESS_FILE, process_document)

    # -- state -----------------------------------------------------------------------------------

    def event(self, kind: str, text: str, attributes: dict[str, Any] | None = None) -> None:
        """Append one row to the process's events."""
        encoded = json.dumps(attributes) if attributes else None
        self._events.add(self._now(), kind, text, None, encoded)

    def _now(self) -> int:
        """Return the time as the ring's records have it: not moved when the wall clock is set."""
        offset = self._reader.utc_offset_ns
        return time.time_ns() if offset is None else time.monotonic_ns() + offset

    def _losses(self) -> dict[str, int]:
        losses = self._reader.losses
        return {cause: n + self._lost_before.get(cause, 0) for cause, n in losses.items()}

    @property
    def gpus(self) -> list[dict[str, Any]]:
        """The GPUs that the process uses: device (ordinal), uuid, name, memory_bytes."""
        self._gpus.update((gpu["device"], gpu) for gpu in self._reader.devices)
        return [self._gpus[device] for device in sorted(self._gpus)]

    @property
    def gpu_uuids(self) -> list[str]:
        """The UUIDs of those GPUs that have one."""
        return [gpu["uuid"] for gpu in self.gpus if gpu["uuid"]]

    @property
    def lost(self) -> int:
        """Records that the ring lost."""
        return _lost_records(self._losses())

    @property
    def ending(self) -> str | None:
        """How it ended: the kind that ``process.json`` has; None: it has not."""
        return None if self._ending is None else self._ending["kind"]

    @property
    def bytes(self) -> int:
        """How large the ring is now, 0 if it is gone."""
        with contextlib.suppress(OSError):
            return self.ring.stat().st_size
        return 0

    @property
    def waiting(self) -> bool:
        """Whether something encoded is not on disk yet."""
        return any(written.waiting for written in self._written())

    def _written(self) -> list[TableWriter | ProcessStacks]:
        """Return all that writes files."""
        return [*self._writers.values(), self._events_writer, self._stacks]

    def waits(self) -> dict[Hashable, float] | None:
        """Return for how long, s, it has waited in each communication that has not ended.

        Returns:
            That; None: it records no more.

        Raises:
            OSError: the ring cannot be read.
            ValueError: neither.
        """
        if self._reader.closed:
            return None
        groups, blocked = self._reader.progress()
        # Where ends are not seen, what was asked for last may have ended long ago.
        asked: dict[Hashable, float] = {
            (one["name"], one["asked"]): one["age_s"]
            for one in groups
            if one["done"] not in (None, one["asked"])
        }
        places = ("thread", "group", "sequence", "operation", "peer")
        return asked | {tuple(one[name] for name in places): one["age_s"] for one in blocked}

    def standing(self) -> Standing | None:
        """Return for how long it has got no further, or has not ended after its goodbye.

        Where no steps are known, it gets further with each collective.

        Returns:
            That; None: it has ended, or has only begun.

        Raises:
            OSError: the ring cannot be read.
            ValueError: neither.
        """
        if self.life.ended() or self._words.waits:
            return None
        if self._words.goodbye_ns is not None:
            return Standing(LEAVES, max(0.0, (self._now() - self._words.goodbye_ns) / 1e9), 0.0)
        standing = self._advance.standing(self._now())
        if standing is not None:
            return standing
        groups, _ = self._reader.progress()
        asked = sum(one["asked"] for one in groups)
        if asked != self._asked:
            self._asked, self._asked_at = asked, time.monotonic()
        since = self._asked_at
        return None if since is None else Standing(asked, time.monotonic() - since, 0.0)

    def steps(self) -> list[tuple[int, int]]:
        """Return the steps written since the last call: start, ns UTC, and duration, ns."""
        return self._advance.take_steps()

    def sums(self) -> StepSums:
        """Return what the steps were spent on that were written since the first call."""
        self._sums = self._sums or StepSums()
        return self._sums

    @property
    def taken(self) -> int:
        """Records taken from the ring so far."""
        return self._reader.taken

    @property
    def chore(self) -> Chore:
        """What empties the ring between two calls of :meth:`drain`."""
        return self._reader

    def drain(self, write_after: float = WRITE_SECONDS) -> None:
        """Take from the ring what is new, and write it when it is time.

        Args:
            write_after: how long after the last write the next is due, s.

        Raises:
            OSError: the disk refuses it; nothing is lost that is still in the ring.
            BrokenRing: the ring cannot be read any further.
        """
        # Checked before the last take: whatever was committed before the end is taken below.
        ended = self._reader.closed or self.life.ended()
        flush = self._reader.flush_requested
        if removed(self.folder):
            self._drop(ended)
            return
        # What the disk refused the last time comes first: until then nothing more is taken.
        if self.waiting:
            self.push()
        if self._reader.waiting >= WRITE_ROWS:
            self._write()
        all_taken = False
        for _ in range(_TAKES):
            taken = self._reader.take(_TAKE)
            waiting = self._reader.waiting
            if waiting >= WRITE_ROWS or (waiting and ended):
                self._write()
            all_taken = taken < _TAKE
            if all_taken:
                break
        self._report_losses()
        due = time.monotonic() - self._written_at >= write_after - EARLY_SECONDS
        if due or ended or flush != self._flush_answered:
            self._stacks.collect(self._reader.utc_offset_ns)
        if (self._reader.waiting or len(self._events) or self._stacks.rows) and (
            due or ended or flush != self._flush_answered
        ):
            self._write()
        if not all_taken:
            return
        if flush != self._flush_answered:
            self._answer_flush(flush)
        if ended and not self._may_report_more():
            self.finish()

    def _may_report_more(self) -> bool:
        """Say whether a process that has said goodbye has not ended yet."""
        if self._words.goodbye_ns is None or self._words.waits or self.life.ended():
            return False
        if self._closed_since is None:
            self._closed_since = time.monotonic()
        return time.monotonic() - self._closed_since < _ENDING_SECONDS

    def _write(self) -> None:
        reach = Reach(self._reader.position, self._losses())
        of_steps = Reach(self._reader.settled, self._losses())
        columns = self._reader.rows()
        for name in columns:
            if name not in self._writers:
                self._writers[name] = TableWriter(self.files, schema.TABLES[name], self._part)
            self._writers[name].prepare()
        if len(self._events):
            self._events_writer.prepare()
        self._stacks.prepare()
        # Nothing below fails halfway: a retry would write rows twice.
        for name, raw in columns.items():
            table = schema.TABLES[name]
            if name == "samples":
                rows = next(iter(raw.values()))[0]
                raw = {**raw, "flags": (rows, 0, bytes(4 * rows), None)}
            batch = self._tables.batch(table, raw, self._reader.texts)
            self._writers[name].append(batch, of_steps if name == "step_parts" else reach)
            if name == "events":
                self._words.read(batch)
            elif name == "spans":
                self._words.survived(batch)
            elif name == "step_parts" and self._sums is not None:
                self._sums.read(batch)
            if self.on_rows is not None:
                self.on_rows(batch)
        self._advance.read(columns.get("spans", {}))
        self._reader.clear()
        if len(self._events):
            self._events_writer.append(self._events.take())
        self._stacks.write()
        self._written_at = time.monotonic()
        self.push()

    def push(self) -> None:
        """Write to disk what is encoded.

        Raises:
            OSError: there is no room for it yet.
        """
        for writer in self._written():
            writer.push()
        self._events.renew(self._events_writer)

    def _answer_flush(self, ticket: int) -> None:
        error = 0
        try:
            for writer in self._written():
                writer.sync()
            self._write_process_file("live")
        except OSError as failure:
            error = failure.errno or 5
        self.answer(ticket, error)

    def answer(self, ticket: int, error: int) -> None:
        """Send the job the result of its flush."""
        self._reader.answer_flush(ticket, error)
        self._flush_answered = ticket

    def refuse_flush(self, error: int) -> None:
        """Answer a waiting flush with ``error`` (the disk refuses all writes)."""
        ticket = self._reader.flush_requested
        if ticket != self._flush_answered:
            self.answer(ticket, error)

    def _report_losses(self) -> None:
        losses = self._losses()
        if losses != self._reported_losses:
            for cause, count in losses.items():
                more = count - self._reported_losses.get(cause, 0)
                if more > 0:
                    self.event("lost", _LOSS_TEXT[cause].format(more), {"cause": cause, "n": more})
            self._reported_losses = losses
        moved = self._reader.wall_clock_moved_ns
        if abs(moved - self._wall_clock_reported) > 1_000_000:
            self.event(
                "clock",
                f"the wall clock was set by {(moved - self._wall_clock_reported) / 1e6:+.1f} ms; "
                "times here go on as before",
                {"moved_ns": moved},
            )
            self._wall_clock_reported = moved

    def _drop(self, ended: bool) -> None:
        """Discard new records: somebody has removed the folder, so they are not wanted."""
        if not self._dropping:
            self._dropping = True
            log.warning("%s was removed; what comes from it is thrown away", self.folder)
        for _ in range(_TAKES):
            taken = self._reader.take(_TAKE)
            self._reader.clear()
            if taken < _TAKE:
                break
        self._stacks.collect(None, last=True)
        self.refuse_flush(errno.ENOENT)
        if ended:
            self._end()

    def finish(self) -> None:
        """Close the files, record how it ended and remove the ring."""
        said_goodbye = self._reader.closed
        if not self._finishing:
            self._finishing = True
            self._ending = ended = self._described(said_goodbye)
            text = ending.sentence(self.pid, ended, goodbye=said_goodbye)
            self.event("exit", text, ended)
        self._stacks.collect(self._reader.utc_offset_ns, last=True)
        self._reader.settle()
        self._write()
        for writer in self._written():
            writer.close()
        assert self._ending is not None
        orderly = said_goodbye or self._ending["exit_code"] == 0
        self._write_process_file("closed" if orderly else "died")
        self._end()

    def _described(self, said_goodbye: bool) -> dict[str, Any]:
        ended = self.life.ended()
        asked = self.life.ask_parent(Folder.at(self.ring.parent)) if ended else 0
        who = (self.pid, self.start_time)
        if ended:
            self._kills.judge({who: self.life.killed})
        # As self._now() would have returned it then.
        ago = 0 if self.life.ended_at is None else time.monotonic_ns() - self.life.ended_at
        return ending.described(
            self.life.status,
            self._now() - ago,
            goodbye=said_goodbye,
            words=self._words,
            memory=self._kills.verdict(*who),
            asked=asked,
            living=not ended,
            parent=self._parent or None,
        )

    def look_at_end(self) -> None:
        """Keep how a process ended that had waited for its files; its tables are closed.

        Raises:
            OSError: there is no room for it.
        """
        if self.life.ended() and not removed(self.folder):
            self.lingers = False
            self._ending = self._described(said_goodbye=True)
            self._write_process_file("closed")
            self.life.close()

    def abandon(self, why: str) -> None:
        """Write what was taken so far, as far as possible; the ring stays where it is."""
        self.event("recorder", f"recording ended: {why}")
        state = "died" if self.life.ended() else "closed"
        self._stacks.collect(self._reader.utc_offset_ns, last=True)
        self._reader.settle()
        parts: list[Callable[[], None]] = [self._write]
        parts += [writer.close for writer in self._written()]
        parts.append(partial(self._write_process_file, state))
        for part in parts:
            try:
                part()
            except Exception as error:
                log.warning("%s: %s", self.folder, error)
        self.refuse_flush(errno.EIO)
        self.life.close()
        self._close()

    def _end(self) -> None:
        self.refuse_flush(0)
        self.lingers = self._words.waits and not self.life.ended()
        if not self.lingers:
            self.life.close()
        self._reader.free_records()
        self.ring.unlink(missing_ok=True)
        self._close()

    def _close(self) -> None:
        if self._part is not None:
            self._part.end()
        self.ended = True


#: Counted by whoever reads the ring; a new reader begins at 0.
_READERS_CAUSES: Final = frozenset({"overwritten", "corrupt_chunks", "unknown_records"})

_LOSS_TEXT: Final = {
    "overwritten": "{} records were overwritten before they were read; a larger ring (ring_mib) "
    "or a faster drain (drain_hz) keeps them",
    "nested": "{} records came from a signal handler inside another record and were dropped",
    "too_big": "{} records were larger than a chunk and were dropped",
    "no_lane": "{} records came from more threads than the ring has lanes; a larger ring "
    "(ring_mib) keeps them",
    "names": "{} names or attributes were too long for the ring; a larger ring (ring_mib) may "
    "keep them",
    "no_place": "{} operations of NCCL were not followed, because too many were under way",
    "corrupt_chunks": "{} chunks made no sense and were skipped",
    "unknown_records": "{} records were of a kind that this version does not know",
}


def _lost_records(losses: dict[str, int]) -> int:
    causes = ("overwritten", "nested", "too_big", "no_lane", "no_place")
    return sum(losses[cause] for cause in causes)


def is_ring(path: Path) -> bool:
    """Say whether a file has the name of a ring."""
    return path.suffix == RING_SUFFIX


def rings_in(folder: Path) -> list[Path]:
    """Return the ring files in ``folder``, oldest name first."""
    with contextlib.suppress(OSError):
        return sorted(filter(is_ring, folder.iterdir()))
    return []
