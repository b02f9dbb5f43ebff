"""The C++ core: ring, spans, phases, host sampling. Everything hot is a raw C callable."""

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from types import CodeType, TracebackType
from typing import Any, Final, TypeAlias, TypedDict, TypeVar

import numpy as np
import numpy.typing as npt

_Looked = TypeVar("_Looked", np.uint8, np.int32)

DEFAULT_RING_BYTES: Final[int]
MIN_RING_BYTES: Final[int]
#: Version of the ring files that this writes: "1.11".
RING_LAYOUT: Final[str]
#: Names of the numbers that records have, in order; 0 stands for one of a newer layout.
CATEGORIES: Final[tuple[str, ...]]
ACTIVITY_KINDS: Final[tuple[str, ...]]
OPERATIONS: Final[tuple[str, ...]]
COLLECTIVE_SIDES: Final[tuple[str, ...]]
NCCL_SIDES: Final[tuple[str, ...]]
PART_KINDS: Final[tuple[str, ...]]

def communicates(kernel: str) -> bool:
    """Say whether a kernel communicates, by its name."""

#: By c10's numbers; "other" stands for those that have no short name.
ELEMENT_TYPES: Final[tuple[str, ...]]

# -- the ring of this process (src/ring) ---------------------------------------------------------

def open_ring(
    path: str | PathLike[str],
    *,
    bytes: int = ...,
    rank: int | None = None,
    local_rank: int | None = None,
    world_size: int | None = None,
    attempt: int = 0,
    host: str = "",
    node: str = "",
    run: str = "",
    run_dir: str | PathLike[str] = "",
) -> None:
    """Create the ring file and make it this process's ring.

    Raises:
        OSError: ENOSPC when its pages cannot be reserved; EEXIST; EALREADY when one is open.
    """

def close_ring() -> None:
    """Close the ring: nothing more is recorded. Safe while other threads push."""

def ring_open() -> bool:
    """Whether this process has an open ring."""

def ready() -> bool:
    """Whether a record would be kept; opens the ring of an armed session, whose work begins."""

def ready_for_event() -> bool:
    """Whether an event would be kept; opens the ring of an armed session."""

def awaits_work() -> bool:
    """Whether the session is armed and nothing but events has been recorded yet."""

def set_opener(callable: Callable[[bool], None] | None) -> None:
    """Set what opens the ring at the first event and at the first work; None disarms.

    Args:
        callable: is given whether it is work: a phase, a range, a value.
    """

def value(metric: str, value: float, /) -> None:
    """Record one value."""

def event(kind: str, text: str, attributes: str | None = None) -> None:
    """Record that something happened; attributes is a JSON object."""

def request_flush() -> int:
    """Ask the recorder to write everything to disk; returns the ticket to wait for."""

def wait_flushed(ticket: int, seconds: float) -> int | None:
    """Wait for the answer: 0, an errno, or None when none came in time."""

def losses() -> dict[str, int]:
    """Records of this process that never reached the ring, by cause."""

class Span:
    """Record the time between entering and leaving as one span."""

    def __init__(
        self,
        name: str,
        category: int = 7,
        attributes: str | None = None,
        *,
        device: bool = False,
        microbatch: int = 4294967295,
        stage: int = 4294967295,
        chunk: int = 4294967295,
    ) -> None: ...
    @property
    def name(self) -> str: ...
    @property
    def attributes(self) -> str | None: ...
    @property
    def device(self) -> bool: ...
    @property
    def microbatch(self) -> int | None: ...
    @property
    def stage(self) -> int | None: ...
    @property
    def chunk(self) -> int | None: ...
    def __enter__(self) -> Span: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...

class Replay:
    """Time the replay of a CUDA graph on the GPU, between entering and leaving.

    Nothing is recorded where nothing is timed on the GPU, or where the replay raises.

    Args:
        graph: the number of the graph in this process; the interval is called "graph <number>".
    """

    def __init__(self, graph: int) -> None: ...
    def __enter__(self) -> Replay: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...

# -- reads and writes that /proc does not see (src/io) ---------------------------------------------

def count_submitted() -> str:
    """Count what is asked for through libaio, io_uring and USRBIO in the counters of the ring.

    Returns:
        Why that cannot be done here; empty when it is.
    """

def leave_submitted() -> None:
    """Restore what was replaced for it."""

def join_counters(path: str, pid: int, start_time: int) -> bool:
    """Add to the counters of another process's living ring, as long as this one has no own.

    Args:
        path: the ring's file.
        pid: its process.
        start_time: when its process started, clock ticks since boot.

    Returns:
        Whether this process now does.
    """

# -- any ring, from any process (src/ring, src/drain) --------------------------------------------

class BrokenRing(ValueError):
    """A ring that is inconsistent, or was truncated since it was opened."""

