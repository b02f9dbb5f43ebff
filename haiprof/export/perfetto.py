"""A run as a trace of Perfetto: its own protobuf, with all ranks on one time line.

Times are ns UTC, as clock 1 (REALTIME) and clock 6 (BOOTTIME) of the trace both say. Names are
interned once for each process, whose packets are a sequence of their own. Field numbers are those
of Perfetto's ``trace_packet.proto``, which keeps them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

from haiprof import schema
from haiprof.common.arrow_columns import numbers
from haiprof.export import critical_path, flows, target
from haiprof.export import protobuf as pb
from haiprof.export.chosen import Chosen, chosen
from haiprof.export.lanes import brackets, lanes, pieces
from haiprof.runs import ROLE_NODE
from haiprof.views.intervals import Index, Times
from haiprof.views.run.stack_calls import calls
from haiprof.views.run.stacks import Tree, rooted

if TYPE_CHECKING:
    from haiprof.analyzer import Analyzer

#: Corrects times of one node: ns in, ns out, never changing their order.
Shift: TypeAlias = Callable[[Times], Times]

# Of TracePacket, and of what it holds.
_PACKET: Final = 1
_CLOCKS, _TIMESTAMP, _SEQUENCE, _EVENT, _INTERNED, _FLAGS, _TRACK = 6, 8, 10, 11, 12, 13, 60
_BEGIN, _END, _INSTANT, _COUNTER = 1, 2, 3, 4
_EVENT_CATEGORY, _EVENT_ARGUMENT, _EVENT_TYPE, _EVENT_NAME, _EVENT_TRACK = 3, 4, 9, 10, 11
_EVENT_VALUE, _EVENT_FLOW = 44, 47
_CATEGORIES, _NAMES, _ARGUMENTS, _STRINGS = 1, 2, 3, 29
_CLEARED, _NEEDED = 1, 2

#: Makes of some rows a piece of a message for each of their arguments.
_Arguments: TypeAlias = Callable[[Index], "list[pb.Rows]"]

#: Events that are encoded at once, and intervals that are put into order at once.
_AT_ONCE: Final = 1 << 13
_PIECE: Final = 1 << 18
#: The largest pid and thread id that a trace can contain.
_MOST_ID: Final = 2**31 - 1
_SPANS: Final = (
    "step", "correlation", "external", "sequence", "shapes", "types", "inputs", "stack",
    "attributes",
)  # fmt: skip
_KERNELS: Final = tuple(
    c.name for c in schema.KERNELS.columns if c.name not in ("start", "duration", "kind", "name")
)
_DEVICE_SPANS: Final = (
    "device", "stream", "step", "microbatch", "stage", "chunk", "uncertainty",
)  # fmt: skip
_COLLECTIVES: Final = (
    "thread", "external", "correlation", "group", "group_size", "ranks", "type", "elements_in",
    "elements_out", "bytes", "step", "sequence", "peer", "attributes",
)  # fmt: skip
_MEMORY: Final = ("total_allocated", "total_reserved")
_CRITICAL: Final = "critical"
_ELEMENTS: Final = ("operator", "share", "waits_for")


def write(
    analyzer: Analyzer,
    file: Path,
    rank: int | None = None,
    clock: Mapping[str, Shift] | None = None,
    on_process: Callable[[str], None] | None = None,
    paths: Mapping[str, pl.DataFrame] | None = None,
) -> None:
    """Write a run, with the deep traces in its folders, as one file.

    Memory is needed for the largest table of one process, however many there are.

    Args:
        analyzer: the run.
        file: must not be there; is compressed if its name ends in ``.gz``.
        rank: this one and its node only.
        clock: by node, what corrects the times of its processes.
        on_process: called with each process's label before it is written.
        paths: by the label of a process, the critical path to draw over it.

    Raises:
        HaiprofError: the file is there or cannot be written, or there is no such rank.
    """
    processes = chosen(analyzer, rank)
    with target.whole(file) as partial, target.opened(partial) as out:
        out.write(_packet(_clocks(max(analyzer.run.created_ns, 1))))
        uuids = itertools.count(1)
        arrows = 0
        pids: set[int] = set()
        for number, each in enumerate(processes, 1):
            if on_process is not None:
                on_process(each.label)
            shift = (clock or {}).get(each.process.node)
            path = (paths or {}).get(each.process.label) if each.process.trace else None
            written = _Process(out, each, number, _pid(each, pids), uuids, shift, path)
            arrows = written.write(arrows)
            analyzer.note(each.problems)


def _pid(each: Chosen, taken: set[int]) -> int:
    """Return the process's number, or another where that of another host has it too."""
    number = each.process.pid or 0
    if not 0 < number <= _MOST_ID or number in taken:
        number = next(n for n in range(_MOST_ID, 0, -1) if n not in taken)
    taken.add(number)
    return number


