"""Reads a trace of Perfetto with its own definitions, as its trace processor does.

Packets are put in the order of their time, those of one time as they stand in the file; what ends
on a track is what began there last.
"""

from __future__ import annotations

import gzip
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest


@dataclass
class Slice:
    track: tuple[str, ...]
    name: str
    category: str
    start: int
    end: int
    depth: int
    args: dict[str, Any]
    flows: tuple[int, ...]


@dataclass
class Trace:
    """Tracks are named by all tracks above them, from the process on."""

    processes: dict[str, int] = field(default_factory=dict)
    threads: dict[tuple[str, ...], int] = field(default_factory=dict)
    units: dict[tuple[str, ...], str] = field(default_factory=dict)
    slices: list[Slice] = field(default_factory=list)
    counters: dict[tuple[str, ...], list[tuple[int, float]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    instants: list[tuple[tuple[str, ...], int, str, dict[str, Any]]] = field(default_factory=list)

    def on(self, *track: str) -> list[Slice]:
        """The slices of one track by start, outer ones first."""
        return [each for each in self.slices if each.track == track]


def read(file: Path) -> Trace:
    """Read a file; the test that asks is skipped without the package ``perfetto``."""
    protos = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    unknown = pytest.importorskip("google.protobuf.unknown_fields")
    event = protos.TrackEvent
    data = file.read_bytes()
    parsed = protos.Trace()
    parsed.ParseFromString(gzip.decompress(data) if file.suffix == ".gz" else data)
    trace, names = Trace(), {}
    known: dict[int, dict[str, dict[int, Any]]] = {}
    events = []
    for packet in parsed.packet:
        assert not unknown.UnknownFieldSet(packet)
        assert not unknown.UnknownFieldSet(packet.track_event)
        sequence = packet.trusted_packet_sequence_id
        if packet.sequence_flags & 1:
            known[sequence] = defaultdict(dict)
        if packet.HasField("clock_snapshot"):
            assert len({clock.timestamp for clock in packet.clock_snapshot.clocks}) == 1
        if packet.HasField("interned_data"):
            for kind, rows in packet.interned_data.ListFields():
                for row in rows:
                    text = row.str.decode() if hasattr(row, "str") else row.name
                    assert row.iid
                    assert row.iid not in known[sequence][kind.name]
                    known[sequence][kind.name][row.iid] = text
        if packet.HasField("track_descriptor"):
            _describe(trace, names, packet.track_descriptor)
        if packet.HasField("track_event"):
            assert packet.sequence_flags & 2
            events.append((packet.timestamp, packet.track_event, known[sequence]))
    open_now: dict[int, list[Slice]] = defaultdict(list)
    for time, content, texts in sorted(events, key=lambda each: each[0]):
        track, name = names[content.track_uuid], texts["event_names"].get(content.name_iid, "")
        if content.type == event.TYPE_SLICE_BEGIN:
            (category,) = (texts["event_categories"][iid] for iid in content.category_iids)
            stack = open_now[content.track_uuid]
            args = _arguments(content, texts)
            stack.append(
                Slice(track, name, category, time, 0, len(stack), args, tuple(content.flow_ids))
            )
            trace.slices.append(stack[-1])
        elif content.type == event.TYPE_SLICE_END:
            open_now[content.track_uuid].pop().end = time
        elif content.type == event.TYPE_COUNTER:
            trace.counters[track].append((time, content.double_counter_value))
        else:
            assert content.type == event.TYPE_INSTANT
            trace.instants.append((track, time, name, _arguments(content, texts)))
    assert not any(open_now.values())
    return trace


def _describe(trace: Trace, names: dict[int, tuple[str, ...]], fields: Any) -> None:
    assert fields.uuid not in names
    if fields.HasField("process"):
        names[fields.uuid] = (fields.process.process_name,)
        assert fields.process.pid not in trace.processes.values()
        trace.processes[fields.process.process_name] = fields.process.pid
        return
    above = names[fields.parent_uuid]
    name = fields.thread.thread_name if fields.HasField("thread") else fields.name
    track = names[fields.uuid] = (*above, name)
    if fields.HasField("thread"):
        assert fields.thread.pid == trace.processes[above[0]]
        trace.threads[track] = fields.thread.tid
    if fields.HasField("counter"):
        trace.units[track] = fields.counter.unit_name


def _arguments(event: Any, texts: dict[str, dict[int, Any]]) -> dict[str, Any]:
    arguments = {}
    for each in event.debug_annotations:
        which = each.WhichOneof("value")
        value = getattr(each, which)
        if which == "string_value_iid":
            value = texts["debug_annotation_string_values"][value]
        arguments[texts["debug_annotation_names"][each.name_iid]] = value
    return arguments