class Chore:
    """What the recorder does while none of its Python runs: empties a ring, reads sources."""

def do_chores(
    fds: Sequence[int],
    *,
    until_ns: int,
    every_ns: int,
    folder: int,
    changed_ns: int,
    often: Sequence[Chore],
    when_due: Sequence[Chore],
) -> list[int]:
    """Wait until there is something to do for the caller, and do chores meanwhile.

    Args:
        fds: descriptors that end it once they can be read.
        until_ns: when it ends (CLOCK_MONOTONIC), or somewhat before where it is awake anyway.
        every_ns: how often the chores ``often`` are done, and ``folder`` is looked at.
        folder: descriptor of a folder; a change of it ends the waiting.
        changed_ns: when that was changed last, as it is known.
        often: chores to do as often as that.
        when_due: chores to do when they are due.

    Returns:
        Which descriptors can be read. It ends, too, once a chore has something to do that it
        cannot do itself, and when a signal comes.
    """

class RingReader(Chore):
    """A ring as columns of the tables of haiprof/schema.py.

    Raises:
        ValueError: the file is no ring that this version reads.
        BlockingIOError: it is still being made by its writer.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        through: Mapping[str, Mapping[int, int]] = ...,
        utc_offset_ns: int | None = ...,
    ) -> None: ...
    @property
    def header(self) -> dict[str, Any]:
        """What the super block says about the writer."""
    @property
    def closed(self) -> bool:
        """Whether the writer said goodbye."""
    def take(self, most: int = ...) -> int:
        """Append new records to the columns; returns how many there were.

        Raises:
            BrokenRing: no more can be read; what was taken before stays.
        """
    @property
    def taken(self) -> int:
        """How many records were taken so far."""
    @property
    def waiting(self) -> int:
        """How many of them were taken since the last call of :meth:`clear`."""
    def rows(self) -> dict[str, dict[str, tuple[int, int, bytes, bytes | None]]]:
        """Table -> column -> (rows, nulls, values, validity bits) of what was taken.

        Tables without rows and columns without a value are left out.
        """
    def settle(self) -> None:
        """Sum up the steps and minutes that are not over: nothing more will come."""

    @property
    def settled(self) -> dict[int, int]:
        """Lane -> number of the first record that is of no step that was summed up."""

    def clear(self) -> None:
        """Forget the rows, not the dictionaries."""
    def texts(
        self, table: str, column: str, have: int = 0, renewed: int = 0
    ) -> tuple[int, list[str]]:
        """How often a column's dictionary has begun anew, and its texts: behind the first ``have``.

        All of them when it has begun anew more often than ``renewed`` times.
        """
    @property
    def devices(self) -> list[dict[str, Any]]:
        """The GPUs that the process uses: device (ordinal), uuid, name, memory_bytes."""
    @property
    def position(self) -> dict[int, int]:
        """Lane -> number of its next record."""
    @property
    def losses(self) -> dict[str, int]:
        """Records that will never be read, by cause; exact."""
    @property
    def utc_offset_ns(self) -> int | None:
        """UTC minus CLOCK_MONOTONIC as all times here have it; None before the first record."""
    @property
    def wall_clock_moved_ns(self) -> int:
        """How far the wall clock was set since the ring was opened."""
    @property
    def flush_requested(self) -> int:
        """The newest flush ticket."""
    def answer_flush(self, ticket: int, error: int = 0) -> None:
        """Report to the writer that everything up to that ticket is on disk, or why not."""
    def free_records(self) -> None:
        """Free the memory of a closed ring, except its counters."""
    def progress(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """How far communication has come: the groups, and the threads that are blocked.

        A group has ``name``, ``size`` (ranks), ``asked`` and ``done`` (numbers of its newest
        collective, 0: none; ``done`` is None where ends are not seen), ``age_s`` (since it was
        asked for), ``operation``, ``type``, ``elements_in``, ``elements_out``, ``peer`` (the root).
        A thread has ``thread``, ``group`` (its name), ``sequence``, ``age_s``, ``operation`` and
        ``peer``. What is not known is None, an age negative.
        """

# -- trace files (src/trace) ----------------------------------------------------------------------

class TraceParser:
    """A Chrome trace file, given in pieces of any size, as columns.

    Columns are numpy arrays: int64 (not there: -2**63), float64 (NaN) or uint32 (2**32 - 1). Times
    and durations are ns, those of the file, to which its ``baseTimeNanoseconds`` is still to be
    added. Texts are uint32 codes, see ``strings``; ``process`` and ``thread`` are texts, too. Ids
    (``correlation``, ``external``, ``graph_node``, ``address``, ``id``) are unsigned 64-bit numbers
    by their bits. May be used from several threads; lets go of the GIL.

    Args:
        categories: where spans and activities (``"ph": "X"``) go by their category in lower case:
            ``"spans"``, ``"activities"``, or ``""`` for nowhere. ``""`` is for events without a
            category, ``"*"`` for categories that are not here; without it they are a problem.
        arguments: the categories whose arguments are wanted as JSON text, in ``arguments``.

    Raises:
        ValueError: a category goes elsewhere, or arguments are wanted of one that is not there.
    """

    def __init__(self, categories: Mapping[str, str], arguments: Sequence[str] = ...) -> None: ...
    def feed(self, piece: bytes | bytearray | memoryview) -> None:
        """Read more.

        Raises:
            ValueError: the file is finished.
        """
    def finish(self) -> None:
        """Signal the end of the file."""
    def take(self) -> dict[str, dict[str, npt.NDArray[Any]]]:
        """Group -> column -> values of the rows since the last call, in the order of the file.

        spans, activities; collectives (what one of these says of communication: the one in ``row``
        of this call's spans, ``side`` 0, or activities, ``side`` 1); allocations; instants (all
        others); flows (``side``: 0 start, 1 step, 2 end); counters (a row for each argument, its
        name in ``instance``); metadata. Groups without rows and columns without a value are left
        out.
        """
    def strings(self, first: int = 0) -> list[str]:
        """The texts from that code onwards."""
    @property
    def header(self) -> dict[str, str]:
        """The members of the file beside ``traceEvents``, as JSON text without blanks."""
    @property
    def problems(self) -> dict[str, tuple[int, int, str]]:
        """What was not understood -> how often, where first (bytes), and what it looked like."""
    @property
    def truncated(self) -> int | None:
        """Where the file was cut off (bytes): what follows could not be read."""
    @property
    def events(self) -> int:
        """How many events were read."""

# -- steps and phases (src/phase) and what torch calls -------------------------------------------

class WrappedCall:
    """A callable that opens a token, calls the original and closes the token."""

    def __init__(self, original: Callable[..., Any], kind: str) -> None: ...
    def __call__(self, *args: Any, **keywords: Any) -> Any: ...
    def __get__(self, instance: object, owner: type | None = None) -> Callable[..., Any]: ...
    def disable(self) -> None:
        """Only call the original from now on."""

def step_mark() -> None:
    """End the current step and begin the next; from now on only these calls do."""

def current_step() -> int | None:
    """The number of the step that the process is in: of inference or, once it trains, of those."""

def begin_own_work() -> int:
    """Begin what haiprof does on the thread that trains and is no part of the job's phases.

    Returns a token for :func:`end_own_work`; 0 on other threads.
    """

def end_own_work(token: int) -> None:
    """End it: the phase ``deep_trace``."""

def trained_elsewhere() -> bool:
    """Whether another thread than this one trains."""

def phases_finish() -> None:
    """Emit what is open: the last step, its phases, and figures that are recorded periodically."""

def phases_reset() -> None:
    """Forget everything, as a forked child must."""

def hooks_detached() -> None:
    """Declare that the end of calls open now will not be seen, on any thread."""

def module_enter(module: object, arguments: object = ..., keywords: object = ..., /) -> None:
    """Begin a module call."""

def compiled_enter(function: object, /) -> None:
    """Begin a call of a compiled function."""

def module_leave() -> None:
    """End either."""

def optimizer_enter(arguments: tuple[Any, ...], /) -> None:
    """Begin ``Optimizer.step``; the optimizer is the first argument."""

def optimizer_leave() -> None:
    """End it."""

def backward_enter(tensors: object, /) -> None:
    """Begin ``torch.autograd.backward``, which prepares for the engine."""

def backward_leave() -> None:
    """End it."""

def set_gradients_query(query: Callable[[], bool], /) -> None:
    """Set the function that says whether gradients are enabled."""

def set_tensor_type(tensor: type, /) -> None:
    """Record the sizes of the inputs of models that are of this type."""

def collection(phase: str, information: dict[str, int], /) -> None:
    """What ``gc.callbacks`` calls: a collection begins ("start") or ends ("stop")."""

def watch_collections(on: bool, /) -> None:
    """Say whether ``collection`` records anything."""

def watch_allocator(core: object, cuda: object, /) -> None:
    """Record the figures of torch's CUDA allocator after steps, from torch._C and torch.cuda."""