def _clocks(now: int) -> bytes:
    return pb.text(
        _CLOCKS,
        b"".join(pb.text(1, pb.whole(1, clock) + pb.whole(2, now)) for clock in (6, 1)),
    )


def _packet(content: bytes) -> bytes:
    return pb.text(_PACKET, content)


class _Process:
    """Writes one process: its tracks, and what happened on them."""

    def __init__(
        self,
        out: IO[bytes],
        chosen_process: Chosen,
        sequence: int,
        pid: int,
        uuids: Iterator[int],
        shift: Shift | None,
        path: pl.DataFrame | None,
    ) -> None:
        self._out = out
        self._overlay = critical_path.overlay(chosen_process, path)
        self._process = chosen_process
        self._sequence = pb.whole(_SEQUENCE, sequence)
        self._pid = pid
        self._uuids = uuids
        self._shift = shift
        #: By field of InternedData: text -> number.
        self._known: dict[int, dict[str, int]] = {}
        self._last: dict[int, int] = {}
        process = self._process.process
        who = (
            chosen_process.label
            if process.role == ROLE_NODE
            else f"{chosen_process.label} on {process.node}"
        )
        # Readers skip what needs interned texts until a packet clears the set of known ones.
        self._out.write(_packet(self._sequence + pb.whole(_FLAGS, _CLEARED)))
        self._uuid = self._track("", process=pb.whole(1, pid) + pb.text(6, who))

    def write(self, arrows: int) -> int:
        """Write all tables; return how many arrows the trace has, of which ``arrows`` before."""
        arrows = self._calls(arrows)
        self._critical_path()
        self._device_spans()
        self._collectives()
        self._stacks()
        self._samples()
        self._allocations()
        self._events()
        return arrows

    # -- tables ----------------------------------------------------------------------------------

    def _calls(self, arrows: int) -> int:
        out, also, into, count = self._arrows(arrows)
        columns = ("start", "duration", "category", "name", "thread", *_SPANS)
        spans = self._process.read(schema.SPANS, columns)
        spans = self._overlay.on_spans(spans)
        kernels = self._process.read(schema.KERNELS).with_row_index("row")
        kernels = self._overlay.on_kernels(kernels)
        on_spans, on_kernels, more = flows.along(
            self._overlay.arrows, spans, kernels.height, arrows + count
        )
        marked = (*_SPANS, _CRITICAL)
        self._slices(spans, ("thread",), self._thread, "category", marked, (out, also, *on_spans))
        del spans, out, also, on_spans
        self._slices(
            kernels,
            ("device", "stream"),
            lambda device, stream: self._track(_stream(device, stream)),
            "kind",
            (*_KERNELS, _CRITICAL),
            (into, *on_kernels),
        )
        return arrows + count + more

    def _critical_path(self) -> None:
        elements = self._overlay.elements
        named = pl.coalesce(pl.col("name").cast(pl.String), pl.col("kind").cast(pl.String))
        self._slices(
            elements.with_columns(named.cast(pl.Categorical()).alias("name"), lane=pl.lit(0)),
            ("lane",),
            lambda _: self._track(critical_path.NAME.replace("_", " ")),
            "kind",
            _ELEMENTS,
        )

    def _arrows(self, before: int) -> tuple[flows.Arrows, flows.Arrows, flows.Arrows, int]:
        """Return the arrows of spans to kernels, among spans, of kernels, and their count."""
        spans = self._process.read(schema.SPANS, ("start", "category", "thread", "correlation"))
        kernels = self._process.read(schema.KERNELS, ("correlation",))
        out, into, count = flows.launches(spans, kernels)
        recorded_flows = self._process.read(schema.FLOWS)
        also, more = flows.forward_backward(spans, recorded_flows, count)
        for ends in (out, also, into):
            ends[ends > 0] += np.uint64(before)
        return out, also, into, count + more

    def _device_spans(self) -> None:
        frame = self._process.read(schema.DEVICE_SPANS)
        of_stage = pl.when(pl.col("category").cast(pl.String) == "pipeline").then("stage")
        self._slices(
            frame.with_columns(
                of_stage.alias("lane"), pl.when(of_stage.is_null()).then("stream").alias("on")
            ),
            ("device", "on", "category", "lane"),
            lambda device, stream, category, stage: self._track(
                f"{_gpu(device)}, stage {stage}"
                if stage is not None
                else f"{_stream(device, stream)}: {category}"
            ),
            "category",
            _DEVICE_SPANS,
        )

    def _collectives(self) -> None:
        frame = self._process.read(schema.COLLECTIVES).rename({"op": "name"})
        self._slices(
            frame,
            ("side",),
            lambda side: self._track(f"communication, {side}"),
            "side",
            _COLLECTIVES,
        )

    def _stacks(self) -> None:
        frames = self._process.read(schema.FRAMES)
        if not frames.height:
            return
        tree = Tree(frames)
        samples = rooted(self._process.read(schema.STACKS), tree)
        self._slices(
            calls(samples, tree).with_columns(sampled=pl.lit("sampled", pl.Categorical())),
            ("process", "thread"),
            lambda process, thread: self._track(
                _sampled(self._process.process.pid, process, thread)
            ),
            "sampled",
            ("samples",),
        )

    def _samples(self) -> None:
        frame = self._process.read(schema.SAMPLES, ("time", "metric", "instance", "value"))
        for (metric, instance), rows in _groups(frame, ("metric", "instance")):
            name = metric if instance is None else f"{metric} {instance}"
            parts = metric.split(".")
            track = self._track(name, counter=parts[-1] if len(parts) > 2 else "")
            self._values(track, frame["time"], frame["value"], rows)

    def _allocations(self) -> None:
        columns = ("time", "kind", "device", *_MEMORY)
        frame = self._process.read(schema.ALLOCATIONS, columns)
        for (kind, device), rows in _groups(frame, ("kind", "device")):
            for name in _MEMORY:
                there = frame[name].is_not_null().to_numpy()[rows]
                if there.any():
                    where = kind if device is None else f"{kind} {device}"
                    track = self._track(f"{name.replace('_', ' ')}, {where}", counter="bytes")
                    self._values(track, frame["time"], frame[name], rows[there])

    def _events(self) -> None:
        frame = self._process.read(schema.EVENTS).sort("time", maintain_order=True)
        if not frame.height:
            return
        track = self._track("events")
        names = self._interned(_NAMES, frame["kind"])
        arguments_of = self._arguments(frame, ("text", "step", "attributes"))
        for at in range(0, frame.height, _AT_ONCE):
            rows = np.arange(at, min(at + _AT_ONCE, frame.height))
            self._write(
                self._rows(
                    _INSTANT,
                    track,
                    frame["time"],
                    rows,
                    [pb.numbers(_EVENT_NAME, names[rows]), *arguments_of(rows)],
                )
            )

    # -- tracks ----------------------------------------------------------------------------------

    def _track(
        self,
        name: str,
        *,
        process: bytes | None = None,
        thread: bytes | None = None,
        counter: str | None = None,
        parent: int | None = None,
    ) -> int:
        uuid = next(self._uuids)
        content = pb.whole(1, uuid)
        if process is not None:
            content += pb.text(3, process)
        else:
            content += pb.whole(5, self._uuid if parent is None else parent)
            content += pb.text(4, thread) if thread is not None else pb.text(2, name)
        if counter is not None:
            content += pb.text(8, pb.text(6, counter) if counter else b"")
        self._out.write(_packet(self._sequence + pb.text(_TRACK, content)))
        return uuid

    def _thread(self, number: int) -> int:
        name = f"thread {number}"
        if not 0 < number <= _MOST_ID:
            return self._track(name)
        content = pb.whole(1, self._pid) + pb.whole(2, number) + pb.text(5, name)
        return self._track(name, thread=content)

    # -- what happened on them -------------------------------------------------------------------

    def _slices(
        self,
        frame: pl.DataFrame,
        by: Sequence[str],
        track_of: Callable[..., int],
        category: str,
        arguments: Sequence[str],
        arrows: Sequence[flows.Arrows] = (),
    ) -> None:
        """Write the intervals of a frame, those of one track after the other.

        Args:
            frame: has ``start``, ``duration``, ``name`` and the columns named here.
            by: what distinguishes tracks.
            track_of: makes a track for values of ``by``.
            category: column of it.
            arguments: columns that each interval has as arguments.
            arrows: that begin or end with each.
        """
        if not frame.height:
            return
        start = frame["start"]
        end = start + frame["duration"].clip(lower_bound=0)
        names = self._interned(_NAMES, frame["name"])
        categories = self._interned(_CATEGORIES, frame[category])
        arguments_of = self._arguments(frame, arguments)
        some_arrows = [ids for ids in arrows if ids.any()]
        for key, rows in _groups(frame, by):
            tracks = [track_of(*key)]
            for piece in pieces(start.to_numpy(), end.to_numpy(), rows, _PIECE):
                first, last = start.to_numpy()[piece], end.to_numpy()[piece]
                for lane, mine in enumerate(lanes(first, last)):
                    if lane == len(tracks):
                        # What crosses others of its track goes below it, on one of its own.
                        tracks.append(self._track(f"crossing {lane}", parent=tracks[0]))
                    events, is_end = brackets(first[mine], last[mine])
                    which = piece[mine][events]
                    for at in range(0, len(which), _AT_ONCE):
                        some, ends = which[at : at + _AT_ONCE], is_end[at : at + _AT_ONCE]
                        begun = some[~ends]
                        detail = [
                            pb.numbers(_EVENT_CATEGORY, categories[begun]),
                            pb.numbers(_EVENT_NAME, names[begun]),
                            *arguments_of(begun),
                            *(pb.fixed(_EVENT_FLOW, a[begun], a[begun] > 0) for a in some_arrows),
                        ]
                        beginnings = self._rows(_BEGIN, tracks[lane], start, begun, detail)
                        endings = self._rows(_END, tracks[lane], end, some[ends], [])
                        self._write(_merged(beginnings, endings, ends))

    def _values(self, track: int, times: pl.Series, values: pl.Series, rows: Index) -> None:
        result = values.to_numpy().astype(np.float64)
        rows = rows[np.argsort(times.to_numpy()[rows], kind="stable")]
        for at in range(0, len(rows), _AT_ONCE):
            some = rows[at : at + _AT_ONCE]
            value = pb.doubles(_EVENT_VALUE, result[some])
            self._write(self._rows(_COUNTER, track, times, some, [value]))

    def _rows(
        self, kind: int, track: int, times: pl.Series, rows: Index, detail: Sequence[pb.Rows]
    ) -> pb.Rows:
        """Return the packets of events of one kind on one track."""
        height = len(rows)
        moments = times.to_numpy()[rows]
        if self._shift is not None:
            moments = self._shift(moments)
        head = pb.constant(height, pb.whole(_EVENT_TYPE, kind) + pb.whole(_EVENT_TRACK, track))
        return pb.messages(
            _PACKET,
            [
                pb.numbers(_TIMESTAMP, moments),
                pb.constant(height, self._sequence + pb.whole(_FLAGS, _NEEDED)),
                pb.messages(_EVENT, [head, *detail]),
            ],
        )

    def _arguments(self, frame: pl.DataFrame, columns: Sequence[str]) -> _Arguments:
        """Return what makes of some rows the arguments that these columns are."""
        parts = [
            self._argument(frame[name])
            for name in columns
            if name in frame.columns and frame[name].null_count() < frame.height
        ]
        return lambda rows: [argument(rows) for argument in parts]

    def _argument(self, column: pl.Series) -> Callable[[Index], pb.Rows]:
        named = pb.whole(1, self._numbered(_ARGUMENTS, [column.name], remembered=True)[0])
        kind = column.dtype

        def message(value: pb.Rows, there: npt.NDArray[np.bool_] | None) -> pb.Rows:
            field = pb.constant(len(value.data), named)
            return pb.messages(_EVENT_ARGUMENT, [field, value], there)

        if isinstance(kind, pl.String):
            # Such hardly repeat: they are not remembered.
            def of_text(rows: Index) -> pb.Rows:
                texts = self._interned(_STRINGS, column.gather(rows), remembered=False)
                return message(pb.numbers(17, texts), texts > 0)

            return of_text
        if isinstance(kind, pl.Categorical):
            texts = self._interned(_STRINGS, column)
            return lambda rows: message(pb.numbers(17, texts[rows]), texts[rows] > 0)
        values, missing = numbers(column.rechunk())
        field = 4 if kind.is_signed_integer() else 3

        def of_number(rows: Index) -> pb.Rows:
            value = values[rows]
            content = pb.doubles(5, value) if kind.is_float() else pb.numbers(field, value)
            return message(content, None if missing is None else ~missing[rows])

        return of_number

    # -- texts -----------------------------------------------------------------------------------

    def _interned(
        self, field: int, texts: pl.Series, *, remembered: bool = True
    ) -> npt.NDArray[np.uint32]:
        """Return the number of each row's text, those that are new written before; 0 for null."""
        coded = texts if isinstance(texts.dtype, pl.Categorical) else texts.cast(pl.Categorical())
        known = coded.unique().drop_nulls()
        codes = known.to_physical().to_numpy()
        table = np.zeros(int(codes.max(initial=0)) + 1, np.uint32)
        table[codes] = self._numbered(field, known.cast(pl.String).to_list(), remembered)
        physical = coded.to_physical()
        numbers: npt.NDArray[np.uint32] = table[physical.fill_null(0).to_numpy()]
        if physical.null_count():
            numbers[physical.is_null().to_numpy()] = 0
        return numbers

    def _numbered(self, field: int, texts: list[str], remembered: bool) -> list[int]:
        known = self._known.setdefault(field, {})
        numbers, new = [], b""
        for text in texts:
            number = known.get(text)
            if number is None:
                number = self._last[field] = self._last.get(field, 0) + 1
                if remembered:
                    known[text] = number
                new += pb.text(field, pb.whole(1, number) + pb.text(2, text))
            numbers.append(number)
        if new:
            content = pb.whole(_FLAGS, _NEEDED) + pb.text(_INTERNED, new)
            self._out.write(_packet(self._sequence + content))
        return numbers

    def _write(self, rows: pb.Rows) -> None:
        self._out.write(pb.encoded(rows))


