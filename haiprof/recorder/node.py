"""The node itself: samples of it and its GPUs into its folder, of its ranks into theirs.

Tests: tests/recorder/test_node_recorder.py.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from haiprof import schema
from haiprof._core import Chore, HostSampler, SampleRows
from haiprof.common.owned_files import Folder
from haiprof.common.places import PROCFS, SYSFS, Access, node_name, removed
from haiprof.common.process_life import Life
from haiprof.recorder import ending, machine
from haiprof.recorder.arrow_stream import Batch
from haiprof.recorder.memory_kills import Verdict
from haiprof.recorder.process import EARLY_SECONDS, WRITE_SECONDS, RecordedProcess
from haiprof.recorder.process_folder import gpus_of, read_process_file, whole, write_json
from haiprof.recorder.segments import TableWriter, close_left
from haiprof.recorder.storage import Part, Storage
from haiprof.recorder.tables import RingTables, RowTable

if TYPE_CHECKING:
    from haiprof._core import SourceReport

log = logging.getLogger(__name__)

#: How often the sources are asked for their states if nothing has happened, s: that takes longer
#: than to read them.
_LOOK_SECONDS: Final = 10.0
#: The sources of the machine or container that the recorder runs in.
_HERE = Access()


class _Folder:
    """Samples of one target on their way to one folder."""

    def __init__(self, files: Folder, utc_offset_ns: int, part: Part | None) -> None:
        self.path = files.path
        self.rows = SampleRows(utc_offset_ns)
        tables = schema.SAMPLES, schema.MINUTES
        self._writers = {table.name: TableWriter(files, table, part) for table in tables}
        self._part = part
        self._tables = RingTables()
        #: Takes them as they are written, and never raises.
        self.on_rows: Callable[[Batch], None] | None = None

    def write(self) -> None:
        if removed(self.path):
            self.rows.clear()  # somebody has removed the folder: they are not wanted
            return
        rows = self.rows.rows()
        for name in rows:
            self._writers[name].prepare()
        # Nothing below fails halfway: a retry would write rows twice.
        for name, columns in rows.items():
            batch = self._tables.batch(schema.TABLES[name], columns, self.rows.texts)
            self._writers[name].append(batch)
            if self.on_rows is not None:
                self.on_rows(batch)
        self.rows.clear()
        for writer in self._writers.values():
            writer.push()

    def close(self) -> None:
        self.rows.end()
        self.write()
        for writer in self._writers.values():
            writer.close()
        if self._part is not None:
            self._part.end()


def _claim_folder(run: Folder) -> Folder:
    """Return a folder for the node that no other living recorder writes, locked while it is open.

    Containers that share a host name and a run have a recorder each; the second has ``<node>.2``.
    """
    for n in range(1, 1000):
        folder = run.folder(node_name() if n == 1 else f"{node_name()}.{n}", make=True)
        try:
            fcntl.flock(folder.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        except OSError:  # a file system without locks; there two write into one folder
            pass
        return folder
    raise FileExistsError(17, "no free folder for this node", str(run.path / node_name()))


def has_been_recorded(run: Folder) -> bool:
    """Return whether a recorder of this node has closed its files in the run."""
    with contextlib.suppress(OSError):
        return (read_process_file(run.folder(node_name())) or {}).get("state") == "closed"
    return False


def _answers(sources: list[SourceReport]) -> list[tuple[str, str, str]]:
    return [(source["name"], source["state"], source["reason"]) for source in sources]


class NodeRecorder:
    """Samples the node once for all its ranks."""

    def __init__(
        self,
        run: Path | Folder,
        intervals: Mapping[str, float],
        access: Access = _HERE,
        storage: Storage | None = None,
    ) -> None:
        """Make the node's folder and open the sources.

        Args:
            run: folder of the run.
            intervals: how often each recorder's sources are read, s; others are not read.
            access: how the sources are reached.
            storage: limits what tables take; None: nothing does.

        Raises:
            OSError: the folder cannot be made.
        """
        self._storage = storage
        self._files = _claim_folder(Folder.at(run))
        self.folder = self._files.path
        try:
            self._open(intervals, access)
        except BaseException:
            self._unlock()  # a retry must be able to claim it
            raise

    def _open(self, intervals: Mapping[str, float], access: Access) -> None:
        not_closed = close_left(self._files)
        self._access = access
        # Rings take the offset of the two clocks once, too; a wall clock that is set would tear
        # the samples from their steps.
        self._utc_offset_ns = time.time_ns() - time.monotonic_ns()
        self._sampler = self._open_sources(intervals)
        self._machine = machine.describe(access)
        self._targets: dict[int, _Folder] = {}
        self._add_target(0, self._files)
        self._events = RowTable(schema.EVENTS)
        self._events_writer = TableWriter(self._files, schema.EVENTS, self._part_of(self._files))
        self._command: int | None = None
        self._ended: dict[str, Any] | None = None
        self._loaded: dict[str, bool] | None = None
        self._gpu_users: dict[str, set[Path]] = {}
        self._gpus: dict[str, dict[str, Any]] = {}
        self._begun = self._now_ns()
        self._written_at = time.monotonic()
        self._look_at = 0.0
        for lost in not_closed:
            self.event("recorder", lost)
        self._sources = self._sampler.sources()
        self._write_node_file("live", self._sources)

    def _open_sources(self, intervals: Mapping[str, float]) -> HostSampler:
        return HostSampler(
            procfs=self._access.procfs,
            sysfs=self._access.sysfs,
            # Ranks are watched by their numbers in the recorder's own namespace.
            own_procfs=PROCFS,
            own_sysfs=SYSFS,
            basic=intervals.get("basic", 0.0),
            gpu=intervals.get("gpu", 0.0),
            ib=intervals.get("ib", 0.0),
            io=intervals.get("io", 0.0),
            mem=intervals.get("mem", 0.0),
            power=intervals.get("power", 0.0),
            perfd=self._access.perfd,
            resctrl=self._access.resctrl,
        )

    def _add_target(self, pid: int, folder: Path | Folder) -> None:
        files = Folder.at(folder)
        target = self._targets[pid] = _Folder(files, self._utc_offset_ns, self._part_of(files))
        self._sampler.keep(pid, target.rows)

    def _part_of(self, files: Folder) -> Part | None:
        return None if self._storage is None else self._storage.part(files, self._now_ns)

    def change_pace(
        self, intervals: Mapping[str, float], processes: Iterable[RecordedProcess]
    ) -> None:
        """Read the sources at this pace from now on.

        Args:
            intervals: as at the beginning.
            processes: all that are watched.

        Raises:
            OSError: the node's file cannot be written.
        """
        self._keep_changes()
        self._sampler = self._open_sources(intervals)
        for pid, target in self._targets.items():
            if pid != 0:
                self._sampler.watch(pid)
            self._sampler.keep(pid, target.rows)
        if self._command is not None:
            self._sample_command(self._command)
        for uuid in self._gpu_users:
            self._sampler.use_gpu(uuid)
        for process in processes:
            self.watch_counters(process, anew=False)
        paces = ", ".join(f"{name} every {seconds:g} s" for name, seconds in intervals.items())
        self.event("recorder", f"sources are read at another pace: {paces}", {"s": dict(intervals)})
        self._sources = self._sampler.sources()
        self._write_node_file("live", self._sources)

    def _now_ns(self) -> int:
        return time.monotonic_ns() + self._utc_offset_ns

    def _look_at_sources(self) -> None:
        """Keep the sources' states while a watched process lives; else most say that none does.

        Raises:
            OSError: the node's file cannot be written; the next reading tries again.
        """
        if time.monotonic() < self._look_at:
            return
        sources = self._sampler.sources()
        if not any(s["name"] == "process" and s["state"] == "ok" for s in sources):
            return
        if _answers(sources) != _answers(self._sources):
            self._write_node_file("live", sources)
        self._sources = sources
        self._look_at = time.monotonic() + _LOOK_SECONDS

    def _write_node_file(self, state: str, sources: list[SourceReport]) -> None:
        if removed(self.folder):
            return
        before = read_process_file(self._files) or {}
        begun = min(self._begun, whole(before, "started_ns") or self._begun)
        gpus = {gpu["uuid"]: gpu for gpu in gpus_of(before)} | self._gpus
        write_json(
            self._files,
            schema.PROCESS_FILE,
            {
                "format": schema.PROCESS_FORMAT,
                "version": f"{schema.MAJOR}.{schema.MINOR}",
                "role": "node",
                "node": node_name(),
                "rank": None,
                "pid": None,
                "started_ns": begun,
                "ended_ns": None if state == "live" else self._now_ns(),
                "state": state,
                "machine": self._machine,
                "sources": sources,
                "gpus": sorted(gpus.values(), key=lambda gpu: str(gpu.get("instance"))),
                "lost": {"records": 0},
                "ended": self._ended,
                "loaded": self._loaded,
            },
        )

    def event(self, kind: str, text: str, attributes: Mapping[str, Any] | None = None) -> None:
        """Append one row to the node's events."""
        encoded = json.dumps(attributes) if attributes else None
        self._events.add(self._now_ns(), kind, text, None, encoded)

    def watch_command(self, pid: int) -> None:
        """Sample a launched command too, as instance ``command`` of the node.

        Everything below it counts, except ranks, which have their own samples.
        """
        if self._command is not None and self._command not in self._targets:
            self._sampler.unwatch(self._command)
        self._command = pid
        self._sample_command(pid)

    def _sample_command(self, pid: int) -> None:
        # The command may be a rank itself, whose folder gets them as well.
        self._sampler.watch(pid)
        self._sampler.keep(pid, self._targets[0].rows, "command")

    def end_command(self, command: Life, memory: Verdict, asked: int) -> None:
        """Keep how the launched command ended; an event says so if it failed.

        Args:
            command: the process, which has ended.
            memory: what the kernel killed for memory meanwhile.
            asked: signal by which it had been asked to end; 0: none.
        """
        at = self._now_ns()
        if command.ended_at is not None:
            at = command.ended_at + self._utc_offset_ns
        ended = self._ended = ending.described(
            command.status, at, goodbye=False, memory=memory, asked=asked
        )
        if ended["kind"] not in ("finished", "unknown"):
            self.event("exit", f"the command (process {command.pid}) ended: {ended['text']}", ended)

    def watch(self, pid: int, folder: Path | Folder) -> None:
        """Sample the process tree below ``pid`` into ``folder`` from now on, and into no other.

        Raises:
            OSError: there is no room to write the last samples of the folder before.
        """
        before = self._targets.get(pid)
        self._sampler.watch(pid)
        self._look_at = 0.0
        self._add_target(pid, folder)
        if before is not None:
            before.close()

    def unwatch(self, pid: int, folder: Path) -> None:
        """Stop sampling ``pid`` into ``folder`` and close its samples.

        Raises:
            OSError: there is no room to write the last of them.
        """
        target = self._targets.get(pid)
        # A process may begin a new ring while its old one is still being written out.
        if target is None or target.path != folder:
            return
        target.close()
        del self._targets[pid]
        if pid != self._command:
            self._sampler.unwatch(pid)

    def watch_counters(self, process: RecordedProcess, *, anew: bool = True) -> None:
        """Sample the counters in a process's ring; a helper's count for its rank.

        ``anew``: its counts so far have not been sampled yet.
        """
        for pid, target in self._targets.items():
            if target.path == process.folder or target.path == process.rank_folder:
                self._sampler.watch_counters(
                    pid, str(process.ring), whole=anew and not process.taken_over
                )
                self._collect()  # the baseline
                return

    def unwatch_counters(self, process: RecordedProcess) -> None:
        """Sample it once more, then stop."""
        self._sampler.unwatch_counters(str(process.ring))
        self._collect()

    def use_gpus(self, folder: Path, uuids: Iterable[str]) -> None:
        """Sample these GPUs, too, as long as the process of ``folder`` is there."""
        for uuid in uuids:
            users = self._gpu_users.setdefault(uuid, set())
            if not users:
                self._sampler.use_gpu(uuid)
            users.add(folder)

    def unuse_gpus(self, folder: Path) -> None:
        """Sample no longer what only the process of ``folder`` has used."""
        for uuid, users in list(self._gpu_users.items()):
            users.discard(folder)
            if not users:
                self._sampler.unuse_gpu(uuid)
                del self._gpu_users[uuid]

    def _look_at_gpus(self) -> None:
        """Keep the constant properties of each GPU that was ever sampled.

        Raises:
            OSError: the node's file cannot be written; the next reading tries again.
        """
        known = self._gpus | {gpu["uuid"]: gpu for gpu in self._sampler.gpus()}
        if known != self._gpus:
            before, self._gpus = self._gpus, known
            try:
                self._write_node_file("live", self._sources)
            except OSError:
                self._gpus = before
                raise

    def _keep_changes(self) -> None:
        for kind, text, attributes in self._sampler.changes():
            log.info("%s", text)
            self.event(kind, text, attributes)
            self._look_at = 0.0

    def _collect(self) -> None:
        """Take the values of the sources that are due."""
        self._sampler.collect(time.monotonic_ns())

    def sample(self, write_after: float = WRITE_SECONDS) -> None:
        """Read the sources that are due; write when it is time.

        Args:
            write_after: how long after the last write the next is due, s.

        Raises:
            OSError: the disk refuses it; the rows wait.
        """
        self._collect()
        self._keep_changes()
        self._look_at_sources()
        self._look_at_gpus()
        if time.monotonic() - self._written_at >= write_after - EARLY_SECONDS:
            self.write()

    @property
    def sources(self) -> list[SourceReport]:
        """The sources as they were last known to be."""
        return self._sources

    @property
    def gpus(self) -> list[dict[str, Any]]:
        """The constant properties of each GPU that was ever sampled."""
        return list(self._gpus.values())

    def hand_rows_to(self, take: Callable[[Batch], None] | None) -> None:
        """Hand the node's own rows, as they are written, to ``take``, which must not raise."""
        self._targets[0].on_rows = take

    @property
    def chore(self) -> Chore:
        """What reads the sources between two calls of :meth:`sample`."""
        return self._sampler

    @property
    def next_due_ns(self) -> int:
        """When a source is due next (CLOCK_MONOTONIC, ns)."""
        return self._sampler.next_due_ns

    def write(self) -> None:
        """Write all samples to disk.

        Raises:
            OSError: there is no room for them yet.
        """
        self._written_at = time.monotonic()
        for target in self._targets.values():
            target.write()
        if removed(self.folder):
            self._events.forget()
            return
        if len(self._events):
            self._events_writer.prepare()
            self._events_writer.append(self._events.take())
        self._events_writer.push()
        self._events.renew(self._events_writer)

    def close(self, loaded: dict[str, bool] | None = None) -> None:
        """Write the rest and close the files.

        Args:
            loaded: whether a Python of the job has loaded haiprof, and torch; None: not known.

        Raises:
            OSError: there is no room; what was written stays readable.
        """
        try:
            self._loaded = loaded
            # The last GPUs were released after the last reading; keep the changes since then.
            self._keep_changes()
            self.write()
            for target in self._targets.values():
                target.close()
            self._events_writer.close()
            self._write_node_file("closed", self._sources)
        finally:
            self._unlock()

    def _unlock(self) -> None:
        with contextlib.suppress(OSError):
            fcntl.flock(self._files.fd, fcntl.LOCK_UN)