def leave_allocator() -> None:
    """Record them once more, then stop."""

def allocator_state() -> str:
    """Return "on: …", "waiting: …" or "off: why"."""

# Only in Pythons with sys.monitoring.
def on_start(code: CodeType, offset: int, /) -> object: ...
def on_return(code: CodeType, offset: int, value: object, /) -> object: ...
def on_unwind(code: CodeType, offset: int, error: BaseException, /) -> object: ...
def watch_code(
    module: CodeType | None,
    compiled: CodeType | None,
    optimizer: CodeType | None,
    backward: CodeType | None,
    /,
) -> None: ...

# -- GPU activity (src/gpu) -----------------------------------------------------------------------

def gpu_start(
    folders: str = "",
    *,
    kernels: str = "windows",
    budget: float = 0.0,
    period: float = 60.0,
    graph_kernels: bool = False,
    synchronization: bool = False,
    overhead: bool = True,
    shared: bool = False,
    in_use: bool = False,
) -> tuple[str, str] | None:
    """Record GPU activity from now on; initialises the driver.

    Args:
        folders: where a libcupti may lie that nobody has loaded yet; colons between them.
        kernels: "off", "windows" or "all"; phases, ranges and devices are recorded with each.
        budget: the share of the job's time that it may take; 0 for any.
        period: how long after the beginning of a window the next one begins, s.
        graph_kernels: record kernels also once the job replays CUDA graphs, which makes those
            slower; otherwise that ends it.
        synchronization: record the host's waits too.
        overhead: record what CUPTI says that it takes itself.
        shared: torch.profiler uses CUPTI in this process when it is asked to; refused where haiprof
            would not see that.
        in_use: torch.profiler may be recording now, and is given way until it has ended.

    Returns:
        Why it cannot be recorded, and what the user can do about it; None when all of it can.
        Where ``gpu_collecting()`` is true nevertheless, only kernels or only phases cannot.
    """

