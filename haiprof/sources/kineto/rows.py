"""The parser's output as rows of haiprof's tables.

Tests: tests/sources/kineto/test_import.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from haiprof.sources.kineto import words
from haiprof.sources.kineto.columns import (
    NO_NUMBER,
    Columns,
    Group,
    codes,
    counts,
    durations,
    identities,
    kept,
    numbers,
    picked,
    reals,
    signed,
    sizes,
    some,
    table,
    times,
    unsigned,
    within_reach,
)
from haiprof.sources.kineto.communication import device_collectives, host_collectives
from haiprof.sources.kineto.texts import NO_CODE, Codes, Texts, word_column
from haiprof.sources.kineto.threads import Threads, whole

_CATEGORIES: Final = (*dict.fromkeys(words.HOST.values()), "step")
_STEP: Final = _CATEGORIES.index("step")
_HOST: Final = {said: _CATEGORIES.index(means) for said, means in words.HOST.items()}
#: Categories that can be a step, or a call that communicates.
_CALLS: Final = [_CATEGORIES.index(name) for name in ("op", "user")]
_KINDS: Final = tuple(dict.fromkeys(words.DEVICE.values()))
_DEVICE: Final = {said: _KINDS.index(means) for said, means in words.DEVICE.items()}
_COPY_KINDS: Final = tuple(f"{a}to{b}" for a in "HDAP" for b in "HDAP")
_OUT_OF_MEMORY: Final = "[OutOfMemory]"
_MOST_DEVICE: Final = np.iinfo(np.uint16).max


class Rows:
    """Turns the content of one file into rows, part by part."""

    def __init__(self) -> None:
        """Start with a file of which nothing is known."""
        self.texts = Texts()
        #: Unknown categories -> number of their events, which are left out.
        self.unknown: Counter[str] = Counter()
        #: What else is left out: field and reason -> number of rows.
        self.refused: Counter[str] = Counter()
        #: Ordinals of the devices that ran something.
        self.devices: set[int] = set()
        self._threads = Threads(self.texts)

    def tables(self, groups: Mapping[str, Group], base: int) -> dict[str, pa.Table]:
        """Return the rows of one part by table; tables without rows are omitted.

        Args:
            groups: what ``TraceParser.take()`` returned.
            base: ns since the epoch that the file's times count from.
        """
        columns: dict[str, list[Columns]] = {}
        groups, beyond = within_reach(groups)
        self.refused["'ts' or 'dur' is out of range"] += beyond
        collectives = groups.get("collectives")
        if spans := groups.get("spans"):
            categories = self._categories(spans)
            threads = self._threads.of_host(spans)
            known = categories >= 0
            columns["spans"] = [
                self._spans(picked(spans, known), categories[known], threads[known], base)
            ]
            calls = np.isin(categories, _CALLS)
            columns["collectives"] = [
                host_collectives(self.texts, spans, calls, threads, collectives, base)
            ]
        if activities := groups.get("activities"):
            ranges = self._are_ranges(activities)
            columns["kernels"] = [self._kernels(picked(activities, ~ranges), base)]
            columns["device_spans"] = [self._device_spans(picked(activities, ranges), base)]
            if collectives is not None:
                columns.setdefault("collectives", []).append(
                    device_collectives(self.texts, activities, collectives, base)
                )
        if allocations := groups.get("allocations"):
            columns["allocations"] = [self._allocations(allocations, base)]
        if flows := groups.get("flows"):
            columns["flows"] = [self._flows(flows, base)]
        if counters := groups.get("counters"):
            columns["samples"] = [self._samples(counters, base)]
        if instants := groups.get("instants"):
            columns["events"] = [self._events(instants, base)]
        whole = {name: table(name, parts) for name, parts in columns.items()}
        return {name: rows for name, rows in whole.items() if rows is not None}

    def host_process(self, metadata: Group | None) -> int | None:
        """Return the process that the host's events belong to, if the file names it."""
        if metadata is None:
            return None
        columns = (codes(metadata, name).tolist() for name in ("name", "process", "arguments"))
        for name, process, arguments in zip(*columns, strict=True):
            if NO_CODE not in (name, process, arguments) and (
                self.texts[name] == "process_labels" and '"CPU"' in self.texts[arguments]
            ):
                return whole(self.texts[process])
        return None

    def _categories(self, spans: Group) -> npt.NDArray[np.int8]:
        found = codes(spans, "category")
        categories: npt.NDArray[np.int8] = self.texts.spread(
            found, lambda said: _HOST.get(said.lower()), -1, np.int8
        )
        strange = found[categories < 0]
        for code, count in zip(*(each.tolist() for each in _times_each(strange)), strict=True):
            self.unknown["" if code == NO_CODE else self.texts[code]] += count
        return categories

    def _spans(
        self,
        spans: Group,
        categories: npt.NDArray[np.int8],
        threads: npt.NDArray[np.uint32],
        base: int,
    ) -> Columns:
        names = codes(spans, "name")
        steps = self.texts.spread(names, words.step_of, NO_CODE, np.uint32)
        is_step = (steps != NO_CODE) & np.isin(categories, _CALLS)
        columns = {
            "start": times(spans, "start", base),
            "duration": durations(spans),
            "category": word_column(np.where(is_step, _STEP, categories), _CATEGORIES),
            "name": self._named(names),
            "thread": pa.array(threads),
            **some("step", unsigned(np.where(is_step, steps, NO_CODE), np.uint32)),
            **identities(spans, "correlation", "external"),
            **signed(spans, "sequence"),
            **counts(spans, "spans", "forward_thread", "python_id", "python_parent", "module"),
        }
        for name, column in (
            ("shapes", "shapes"), ("types", "types"), ("inputs", "inputs"), ("stack", "stack"),
            ("attributes", "arguments"),
        ):  # fmt: skip
            if column in spans:
                columns[name] = self.texts.column(spans[column])
        return columns

    def _kernels(self, found: Group, base: int) -> Columns:
        said = codes(found, "category")
        kinds = self.texts.spread(said, lambda word: _DEVICE.get(word.lower()), 0, np.int8)
        names = codes(found, "name")
        directions = self.texts.spread(names, _direction, -1, np.int8)
        directions[kinds != _KINDS.index("memcpy")] = -1
        self._saw(codes(found, "device"))
        return {
            "start": times(found, "start", base),
            "duration": durations(found),
            "kind": word_column(kinds, _KINDS),
            "name": self._named(names),
            **counts(
                found, "kernels", "device", "stream", "grid_x", "grid_y", "grid_z",
                "block_x", "block_y", "block_z", "registers", "shared_memory",
            ),
            **identities(found, "correlation", "external"),
            # No graph has number 0: that is how a file says that there was none.
            **counts(found, "kernels", "graph", zero=False),
            **identities(found, "graph_node", zero=False),
            **sizes(found, "bytes"),
            **some("copy_kind", word_column(directions, _COPY_KINDS)),
            **reals(found, "blocks_per_sm", "occupancy", "bandwidth"),
        }  # fmt: skip

    def _are_ranges(self, found: Group) -> npt.NDArray[np.bool_]:
        ranges: npt.NDArray[np.bool_] = self.texts.spread(
            codes(found, "category"), lambda said: said.lower() == words.DEVICE_RANGE, 0, np.bool_
        )
        return ranges

    def _device_spans(self, found: Group, base: int) -> Columns:
        # Most files give a range's device and stream only as its process and thread.
        devices, streams = (
            np.where(ordinals == NO_CODE, self._ordinals(found, instead), ordinals)
            for ordinals, instead in (
                (codes(found, "device"), "process"),
                (codes(found, "stream"), "thread"),
            )
        )
        known = devices <= _MOST_DEVICE
        self.refused["gpu_user_annotation 'device' is missing"] += int((~known).sum())
        self._saw(devices[known])
        columns = {
            "start": times(found, "start", base),
            "duration": durations(found),
            "category": word_column(np.zeros(len(known), np.int8), ("user",)),
            "name": self._named(codes(found, "name")),
            "device": unsigned(np.where(known, devices, 0), np.uint16),
            **some("stream", unsigned(streams, np.uint32)),
        }
        return kept(columns, known)

    def _allocations(self, found: Group, base: int) -> Columns:
        types, index = np.unique(numbers(found, "device_type"), return_inverse=True)
        kinds = [words.MEMORY.get(kind, str(kind)) for kind in types.tolist()]
        if types[0] == NO_NUMBER:
            kinds[0] = "unknown"
        index = index.reshape(-1)
        on_host = np.array([kind == "cpu" for kind in kinds])[index]
        devices = np.where(on_host, NO_CODE, codes(found, "device"))
        self._saw(devices)
        size, address = numbers(found, "bytes"), numbers(found, "address")
        known = size != NO_NUMBER
        self.refused["[memory] 'Bytes' is missing"] += int((~known).sum())
        columns = {
            "time": times(found, "time", base),
            "kind": word_column(index, kinds),
            **some("device", unsigned(devices, np.uint16)),
            "address": pa.array(np.where(address == NO_NUMBER, 0, address).view(np.uint64)),
            "bytes": pa.array(size),
            **signed(found, "total_allocated", "total_reserved"),
            "thread": pa.array(self._threads.of_host(found)),
        }
        return kept(columns, known)

    def _flows(self, found: Group, base: int) -> Columns:
        said = codes(found, "category")
        kinds = [*dict.fromkeys(_flow(self.texts[code]) for code in self.texts.used(said)), ""]
        index = self.texts.spread(said, lambda word: kinds.index(_flow(word)), -1, np.int32)
        ids = numbers(found, "id")
        known = ids != NO_NUMBER
        self.refused["flow 'id' is missing"] += int((~known).sum())
        columns = {
            "time": times(found, "time", base),
            "kind": word_column(np.where(index < 0, len(kinds) - 1, index), kinds),
            "side": word_column((found["side"] != 0).astype(np.int8), ("start", "end")),
            "id": pa.array(ids.view(np.uint64)),
            "thread": pa.array(self._threads.of_any(found)),
        }
        return kept(columns, known)

    def _samples(self, found: Group, base: int) -> Columns:
        return {
            "time": times(found, "time", base),
            "metric": self._named(codes(found, "name")),
            **some("instance", self.texts.column(codes(found, "instance"))),
            "value": pa.array(found["value"]),
            "flags": pa.array(np.zeros(len(found["time"]), np.uint32)),
        }

    def _events(self, found: Group, base: int) -> Columns:
        wanted = self.texts.spread(
            codes(found, "name"), lambda name: name == _OUT_OF_MEMORY, 0, np.bool_
        )
        found = picked(found, wanted)
        names = codes(found, "name")
        return {
            "time": times(found, "time", base),
            "kind": word_column(np.zeros(len(names), np.int8), ("out_of_memory",)),
            "text": word_column(
                np.zeros(len(names), np.int8), ("an allocator found no free memory",)
            ),
            **some("attributes", self.texts.column(codes(found, "arguments"))),
        }

    def _ordinals(self, found: Group, name: str) -> Codes:
        ordinals: Codes = self.texts.spread(codes(found, name), _ordinal, NO_CODE, np.uint32)
        return ordinals

    def _saw(self, devices: npt.NDArray[Any]) -> None:
        self.devices.update(np.unique(devices[devices <= _MOST_DEVICE]).tolist())

    def _named(self, names: Codes) -> pa.Array:
        """Return a column of texts without nulls: a missing name becomes an empty one."""
        return self.texts.column(names, missing="")


def _times_each(values: Codes) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    found, count = np.unique(values, return_counts=True)
    return found, count


def _direction(name: str) -> int | None:
    kind = words.copy_kind(name)
    return None if kind is None else _COPY_KINDS.index(kind)


def _ordinal(text: str) -> int | None:
    number = whole(text)
    return None if number is None or not 0 <= number < NO_CODE else number


def _flow(category: str) -> str:
    return words.FLOWS.get(category.lower(), category.lower())