def _merged(first: pb.Rows, second: pb.Rows, is_second: npt.NDArray[np.bool_]) -> pb.Rows:
    """Put two kinds of rows into one order."""
    width = max(first.data.shape[1], second.data.shape[1])
    data = np.zeros((len(is_second), width), np.uint8)
    counts = np.zeros(data.shape, np.bool_)
    for rows, which in ((first, ~is_second), (second, is_second)):
        data[which, : rows.data.shape[1]] = rows.data
        counts[which, : rows.counts.shape[1]] = rows.counts
    return pb.Rows(data, counts)


def _groups(frame: pl.DataFrame, by: Sequence[str]) -> Iterator[tuple[tuple[Any, ...], Index]]:
    """Yield the rows of each combination of values, in the order of these."""
    found = (
        frame.select(by)
        .with_row_index("row")
        .group_by(by)
        .agg("row")
        .with_columns(pl.col(pl.Categorical).cast(pl.String))
        .sort(by, nulls_last=True)
    )
    for row in range(found.height):
        *key, _ = found.row(row)
        yield tuple(key), found["row"][row].to_numpy().astype(np.int64)


def _sampled(pid: int | None, process: int, thread: int) -> str:
    if process == pid:
        return "stacks, main thread" if thread == pid else f"stacks, thread {thread}"
    worker = f"stacks, worker {process}"
    return worker if thread == process else f"{worker}, thread {thread}"


def _gpu(device: int | None) -> str:
    return "host" if device is None else f"GPU {device}"


def _stream(device: int | None, stream: int | None) -> str:
    return _gpu(device) if stream is None else f"{_gpu(device)}, stream {stream}"