def gpu_set_stream_query(query: Callable[[int], int]) -> None:
    """Set the function that returns the stream (its handle) that a thread uses on a device.

    Without it no phase and no range is timed on a GPU.
    """

def gpu_flush(seconds: float) -> bool:
    """Move all activity that has ended into the ring; False if that took longer."""

def gpu_stop(seconds: float) -> None:
    """Stop recording, and move the rest into the ring, within this time."""

def gpu_hasten_window() -> None:
    """Have the next window of kernels begin now, if what they cost leaves room for one more."""

def gpu_collecting() -> bool:
    """Whether the collector's thread runs."""

def gpu_tracing() -> bool:
    """Whether it can record kernels."""

def gpu_driver_initialised() -> bool:
    """Whether this process has initialised the CUDA driver. Loads nothing."""

def gpu_counts() -> dict[str, int]:
    """What was recorded and lost since the process began, and what it cost (ns)."""

def gpu_probe(folders: str = "") -> tuple[str, str, int]:
    """Return (libcupti's file, "", its API version), or (reason, fix, 0).

    Initialises the driver, and enables and disables kernels: not for a process that uses CUPTI.
    """

def gpu_list() -> tuple[list[str], str, str, str]:
    """Return (uuids of all GPUs and MIG devices, state, reason, fix), as NVML reports.

    Loads NVML and initialises it; state is that of a source: ok, absent, denied.
    """

# -- the host (src/sampler, src/host) ------------------------------------------------------------

#: The pid of a watched process or 0 for the node, then metric, instance, value and flags.
Sample = tuple[int, str, str | None, float, int]

class SourceReport(TypedDict):
    """What a source of host metrics reports about itself."""

    name: str
    state: str
    reason: str
    mend: str
    metrics: list[str]
    interval_s: float
    cost_us: float

class SampleRows:
    """Samples of one target as columns of ``samples`` and ``minutes``, until they are written.

    Not to be looked at while another thread collects.
    """

    def __init__(self, utc_offset_ns: int) -> None:
        """``utc_offset_ns``: from the clock of the sampler to UTC."""
    def __len__(self) -> int: ...
    def rows(self) -> dict[str, dict[str, tuple[int, int, bytes, bytes | None]]]:
        """Table -> column -> (rows, nulls, values, validity bits), as a ``RingReader`` has them."""
    def end(self) -> None:
        """Sum up the minutes that are not over: nothing more will come."""
    def texts(
        self, table: str, column: str, have: int = 0, renewed: int = 0
    ) -> tuple[int, list[str]]:
        """As :meth:`RingReader.texts` has them."""
    def clear(self) -> None:
        """Forget the rows, and the dictionaries once they are large."""

