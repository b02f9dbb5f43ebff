"""Contract 2: the tables that recorders write and every analysis reads.

Times are int64 nanoseconds since the Unix epoch (UTC), durations int64 nanoseconds, sizes bytes.
A value that is not known is null, never 0. This module is data only: it imports nothing heavy, so
that a profiled process may look at it; :func:`arrow_schema` imports pyarrow where it is called.

A reader accepts every ``MINOR`` of its own ``MAJOR``: a minor version only appends columns (absent
ones read as null); a major version changes the meaning of one.

Tests: tests/recorder/test_tables.py.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    import pyarrow as pa

MAJOR: Final = 1
MINOR: Final = 8

#: The numbers of inference steps count from here, because those of a training count from 0.
INFERENCE: Final = 1 << 31

#: Arrow schema metadata keys.
KEY_FORMAT: Final = "haiprof.format"
KEY_TABLE: Final = "haiprof.table"
KEY_VERSION: Final = "haiprof.version"
#: Record-batch metadata: JSON object lane -> records of it that are on disk after this batch.
KEY_THROUGH: Final = "haiprof.through"
#: Record-batch metadata: JSON object cause -> records that the ring had lost until then.
KEY_LOST: Final = "haiprof.lost"
#: Record-batch metadata: rows of the stream up to the end of this batch. Of a closed file, in the
#: metadata of its schema: its rows.
KEY_ROWS: Final = "haiprof.rows"

RUN_FILE: Final = "run.json"
PROCESS_FILE: Final = "process.json"
RUN_FORMAT: Final = "haiprof-run"
PROCESS_FORMAT: Final = "haiprof-process"
#: ``ended`` in it, of a process that has: kind (finished, failed, killed, interrupted, stopped,
#: unknown), exit_code, signal, reason (exception, out of memory), text, time_ns, failed_ns,
#: parent_pid; null is not known. Without it the process runs, or the recorder was older.
#: ``steps`` in it: how many it made, of training, else of inference; null while it runs, and where
#: another recorder had begun.
#: ``loaded`` in it, of a node whose recorder has closed its files: whether a Python of the job had
#: ``haiprof`` and had imported ``torch``.
#: ``<table>-<n>.arrows`` while live (IPC stream), closed into ``<table>-<n>.arrow`` (IPC file).
LIVE_SUFFIX: Final = ".arrows"
CLOSED_SUFFIX: Final = ".arrow"
#: Instead of ``.arrows``: a stream of which not all could be closed into a file.
DAMAGED_SUFFIX: Final = ".damaged"
#: Beside ``process.json``: of which tables the oldest segments were removed, to stay below
#: ``limit_bytes``. ``tables`` has for each how many segments, rows and bytes, and ``until_ns``, ns
#: UTC: what was recorded from then on is there. ``removing`` names what is just being removed.
THINNED_FILE: Final = "thinned.json"
THINNED_FORMAT: Final = "haiprof-thinned"
THINNED_FIELDS: Final = ("segments", "rows", "bytes", "until_ns")
#: A kept import of a trace lies beside it as ``<trace>.haiprof/``, of a folder of them in it.
IMPORT_SUFFIX: Final = ".haiprof"
IMPORT_FOLDER: Final = "haiprof-import"


class Column(NamedTuple):
    """One column: ``kind`` is an Arrow type name; ``text`` means dictionary<uint32, utf8>."""

    name: str
    kind: str
    meaning: str
    nullable: bool = False


class Table(NamedTuple):
    """One table of contract 2."""

    name: str
    row: str
    columns: tuple[Column, ...]


def _columns(*rows: tuple[str, str, str] | tuple[str, str, str, bool]) -> tuple[Column, ...]:
    return tuple(Column(*row) for row in rows)


SPANS: Final = Table(
    "spans",
    "one host interval",
    _columns(
        ("start", "int64", "ns, UTC epoch"),
        ("duration", "int64", "ns"),
        (
            "category",
            "text",
            "step, inference_step, phase, op, runtime, python, user, gc, compile, …",
        ),
        ("name", "text", "what ran"),
        ("thread", "uint32", "kernel thread id"),
        ("step", "uint32", "number of the step it belongs to", True),
        ("correlation", "uint64", "of the launch, as its kernels have it", True),
        ("attributes", "text", "JSON object", True),
        # What only a deep trace knows.
        ("external", "uint64", "id of the op it belongs to; of an op its own", True),
        ("sequence", "int64", "number that a backward op shares with its forward op", True),
        ("forward_thread", "uint32", "of a backward op: where the forward op ran", True),
        ("shapes", "text", "JSON array: dimensions of each input", True),
        ("types", "text", "JSON array: element type of each input", True),
        ("stack", "text", "Python frames, innermost first, ';' between them", True),
        ("python_id", "uint32", "of a Python function's call", True),
        ("python_parent", "uint32", "python_id of the call that made this one", True),
        ("module", "uint32", "which nn.Module the call is of", True),
        ("inputs", "text", "JSON array: value of each input that is no tensor, as a text", True),
    ),
)

EVENTS: Final = Table(
    "events",
    "something that happened",
    _columns(
        ("time", "int64", "ns, UTC epoch"),
        (
            "kind",
            "text",
            "mark, lost, fork, exception, goodbye, exit, disk, hook, clock, recorder, loader, "
            "threads, ddp, compile, autograd, hang, …",
        ),
        ("text", "text", "one plain sentence", True),
        ("step", "uint32", "number of the step it happened in", True),
        ("attributes", "text", "JSON object", True),
    ),
)

#: Kinds of events that hold from then on: when kernels are recorded, that they no longer are
#: because CUDA graphs are replayed, what the model is, that a job was attached to, with which
#: settings it runs.
LASTING: Final = (
    *("kernels", "graphs", "model", "flops", "attach"),
    *("loader", "threads", "ddp", "autograd"),
)

SAMPLES: Final = Table(
    "samples",
    "one metric value",
    _columns(
        ("time", "int64", "ns, UTC epoch: the end of the interval that a rate covers"),
        ("metric", "text", "<thing>.<quantity>.<unit>"),
        ("instance", "text", "gpu0, node1, mlx5_0/1, cpu7, a pid, …", True),
        ("value", "float64", "in the metric's unit"),
        ("flags", "uint32", "0, or bits of FLAG_*"),
    ),
)

KERNELS: Final = Table(
    "kernels",
    "one GPU activity",
    _columns(
        ("start", "int64", "ns, UTC epoch"),
        ("duration", "int64", "ns"),
        ("kind", "text", "kernel, memcpy, memset, sync, overhead"),
        ("name", "text", "mangled as recorded"),
        ("device", "uint16", "CUDA ordinal in the process", True),
        ("stream", "uint32", "CUPTI stream id", True),
        ("correlation", "uint64", "of the launch; null in graphs before CUPTI 13.1.1", True),
        ("graph", "uint32", "CUDA graph id", True),
        ("graph_node", "uint64", "CUDA graph node id", True),
        ("grid_x", "uint32", "blocks", True),
        ("grid_y", "uint32", "blocks", True),
        ("grid_z", "uint32", "blocks", True),
        ("block_x", "uint16", "threads", True),
        ("block_y", "uint16", "threads", True),
        ("block_z", "uint16", "threads", True),
        ("registers", "uint16", "per thread", True),
        ("shared_memory", "uint32", "bytes, static and dynamic", True),
        ("bytes", "uint64", "bytes copied or set", True),
        ("copy_kind", "text", "HtoD, DtoH, DtoD, PtoP, …", True),
        # What only a deep trace knows.
        ("external", "uint64", "the file's External id: of the op, in some versions no such", True),
        ("blocks_per_sm", "float64", "blocks of the grid for each multiprocessor", True),
        ("occupancy", "float64", "estimated achieved occupancy, percent", True),
        ("bandwidth", "float64", "of a copy or set, GB/s, as in the file", True),
        ("unit", "text", "what it ran on, as the tool names it: AI_CORE, AI_CPU, …", True),
        (
            "op_type",
            "text",
            "kind of operator as the tool names it: MatMul, TransData, …",
            True,
        ),
    ),
)

DEVICE_SPANS: Final = Table(
    "device_spans",
    "one interval on a device, between two CUDA events or from a schedule",
    _columns(
        ("start", "int64", "ns, UTC epoch"),
        ("duration", "int64", "ns, idle time of the stream included"),
        ("category", "text", "phase, user, pipeline, graph"),
        ("name", "text", "forward, backward, optimizer, send, recv, graph 0, or the range's"),
        ("device", "uint16", "ordinal in the process"),
        ("stream", "uint32", "joins with kernels", True),
        ("step", "uint32", "number of the step it belongs to", True),
        ("microbatch", "uint32", "as the range was given it", True),
        ("uncertainty", "uint32", "ns that the start may be off by", True),
        ("stage", "uint32", "of the pipeline, as the range or the schedule was given it", True),
        ("chunk", "uint32", "of the model, where a rank has several stages", True),
    ),
)

ALLOCATIONS: Final = Table(
    "allocations",
    "one event of a memory allocator",
    _columns(
        ("time", "int64", "ns, UTC epoch"),
        ("kind", "text", "cpu, cuda, hip, mtia, …: whose memory"),
        ("device", "uint16", "ordinal; null for the host", True),
        ("address", "uint64", "of the block"),
        ("bytes", "int64", "of the block: positive allocated, negative freed"),
        ("total_allocated", "int64", "bytes in use after it", True),
        ("total_reserved", "int64", "bytes that the allocator holds after it", True),
        ("thread", "uint32", "kernel thread id", True),
    ),
)

FRAMES: Final = Table(
    "frames",
    "one line of a function, as called from another: a node of the tree of stacks",
    _columns(
        ("id", "uint32", "its number: rows of one folder count from 0"),
        ("parent", "uint32", "id of the node that called it; null: the outermost", True),
        ("function", "text", "qualified name"),
        ("file", "text", "as the code object names it"),
        ("line", "uint32", "that ran, or called the next node", True),
        ("first_line", "uint32", "of the function", True),
    ),
)

STACKS: Final = Table(
    "stacks",
    "a thread's Python stack at a moment, or for as long as the thread did not run",
    _columns(
        ("start", "int64", "ns, UTC epoch: of the first sample"),
        ("duration", "int64", "ns of wall time that its samples stand for"),
        ("samples", "uint32", "how many: more than one while the thread did not run"),
        ("process", "uint32", "pid: of the rank, or of a worker that it forked"),
        ("thread", "uint32", "kernel thread id"),
        ("stack", "uint32", "id in frames of the innermost one"),
        ("state", "text", "running, ready (to run, and another has its CPU), waiting, …"),
        ("waits_in", "text", "kernel function or system call that it waits in", True),
        ("gil", "uint16", "1: it has the GIL"),
    ),
)

COLLECTIVES: Final = Table(
    "collectives",
    "one communication, on the host or as a kernel",
    _columns(
        ("start", "int64", "ns, UTC epoch"),
        (
            "duration",
            "int64",
            "ns: of the host's call, of the kernel, of all of it, or of the wait",
        ),
        (
            "side",
            "text",
            "host (the call), device (the kernel), work (from the call to its end), wait (of a "
            "thread of the job)",
        ),
        ("op", "text", "all_reduce, all_gather, send, …"),
        ("thread", "uint32", "kernel thread id of the host's call, or that waits", True),
        ("external", "uint64", "id of the op that made it", True),
        ("correlation", "uint64", "of the kernel", True),
        ("group", "text", "name of the process group", True),
        ("group_size", "uint32", "ranks in it", True),
        ("ranks", "text", "JSON array: its ranks, possibly shortened", True),
        ("type", "text", "element type", True),
        ("elements_in", "int64", "elements that each rank puts in", True),
        ("elements_out", "int64", "elements that each rank gets", True),
        ("bytes", "int64", "of the inputs of one rank", True),
        ("attributes", "text", "JSON object: all further fields", True),
        # What only a recorded job knows.
        ("step", "uint32", "number of the step in which it was asked for, or waited for", True),
        (
            "sequence",
            "uint64",
            "number in its group; of a message, among those from the one rank to the other",
            True,
        ),
        ("begun", "int64", "ns after start: when work on it began", True),
        ("peer", "uint32", "rank in the group: the other end of a message, else the root", True),
        ("failed", "uint16", "1: it ended with an error", True),
    ),
)

NCCL: Final = Table(
    "nccl",
    "what NCCL's profiler interface says of one operation: on the host, or on the network",
    _columns(
        (
            "start",
            "int64",
            "ns, UTC epoch: NCCL began to enqueue it; its proxy took up the first transfer",
        ),
        ("duration", "int64", "ns: until it was enqueued; until the last transfer had ended"),
        ("side", "text", "host, network: the further columns up to step are the host's"),
        ("id", "uint64", "of the operation, in this process"),
        ("communicator", "text", "NCCL's id of it, the same on all ranks, hexadecimal", True),
        ("name", "text", "what the job calls the communicator", True),
        ("place", "uint32", "rank in the communicator", True),
        ("ranks", "uint32", "in the communicator", True),
        ("nodes", "uint32", "that the communicator spans", True),
        ("op", "text", "all_reduce, all_gather, send, …", True),
        (
            "sequence",
            "uint64",
            "among those of the communicator that are of the same function; of messages none",
            True,
        ),
        ("type", "text", "element type", True),
        ("elements", "int64", "as the call has them: of one rank", True),
        ("bytes", "int64", "that these take", True),
        ("algorithm", "text", "RING, TREE, NVLS, …; CE: copy engines", True),
        ("protocol", "text", "LL, LL128, SIMPLE", True),
        ("channels", "uint16", "that it uses", True),
        ("peer", "uint32", "place of the other end of a message, else of the root", True),
        ("step", "uint32", "number of the step in which it was enqueued", True),
        ("transfers", "uint32", "that have ended: one for each channel, peer and direction", True),
        ("cut_off", "uint16", "1: its communicator ended before it", True),
    ),
)

STEP_PARTS: Final = Table(
    "step_parts",
    "a step, or one part of it: its rows follow the step's own",
    _columns(
        ("start", "int64", "ns, UTC epoch: of the step, or of the part's last span in it"),
        ("duration", "int64", "ns: of the step, or of the part without what is nested in it"),
        (
            "kind",
            "text",
            "step, inference_step, phase, user, gc, wait (for other ranks), other (the rest of the "
            "step); checkpoint, compile (each a row, in a step or not); late (spans that came too "
            "late for their step), gap (a step of which not all was seen); of a device: "
            "device_step, device_phase, and, if kernels were recorded throughout, busy, "
            "communication, exposed (that alone), copying (that alone), phase_busy (of a phase, "
            "busy), idle (by the host's phase meanwhile)",
        ),
        ("name", "text", "of the phase, range or operation"),
        ("step", "uint32", "number of the step", True),
        ("count", "uint32", "spans that it sums up"),
        (
            "last",
            "int64",
            "ns that the last span took as a whole; null: the same as duration",
            True,
        ),
        ("device", "uint16", "ordinal in the process; null: of the host", True),
    ),
)

MINUTES: Final = Table(
    "minutes",
    "the values of one metric in one minute, or in a part of it: rows of one minute add up",
    _columns(
        ("time", "int64", "ns, UTC epoch: when the minute began"),
        ("metric", "text", "as in samples"),
        ("instance", "text", "as in samples", True),
        ("count", "uint32", "samples; those that are no measurement are left out"),
        ("min", "float64", "the least of them"),
        ("mean", "float64", "their mean"),
        ("max", "float64", "the greatest"),
        ("flags", "uint32", "all that any of them had"),
    ),
)

FLOWS: Final = Table(
    "flows",
    "one end of an arrow between two spans",
    _columns(
        ("time", "int64", "ns, UTC epoch: within the span that it is bound to"),
        ("kind", "text", "fwdbwd, ac2g, …"),
        ("side", "text", "start or end"),
        ("id", "uint64", "the same at both ends, unique within its kind"),
        ("thread", "uint32", "kernel thread id, or the stream", True),
    ),
)

TABLES: Final[dict[str, Table]] = {
    t.name: t
    for t in (
        *(SPANS, EVENTS, SAMPLES, KERNELS, DEVICE_SPANS, ALLOCATIONS, COLLECTIVES, NCCL, FLOWS),
        *(FRAMES, STACKS, STEP_PARTS, MINUTES),
    )
}

#: ``samples.flags``: the value was scaled up from a counter that ran part of the time.
FLAG_SCALED: Final = 1
#: ``samples.flags``: the interval is longer than asked for (the machine or the recorder was late).
FLAG_LATE: Final = 2
#: ``samples.flags``: more than the hardware can do; the value is that limit, not a measurement.
FLAG_IMPLAUSIBLE: Final = 4
#: ``samples.flags``: more than the memory is known to be able to do, and what was measured: what is
#: known may be wrong.
FLAG_ABOVE_PEAK: Final = 8


@cache
def arrow_type(kind: str) -> pa.DataType:
    """Return the Arrow type of a column kind of this module."""
    import pyarrow as pa

    if kind == "text":
        return pa.dictionary(pa.uint32(), pa.utf8())
    dtype: pa.DataType = getattr(pa, kind)()
    return dtype


def metadata(table: Table) -> dict[str, str]:
    """Return the metadata of the Arrow schema of ``table``: the format and its version."""
    return {
        KEY_FORMAT: "haiprof",
        KEY_TABLE: table.name,
        KEY_VERSION: f"{MAJOR}.{MINOR}",
    }


@cache
def arrow_schema(table: Table) -> pa.Schema:
    """Return the Arrow schema of ``table``, with the format and its version in the metadata."""
    import pyarrow as pa

    return pa.schema(
        [pa.field(c.name, arrow_type(c.kind), nullable=c.nullable) for c in table.columns],
        metadata=metadata(table),
    )
