"""What a run is: its processes, and how each ended. The base of sources and views.

Tests: tests/sources/test_own.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROLE_RANK = "rank"
ROLE_NODE = "node"
ROLE_PROCESS = "process"


@dataclass(frozen=True, slots=True)
class Source:
    """What a recorder reported of one source of samples: its state, the reason, and the fix."""

    name: str
    state: str
    reason: str
    fix: str


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU that a rank used (``device`` is its CUDA ordinal) or that a node has (``instance``)."""

    uuid: str
    name: str
    device: int | None
    instance: str
    memory_bytes: int | None
    multiprocessors: int | None = None
    #: Compute capability, as in (9, 0).
    capability: tuple[int, int] | None = None
    power_limit_w: float | None = None
    #: Its address, as the node's recorder has it.
    pci: str = ""


@dataclass(frozen=True, slots=True)
class Machine:
    """Constant properties of a node; None or empty where unknown.

    ``dram_peak_bytes_per_s`` is of all sockets together, and ``dram_peak_how`` says where it comes
    from, in plain words. ``clock_error_ns`` is how far its wall clock could be from UTC as the
    recording began, according to NTP or PTP.
    """

    cpu: str
    sockets: int | None
    numa_nodes: int | None
    dram_peak_bytes_per_s: float | None
    dram_peak_how: str
    clock_error_ns: int | None = None


@dataclass(frozen=True, slots=True)
class TraceInfo:
    """Which trace file a process folder was imported from.

    ``span`` numbers the times at which this worker was profiled, from 1; ``begin`` and ``end``, ns
    since the epoch, are of the first and the last event; ``distributed`` is the file's
    ``distributedInfo`` unchanged; ``version`` its ``schemaVersion``; ``tool`` who wrote it
    (a package of :mod:`haiprof.sources`); ``lacks`` what it does not contain and why, by table or
    ``table.column``.
    """

    file: str
    worker: str
    span: int
    begin: int | None
    end: int | None
    distributed: dict[str, Any]
    version: int | None
    tool: str
    lacks: dict[str, str]


@dataclass(frozen=True, slots=True)
class Ending:
    """How a process ended, or the launched command of a node.

    ``kind`` is ``finished``, ``failed``, ``killed`` (by a signal), ``interrupted`` (it was asked to
    end), ``stopped`` (its recording ended before it did) or ``unknown``; ``reason`` is
    ``exception``, ``out of memory`` or empty; ``signal`` a name or empty; ``failed_ns`` is when it
    failed, of an exception before it ended, ns UTC; ``parent_pid`` is of a helper.
    """

    kind: str
    exit_code: int | None
    signal: str
    reason: str
    text: str
    time_ns: int
    failed_ns: int
    parent_pid: int | None = None


@dataclass(frozen=True, slots=True)
class StackSampling:
    """How the stacks of a process were sampled.

    Attributes:
        hz: how often a second; 0: not at all.
        torn: stacks of threads that changed while they were read.
        dropped: samples that found no room.
        cut: stacks that are deeper than what is read.
        problem: why there are none, or none any more; empty: all is well.
    """

    hz: float
    torn: int = 0
    dropped: int = 0
    cut: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Thinned:
    """What was removed of a table of a process, so that its node stays below a limit.

    Attributes:
        table: its name.
        until_ns: what was recorded from then on, ns UTC, is there.
        rows: how many were removed.
        limit_bytes: the limit.
        summed_up: whether the recorder had summed them up, by the step or by the minute: then that
            is what their time is known by.
    """

    table: str
    until_ns: int
    rows: int
    limit_bytes: int
    summed_up: bool = False


@dataclass(frozen=True, slots=True)
class Process:
    """One process folder of a run; ``role`` is ``rank``, ``process`` (fork, helper) or ``node``."""

    folder: Path
    role: str
    node: str
    host: str
    rank: int | None
    local_rank: int | None
    world_size: int | None
    attempt: int | None
    pid: int | None
    started_ns: int | None
    ended_ns: int | None
    state: str
    lost: dict[str, int]
    sources: tuple[Source, ...]
    gpus: tuple[Gpu, ...] = ()
    #: Of a node; None where the recorder was older.
    machine: Machine | None = None
    #: Of a process that was read from a trace file.
    trace: TraceInfo | None = None
    #: When the operating system started it, ns UTC; None where the recorder was older.
    process_started_ns: int | None = None
    #: Why it was only observed from outside; empty: it recorded.
    outside: str = ""
    #: None while it runs, and where the recorder was older.
    ending: Ending | None = None
    #: Name for people, unique in the run: ``rank 3``, ``rank 3, attempt 1``, ``rank 3, pid 41``.
    label: str = ""
    #: What is read of its tables, from and up to, ns UTC; None: all.
    window: tuple[int, int] | None = None
    #: None where nobody sampled any: of a node, of a trace, and where the recorder was older.
    stacks: StackSampling | None = None
    #: How many it has made, of training, else of inference; None while it runs, and where the
    #: recorder was older or another one had begun.
    steps: int | None = None
    #: Of a node: which of haiprof and torch a Python of the job had loaded; None: not known.
    loaded: frozenset[str] | None = None
    #: Tables of which the oldest rows were removed.
    thinned: tuple[Thinned, ...] = ()

    def complete_since(self, *names: str) -> int | None:
        """Return from when on these tables are known, ns UTC; None: always."""
        gone = (t.until_ns for t in self.thinned if t.table in names and not t.summed_up)
        return max(gone, default=None)

    def summed_up_until(self, name: str) -> int | None:
        """Return until when a table is known by what was summed up of it, ns UTC; None: never."""
        known = (t.until_ns for t in self.thinned if t.table == name and t.summed_up)
        return max(known, default=None)

    @property
    def identity(self) -> object:
        """What several recordings of one process of the operating system have in common."""
        if self.process_started_ns is None:
            return self.folder.name
        return self.node, self.pid, self.process_started_ns


@dataclass(frozen=True, slots=True)
class Run:
    """A run: its processes, and one line for each folder that could not be read."""

    folder: Path
    name: str
    created_ns: int
    command: tuple[str, ...]
    host: str
    processes: tuple[Process, ...]
    problems: tuple[str, ...]
    #: Which kernels the job was asked to record (the option ``kernels``); empty if unknown.
    kernels: str = ""
    #: Seconds before each process begins to record.
    warmup: float = 0.0
    #: The option ``peak_flops`` of the job; 0 if not set.
    peak_flops: float = 0.0
    #: Who ran it, where a platform that runs all jobs as one user says so.
    user: str = ""
    #: What was opened, if not ``folder``: traces, of which ``folder`` is an import.
    source: str = ""