class HostSampler(Chore):
    """Samples the node, watched process trees (procfs, sysfs, cgroupfs) and GPUs (NVML).

    ``basic``, ``gpu``, … are how often the sources of each recorder are read, s; 0 leaves them out.
    ``own_*`` are where watched processes have their numbers, when ``procfs`` and ``sysfs`` are the
    node's, mounted into a container; the same as those if not given. ``perfd`` is the socket of a
    haiprof-perfd that opens counters where this process may not; ``resctrl`` allows monitoring
    groups to be made for watched processes; ``kmsg`` is the kernel's log.
    """

    def __init__(
        self,
        *,
        procfs: str = "/proc",
        sysfs: str = "/sys",
        own_procfs: str | None = None,
        own_sysfs: str | None = None,
        basic: float = 1.0,
        gpu: float = 1.0,
        ib: float = 1.0,
        io: float = 1.0,
        mem: float = 1.0,
        power: float = 1.0,
        perfd: str = "",
        resctrl: bool = False,
        kmsg: str = "/dev/kmsg",
    ) -> None: ...
    def watch(self, pid: int) -> None:
        """Sample the process tree below ``pid`` as well."""
    def unwatch(self, pid: int) -> None:
        """Stop sampling that tree."""
    def watch_counters(self, pid: int, ring: str, *, whole: bool = True) -> None:
        """Sample the counters of a ring as that process's, beside those of its other rings.

        ``whole``: from the ring's beginning, else only what is added from now on.
        """
    def unwatch_counters(self, ring: str) -> None:
        """Sample what was added until now at the next reading, then stop."""
    def use_gpu(self, uuid: str) -> None:
        """Sample that GPU (``GPU-…`` or ``MIG-…``) from the next reading on.

        NVML is not loaded before the first.
        """
    def unuse_gpu(self, uuid: str) -> None:
        """Stop sampling it."""
    def gpus(self) -> list[dict[str, Any]]:
        """Constant properties of each sampled GPU.

        instance, index, mig (or None), uuid, name, driver, memory_bytes, and what NVML tells of
        power_limit_w, pci, parent_uuid.
        """
    def sources(self) -> list[SourceReport]:
        """What can be read here, and for what cannot: why, and how to fix it."""
    def read(self, now_ns: int) -> list[Sample]:
        """Read what is due: (pid or 0 for the node, metric, instance, value, flags)."""
    def keep(self, pid: int, rows: SampleRows, label: str = "") -> None:
        """Add the samples of a process, or of the node (0), to ``rows``, as long as these are used.

        ``label``: as an instance that is called so; what was called so before is no longer kept.
        """
    def collect(self, now_ns: int) -> None:
        """Read what is due into the rows that are kept."""
    def changes(self) -> list[tuple[str, str, dict[str, Any]]]:
        """What happened since the last call: (kind, one plain sentence, attributes).

        ``source``: a source slowed down, failed, came back; ``throttle``, ``xid``, ``ecc`` and
        ``gpu_lost``: what a GPU said; ``affinity`` and ``affinity_changed``: on which CPUs a
        watched process may run; ``pcie_link``: how wide a device's link is; ``kernel_log``: what
        the kernel said.
        """
    @property
    def next_due_ns(self) -> int:
        """When the next source is due, in the clock that ``read`` is given; 2**64 - 1 for never."""

# -- hardware counters (src/uncore) ---------------------------------------------------------------

class _OtherWords(TypedDict, total=False):
    config1: str
    config2: str

class PlannedEvent(_OtherWords):
    """One counter of one PMU on one CPU, as for perf_event_open(2)."""

    pmu: str
    type: int
    cpu: int
    metric: str
    config: str
    scale: float
    socket: int

class UncorePlan(TypedDict):
    events: list[PlannedEvent]
    problems: list[str]
    unknown: list[str]
    cpu: str | None
    sockets: int
    dram_peak_bytes_per_s: float | None
    dram_peak_how: str

def uncore_plan(sysfs: str = "/sys", procfs: str = "/proc", cpu: str = "") -> UncorePlan:
    """The counters of memory bandwidth, links, PCIe and energy; opens none of them.

    ``cpu`` is the CPU of the machine that ``sysfs`` shows, ``VENDOR:FAMILY:MODEL``, where
    ``procfs`` is not that machine's. ``metric`` is dram_rd, dram_wr, dram_rw (both), xsock_tx,
    pcie_in, pcie_out, c2c_in, c2c_out (bytes), cpu_J or dram_J (joules); ``config`` is hexadecimal
    (``0x304``; the other words only when they are not 0), ``scale`` the bytes or joules of one
    count, ``socket`` whose traffic or energy it is, from 0. ``problems`` are lines about files that
    make no sense and PMUs that cannot be used, ``unknown`` names of PMUs of the machine that no
    rule knows. The peak is of all sockets together, bytes/s; None when it is not known.

    Raises:
        ValueError: ``cpu`` is not of that form.
    """

# -- starting the recorder -----------------------------------------------------------------------

def call_soon(function: Callable[[], object], /) -> bool:
    """Make the main thread call it between two instructions, and raise there what it raises.

    Returns:
        False when too many calls are waiting.
    """

def spawn_detached(
    arguments: Sequence[str | bytes], environment: Sequence[str | bytes], log: int = -1
) -> int:
    """Start a detached program, with none of our descriptors; returns its pid.

    Raises:
        OSError: it cannot be started.
    """

# -- names of kernels -----------------------------------------------------------------------------

def demangle(name: str) -> str:
    """Demangle a C++ name; other names, and those above 1024 characters, stay unchanged."""

# -- nesting of spans (src/nesting) --------------------------------------------------------------

def nest(
    thread: npt.NDArray[np.uint32],
    group: npt.NDArray[np.uint8],
    start: npt.NDArray[np.int64],
    end: npt.NDArray[np.int64],
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64], npt.NDArray[np.int32], int]:
    """Who called whom, for spans in the order of :func:`nesting_order`.

    Spans nest within their thread and group (0 to 3).

    Returns:
        For each span the row of the one that started last of those open when it starts (-1:
        none); how long, in ns, it was itself the open one that started last; the row after the
        last one of all that ran within it; and how many spans end after the one that they start
        in.

    Raises:
        ValueError: the arrays differ in length, or a group is not below 4.
    """

def nesting_order(
    thread: npt.NDArray[np.uint32],
    start: npt.NDArray[np.int64],
    end: npt.NDArray[np.int64],
    rank: npt.NDArray[np.uint8],
) -> npt.NDArray[np.int32]:
    """The rows in the order thread, start, longest first, rank, row."""

def nearest(parent: npt.NDArray[np.int32], wanted: npt.NDArray[np.bool_]) -> npt.NDArray[np.int32]:
    """For each span itself or the nearest wanted one around it, or -1; in one pass.

    Args:
        parent: for each span the one around it, which stands before it, or -1.
        wanted: one for each span.

    Raises:
        ValueError: the arrays differ in length.
    """

def innermost_within(
    thread: npt.NDArray[np.uint32],
    start: npt.NDArray[np.int64],
    end: npt.NDArray[np.int64],
    chosen: npt.NDArray[np.bool_],
    window_start: npt.NDArray[np.int64],
    window_end: npt.NDArray[np.int64],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """Give each instant of the windows to the innermost chosen span, of all threads' the youngest.

    Spans stand in the order of :func:`nesting_order`; windows are sorted and disjoint. A span that
    crosses one around it ends when that does.

    Returns:
        Begin and end (ns) and the row of each piece, by time; none goes beyond its window.

    Raises:
        ValueError: the arrays differ in length.
    """

def share_out(
    start: npt.NDArray[np.int64],
    end: npt.NDArray[np.int64],
    row: npt.NDArray[np.int32],
    begun: npt.NDArray[np.int64],
    window_start: npt.NDArray[np.int64],
    window_end: npt.NDArray[np.int64],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """Give each instant of the windows to one of the intervals that have it.

    Args:
        start: of each interval, ns.
        end: of each interval, ns.
        row: whose each interval is.
        begun: of each row: the one that began last has the instant, of several the greatest.
        window_start: of windows that are sorted and disjoint, ns.
        window_end: of these windows, ns.

    Returns:
        Begin and end (ns) and the row of each piece, by time; none goes beyond its window.

    Raises:
        ValueError: the arrays differ in length, or an interval is of no row.
    """

# -- collectives (src/collectives) ----------------------------------------------------------------

def watch_collectives() -> list[str]:
    """Record the communication of torch.distributed from now on. Idempotent.

    Returns:
        The backends that are watched, each followed by what of it is not seen; none: there are
        none, or of an unknown version.
    """

def nccl_version_asked() -> int:
    """Return the version of its profiler interface with which NCCL has come; 0: it has not."""

def leave_collectives() -> None:
    """Record it no longer. Idempotent."""

def name_group(name: str, size: int, ask: Callable[[], object]) -> bool:
    """Give a group its name.

    Args:
        name: as ranks have it in common.
        size: ranks in it.
        ask: calls a method of its backend: ``_get_sequence_number_for_group``.

    Returns:
        Whether that was seen.
    """

# -- paths (src/paths) ----------------------------------------------------------------------------

def fold(
    parent: npt.NDArray[np.int32], name: npt.NDArray[np.uint32]
) -> tuple[
    npt.NDArray[np.int32],
    npt.NDArray[np.int32],
    npt.NDArray[np.uint32],
    npt.NDArray[np.uint32],
]:
    """The distinct paths of a forest; a parent that is not before its row is ignored.

    Returns:
        For each row the number of its path; for each path its parent (-1: none), name and depth.
    """

def longest_path(
    source: npt.NDArray[np.int32],
    target: npt.NDArray[np.int32],
    weight: npt.NDArray[np.int64],
    nodes: int,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """The heaviest path to each node; edges sorted by target, each source lower than its target.

    Returns:
        For each node the weight of that path; the edges of the one to the last node, first to
        last. Of equally heavy edges into a node the first is taken.

    Raises:
        ValueError: the edges are not so.
    """

# -- intervals united, rows grouped (src/aggregate) -----------------------------------------------

def unite(
    start: npt.NDArray[np.int64],
    end: npt.NDArray[np.int64],
    set: npt.NDArray[np.uint8],
    sets: int,
) -> list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """The union of the intervals of each set: sorted, disjoint, never touching.

    ``set`` says of each interval in which of the ``sets`` it is; a number beyond them: in none.

    Raises:
        ValueError: the arrays differ in length.
    """

def unite_two(
    start: npt.NDArray[np.int64],
    end: npt.NDArray[np.int64],
    other_start: npt.NDArray[np.int64],
    other_end: npt.NDArray[np.int64],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The union of two such sets.

    Raises:
        ValueError: the arrays of one differ in length.
    """

def intersect(
    start: npt.NDArray[np.int64],
    end: npt.NDArray[np.int64],
    other_start: npt.NDArray[np.int64],
    other_end: npt.NDArray[np.int64],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """What is in both of two such sets.

    Raises:
        ValueError: the arrays of one differ in length.
    """

def subtract(
    start: npt.NDArray[np.int64],
    end: npt.NDArray[np.int64],
    other_start: npt.NDArray[np.int64],
    other_end: npt.NDArray[np.int64],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """What is in the first of two such sets and not in the second.

    Raises:
        ValueError: the arrays of one differ in length.
    """

def sharing(
    start: npt.NDArray[np.int64],
    end: npt.NDArray[np.int64],
    other_start: npt.NDArray[np.int64],
    other_end: npt.NDArray[np.int64],
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Pairs of intervals and those of such a set that share an instant, as rows of each.

    Raises:
        ValueError: the arrays of one differ in length.
    """

def covered_before(
    sets: Sequence[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]],
    instant: npt.NDArray[np.int64],
) -> npt.NDArray[np.int64]:
    """For each instant how long some of these sets lasts before it.

    Raises:
        ValueError: the arrays of a set differ in length.
    """

def first_rows(codes: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """For each number up to the largest code the first row that has it; 2**32 - 1: none."""

def look_up(codes: npt.NDArray[np.uint32], table: npt.NDArray[_Looked]) -> npt.NDArray[_Looked]:
    """``table[codes]``, of a table of uint8 or int32.

    Raises:
        IndexError: a code is beyond the table.
    """

class Groups:
    """Rows grouped by equal keys, sorted by the first column, then by the following ones.

    Columns are contiguous arrays of unsigned integers, or of codes and of the key that each code
    stands for.

    Raises:
        ValueError: the arrays differ in length, or are of another type.
        IndexError: a code stands for no key.
    """

    def __init__(
        self,
        columns: Sequence[npt.NDArray[Any] | tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]],
    ) -> None: ...
    def __len__(self) -> int: ...
    def keys(self, chosen: npt.NDArray[np.uint32]) -> list[npt.NDArray[Any]]:
        """The keys of these groups, by column, in the types in which they were given.

        Raises:
            IndexError: there is no such group.
        """

    def total(self, values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Sum of the values of each group's rows.

        Raises:
            ValueError: there is not one value for each row.
        """

    def sum_up(
        self, values: npt.NDArray[np.int64], chosen: npt.NDArray[np.uint32]
    ) -> tuple[
        npt.NDArray[np.uint32],
        npt.NDArray[np.int64],
        npt.NDArray[np.int64],
        npt.NDArray[np.int64],
    ]:
        """Of these groups the number of rows, and sum, minimum and maximum of their values.

        Raises:
            IndexError: there is no such group.
            ValueError: there is not one value for each row.
        """

    @property
    def order(self) -> npt.NDArray[np.uint32]:
        """All rows, group by group; within a group in their order."""

    @property
    def first(self) -> npt.NDArray[np.uint32]:
        """Where in ``order`` each group begins; then the number of rows."""

# -- code that another process runs (src/attach) -------------------------------------------------

class InjectError(Exception):
    """A process that cannot be reached: ``args`` are a word (src/attach/refused.h) and a clause."""

    args: tuple[str, str]

def interpreter(pid: int) -> tuple[str, int, bool]:
    """Return the file that CPython is in, as the process names it, and which CPython that is.

    That is its PY_VERSION_HEX, 0 before 3.11, and whether it was built without the GIL. Nothing
    runs in the process and none of its threads is stopped.

    Raises:
        InjectError: there is none that can be reached.
    """

class Injection:
    """Source text that the main thread of another process is to run with PyRun_SimpleString.

    It must raise nothing: what it raises would reach the job.
    """

    def __init__(self, pid: int, code: str) -> None:
        """Look for the interpreter, without side effects.

        Raises:
            InjectError: there is none that can be reached.
        """
    def queue(self) -> str:
        """Queue it: ``queued``, or ``full`` or ``starting``, when it is to be called again later.

        Raises:
            InjectError: the process or its threads cannot be reached, or not any more.
        """
    def ran(self) -> bool:
        """Whether it has run to its end.

        Raises:
            InjectError: the process has ended.
        """
    def close(self) -> bool:
        """Free the memory; code that has not run will not run later. Returns whether it has run.

        Raises:
            InjectError: the process has ended.
        """
    @property
    def frozen_ns(self) -> int:
        """How long one thread of the process was stopped, in all; ns."""

def python_layout() -> bytes:
    """Describe where this Python keeps the frames of its threads; for :class:`PythonStacks`.

    Raises:
        RuntimeError: its layout is not known, and why.
    """

def layout_of(pid: int) -> bytes:
    """Describe where another process keeps the frames of its threads, as :func:`python_layout`.

    It need not have loaded haiprof; its Python must be of the version that this one is.

    Raises:
        RuntimeError: it is not, or there is no such process.
        PermissionError: its memory may not be read.
    """

def thread_state(pid: int, thread: int) -> tuple[str, str | None]:
    """Whether a thread runs or waits, as :meth:`StackSampler.take` says it, and in what it waits.

    ``unknown`` where there is no such thread.
    """

def reading_is_restricted() -> bool:
    """Whether Yama keeps processes of one user from reading each other unless they allow it."""

def let_read(reader: int) -> None:
    """Let that process of this user read the memory of this one and of those that it forks.

    Args:
        reader: its pid; 0: nobody any more.
    """

class PythonStacks:
    """The Python stacks of a process, read from its memory while it runs."""

    def __init__(self, pid: int, layout: bytes) -> None:
        """Raises ValueError where the layout is of no Python that is known."""
    def take(self) -> list[tuple[int, bool, bool, list[tuple[str, str, int]]]]:
        """Read all threads: the kernel's number, whether it has the GIL, whether its stack is cut.

        Then its frames, the innermost first: function, file, line (0: none).

        Raises:
            ProcessLookupError: the process has ended.
            PermissionError: its memory may not be read.
            ValueError: its memory is of another program.
        """
    @property
    def torn(self) -> int:
        """How many stacks of threads did not hold together when they were read, twice."""

#: As :meth:`StackSampler.take` says.
StackSample: TypeAlias = tuple[int, int, int, int, int, int, str, str | None, int]
StackNode: TypeAlias = tuple[int, int | None, str, str, int | None, int | None]

class StackSampler:
    """Samples the Python stacks of processes, in a thread of its own, until it is deleted.

    Each sample is at a random moment of its period. Of a thread that has not run since its last
    sample, that one goes on. Periods grow where sampling would cost more than 1 % of a core.
    """

    def __init__(self, hz: float) -> None:
        """Sample so often, 0: not at all."""
    @property
    def hz(self) -> float:
        """How often it samples; can be set."""
    @hz.setter
    def hz(self, hz: float) -> None: ...
    def watch(
        self, pid: int, start_time: int, owner: int, layout: bytes, first_node: int = 0
    ) -> bool:
        """Begin to sample a process and the children that it forks.

        Args:
            pid: the process.
            start_time: field 22 of its ``/proc/<pid>/stat``.
            owner: its user; its memory is not read while it has another one.
            layout: of its ring.
            first_node: number of its first node.

        Returns:
            False when it is not that process.

        Raises:
            ValueError: no process can have that layout.
        """
    def unwatch(self, pid: int) -> tuple[list[StackSample], list[StackNode]]:
        """Sample a process no more; return what :meth:`take` would, and what still went on."""
    def take(self, pid: int) -> tuple[list[StackSample], list[StackNode]]:
        """Return what was sampled of a process and its children since the last call.

        A sample is (ns of CLOCK_MONOTONIC, ns that it stands for, number of samples, pid, thread,
        node, state, what it waits in, 1 if it has the GIL else 0); more than one sample is of a
        thread that did not run meanwhile. A node is (number, parent, function, file, line, first
        line of the function) and comes before samples that name it.
        """
    def counts(self, pid: int) -> dict[str, Any]:
        """Return what could not be sampled of a process and its children.

        ``torn``: stacks that changed while they were read, twice; ``dropped``: samples that nobody
        took; ``cut``: stacks with more frames than are read; ``ended``: whether it has ended;
        ``problem``: why nothing is sampled while it lives, empty if all is well.
        """
    @property
    def cost_ns(self) -> int:
        """CPU time that sampling has taken, ns."""
