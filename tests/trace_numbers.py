"""The numbers of a trace, counted plainly from its rows, to hold the views against.

Nothing here is shared with the views but the tables of names: one loop over spans with a stack, one
over all instants at which something begins or ends.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl
from traces import Trace, load
from uncollected import uncollected

from haiprof.views.trace.linking import roles
from haiprof.views.trace.linking.linked import Linked, link
from haiprof.views.trace.linking.tensor_core_ops import OPERATORS
from haiprof.views.trace.linking.tensor_cores import on_tensor_cores

PARTS = ("kernel", "memcpy", "memset", "communication", "runtime", "dataloader", "cpu")
_DEPTH = {"step": 0, "user": 1, "op": 2, "runtime": 3}
Row = dict[str, Any]
#: Time on a device, and the part of it on tensor cores, ns.
Times = tuple[int, int]


class Recorded:
    """A recorded trace: its tables, linked for the views, and plainly."""

    def __init__(self, file: Path) -> None:
        self.file = file

    @cached_property
    def trace(self) -> Trace:
        return load(self.file)

    @cached_property
    def linked(self) -> Linked:
        trace = self.trace
        return link(trace.spans, trace.kernels, trace.collectives, trace.flows, trace.device_spans)

    @cached_property
    def plain(self) -> Plain:
        with uncollected():
            return Plain(self.trace.spans, self.trace.kernels)


@functools.cache
def _loads(name: str) -> bool:
    return bool(re.match(r"enumerate\(DataLoader\)#.*\.__next__$|enumerate\(DataPipe\)#", name))


@functools.cache
def _communicates(name: str) -> bool:
    return bool(re.match(r"(nccl|gloo|mpi|ucc|hccl|xccl|rccl):", name))


@dataclass
class Node:
    """One call of the host."""

    row: Row
    parent: Node | None
    callees: list[Node] = field(default_factory=list)
    launched: list[Row] = field(default_factory=list)
    start: int = field(init=False)
    end: int = field(init=False)
    name: str = field(init=False)
    category: str = field(init=False)

    def __post_init__(self) -> None:
        self.start = int(self.row["start"])
        self.end = int(self.row["start"] + max(self.row["duration"], 0))
        self.name = str(self.row["name"])
        self.category = str(self.row["category"])

    @property
    def loads(self) -> bool:
        return _loads(self.name)

    @property
    def communicates(self) -> bool:
        return _communicates(self.name)

    @property
    def optimizes(self) -> bool:
        return self.name.startswith("Optimizer.")

    @property
    def known(self) -> bool:
        """Whether what runs in it is not its caller's."""
        return self.category == "op" or (
            self.category == "user" and (self.loads or self.communicates or self.optimizes)
        )

    @property
    def operator(self) -> bool:
        wrapper = self.name in ("DataParallel.forward", "DistributedDataParallel.forward")
        return self.category == "op" and not (self.loads or self.optimizes or wrapper)

    def around(self) -> Node | None:
        """The innermost known call around it."""
        found = self.parent
        while found is not None and not found.known:
            found = found.parent
        return found

    def named(self) -> Node | None:
        """Around a launch: the op that its External id names, if only ranges are in between."""
        inner = found = self.parent
        while inner is not None and inner.category == "runtime":
            inner = found = inner.parent
        while found is not None and found.category != "op":
            found = found.parent
        external = self.row["external"]
        if found is None or inner is None or not external or inner.row["external"] == external:
            return self.around()
        return found if found.row["external"] == external else self.around()


class Plain:
    """A trace, read plainly."""

    def __init__(self, spans: pl.DataFrame, kernels: pl.DataFrame) -> None:
        self.nodes = _nested(spans)
        self.activities = [
            {**row, "end": row["start"] + max(row["duration"], 0)}
            for row in kernels.iter_rows(named=True)
        ]
        names = {row["name"] for row in self.activities}
        self._tensor = on_tensor_cores(names)
        self._communicate = roles.communication(names)
        self._launch()
        self.steps = self._steps()

    def tensor(self, row: Row) -> bool:
        return row["kind"] == "kernel" and row["name"] in self._tensor

    def role(self, row: Row) -> str:
        communicates = row["kind"] == "kernel" and row["name"] in self._communicate
        return "communication" if communicates else str(row["kind"])

    def _launch(self) -> None:
        by_correlation = {
            node.row["correlation"]: node
            for node in self.nodes
            if node.category == "runtime" and node.row["correlation"]
        }
        by_external = {
            node.row["external"]: node
            for node in self.nodes
            if node.category in ("op", "user") and node.row["external"]
        }
        for row in self.activities:
            runtime = by_correlation.get(row["correlation"])
            row["runtime"] = runtime
            if runtime is not None:
                op = runtime.named()
            else:
                op = by_external.get(row["external"])
                if op is not None and not op.known:
                    op = op.around()
            row["op"] = op
            if op is not None:
                op.launched.append(row)

    def _steps(self) -> list[tuple[int, int, int]]:
        """Number, start and end of each."""
        expected = sorted(
            (node.start, -node.end, node.row["step"])
            for node in self.nodes
            if node.category == "step"
        )
        host = [(number, start, -minus) for start, minus, number in expected]
        busy = [row for row in self.activities if row["kind"] in ("kernel", "memcpy", "memset")]
        if not host:
            ends = [(node.start, node.end) for node in self.nodes]
            ends += [(row["start"], row["end"]) for row in self.activities]
            return [(0, min(s for s, _ in ends), max(e for _, e in ends))] if ends else []
        mine: list[list[Row]] = [
            [
                row
                for row in busy
                if row["runtime"] and start <= row["runtime"].start and row["runtime"].end <= end
            ]
            for _, start, end in host
        ]
        matched = {id(row) for rows in mine for row in rows}
        if not matched:
            return host
        before = host[0][1]
        if mine[0]:
            first = min(row["start"] for row in mine[0])
            before = max(
                [before, *(r["end"] for r in busy if id(r) not in matched and r["end"] < first)]
            )
        steps = []
        for (number, start, end), rows in zip(host, mine, strict=True):
            begin = max(start, before)
            before = max([begin, end, *(row["end"] for row in rows)])
            steps.append((number, begin, before))
        while not mine[len(steps) - 1]:
            steps.pop()
        if len(steps) > 1 and len(mine[len(steps) - 1]) < 0.8 * len(mine[len(steps) - 2]):
            steps.pop()
        return steps

    def _moves_data(self, node: Node) -> bool:
        """Whether a call communicates itself, and does not only launch a kernel that does."""
        if node.name.startswith(("gloo:", "mpi:", "ucc:")) or not self.activities:
            return True
        if self._communicates_on_devices:
            return False
        return not node.name.startswith(("nccl:", "rccl:"))

    @cached_property
    def _communicates_on_devices(self) -> bool:
        return any(self.role(row) == "communication" for row in self.activities)

    def breakdown(self) -> list[dict[str, int]]:
        """How long each part took of each step."""
        changes: dict[int, list[tuple[str, int]]] = defaultdict(list)

        def add(part: str, start: int, end: int) -> None:
            if end > start:
                changes[start].append((part, 1))
                changes[end].append((part, -1))

        for row in self.activities:
            if self.role(row) in PARTS:
                add(self.role(row), row["start"], row["end"])
        for node in self.nodes:
            if node.category == "runtime":
                add("runtime", node.start, node.end)
            elif node.category in ("op", "user"):
                part = "cpu"
                if node.loads:
                    part = "dataloader"
                elif node.communicates and self._moves_data(node):
                    part = "communication"
                add(part, node.start, node.end)
        for number, (_, start, end) in enumerate(self.steps):
            changes[start].append((f"step{number}", 1))
            changes[end].append((f"step{number}", -1))
        times = [dict.fromkeys((*PARTS, "other"), 0) for _ in self.steps]
        level: dict[str, int] = defaultdict(int)
        current: set[int] = set()
        instants = sorted(changes)
        for now, until in itertools.pairwise(instants):
            for part, change in changes[now]:
                if part.startswith("step"):
                    (current.add if change > 0 else current.discard)(int(part[4:]))
                else:
                    level[part] += change
            for step in current:
                first = next((part for part in PARTS if level[part]), "other")
                times[step][first] += until - now
        return times

    def device(self, number: int) -> dict[str, float | None]:
        """Utilization, SM efficiency, occupancy and tensor cores of one device."""
        low, high = self.steps[0][1], self.steps[-1][2]
        kernels = [r for r in self.activities if r["kind"] == "kernel" and r["device"] == number]
        changes: dict[int, list[tuple[int, float]]] = defaultdict(list)
        known_shape = False
        weight = time = 0.0
        for row in kernels:
            start, end = max(row["start"], low), min(row["end"], high)
            blocks = row["blocks_per_sm"]
            known_shape = known_shape or (blocks is not None and blocks > 0)
            if end <= start:
                continue
            changes[start].append((1, max(blocks or 0.0, 0.0)))
            changes[end].append((-1, -max(blocks or 0.0, 0.0)))
            if row["occupancy"] is not None and row["occupancy"] >= 0:
                weight += row["occupancy"] / 100 * (end - start)
                time += end - start
        busy, efficiency = 0, 0.0
        running, level = 0, 0.0
        instants = sorted(changes)
        for now, until in itertools.pairwise(instants):
            for count, blocks in changes[now]:
                running += count
                level += blocks
            if running:
                busy += until - now
                efficiency += min(max(level, 0.0), 1.0) * (until - now)
        launched = [r for r in kernels if r["op"] is not None and r["op"].operator]
        return {
            "utilization": busy / (high - low),
            "sm_efficiency": efficiency / (high - low) if known_shape else None,
            "occupancy": weight / time if time else None,
            "tensor_core": _share(launched, self.tensor),
        }

    def tensor_core(self) -> float | None:
        kernels = [row for row in self.activities if row["kind"] == "kernel"]
        return _share(kernels, self.tensor)

    def _times(self, rows: list[Row]) -> Times:
        rows = [row for row in rows if row["kind"] in ("kernel", "memcpy", "memset")]
        lengths = [(row["end"] - row["start"], self.tensor(row)) for row in rows]
        return sum(length for length, _ in lengths), sum(length for length, on in lengths if on)

    def operators(self) -> dict[str, dict[str, int]]:
        """What each operator cost, by name."""
        callees: dict[int, list[Node]] = defaultdict(list)
        for node in self.nodes:
            if node.known and (around := node.around()) is not None:
                callees[id(around)].append(node)
        merged: dict[int, Node] = {}
        for node in self.nodes:
            mine = callees[id(node)]
            if node.category == "op" and [(n.category, n.name) for n in mine] == [
                ("op", node.name)
            ]:
                merged[id(mine[0])] = merged.get(id(node), node)
        own: dict[int, int] = {}
        device: dict[int, Times] = defaultdict(lambda: (0, 0))
        can: dict[int, bool] = {}
        launched: dict[int, Times] = {}
        below: dict[int, Times] = {}
        # Callees stand behind their callers.
        for node in reversed(self.nodes):
            if not node.known:
                continue
            mine = callees[id(node)]
            away = [(n.start, n.end) for n in [*mine, *_runtimes(node)]]
            own[id(node)] = node.end - node.start - _length(away, node.start, node.end)
            launched[id(node)] = self._times(node.launched)
            below[id(node)] = _sum([launched[id(node)], *(below[id(n)] for n in mine)])
            can[id(node)] = (
                (node.category == "op" and node.name in OPERATORS)
                or any(self.tensor(row) for row in node.launched)
                or any(can[id(n)] for n in mine)
            )
        heads: dict[int, int] = defaultdict(int)
        for node in self.nodes:
            if node.known:
                head = merged.get(id(node), node)
                heads[id(head)] += own[id(node)]
                device[id(head)] = _sum([device[id(head)], launched[id(node)]])
        table: dict[str, dict[str, int]] = {}
        for node in self.nodes:
            if not node.operator or id(node) in merged:
                continue
            sums = table.setdefault(node.name, defaultdict(int))
            sums["calls"] += 1
            sums["host_total"] += node.end - node.start
            sums["host_self"] += heads[id(node)]
            for name, times in (("self", device[id(node)]), ("total", below[id(node)])):
                sums[f"device_{name}"] += times[0]
                sums[f"tensor_core_{name}"] += times[1]
            sums["tensor_core_eligible"] |= can[id(node)]
        return table

    def kernels(self) -> dict[str, dict[str, Any]]:
        """Kernels by name."""
        rows: dict[str, list[Row]] = defaultdict(list)
        for row in self.activities:
            if row["kind"] == "kernel":
                rows[row["name"]].append(row)
        totals = {}
        for name, mine in rows.items():
            lengths = [row["end"] - row["start"] for row in mine]
            totals[name] = {
                "calls": len(mine),
                "total": sum(lengths),
                "mean": sum(lengths) / len(mine),
                "min": min(lengths),
                "max": max(lengths),
                "tensor_core": self.tensor(mine[0]),
                "communication": self.role(mine[0]) == "communication",
                "blocks_per_sm": _weighted(mine, "blocks_per_sm", 0),
                "occupancy": _weighted(mine, "occupancy", -1),
            }
            if totals[name]["occupancy"] is not None:
                totals[name]["occupancy"] /= 100
        return totals


def _sum(times: list[Times]) -> Times:
    return sum(time for time, _ in times), sum(on for _, on in times)


def _nested(spans: pl.DataFrame) -> list[Node]:
    rows = list(enumerate(r for r in spans.iter_rows(named=True) if r["category"] in _DEPTH))
    rows.sort(
        key=lambda item: (
            item[1]["thread"],
            item[1]["start"],
            -max(item[1]["duration"], 0),
            _DEPTH[item[1]["category"]],
            item[0],
        )
    )
    nodes: list[Node] = []
    stack: list[Node] = []
    thread = None
    for _, row in rows:
        if row["thread"] != thread:
            thread, stack = row["thread"], []
        while stack and stack[-1].end <= row["start"]:
            stack.pop()
        node = Node(row, stack[-1] if stack else None)
        if node.parent is not None:
            node.parent.callees.append(node)
        nodes.append(node)
        if node.end > node.start:
            stack.append(node)
    return nodes


def _runtimes(node: Node) -> list[Node]:
    """Calls of the runtime that are the node's own."""
    calls = []
    for callee in node.callees:
        if callee.category == "runtime":
            calls.append(callee)
        elif not callee.known:
            calls += _runtimes(callee)
    return calls


def _length(intervals: list[tuple[int, int]], low: int, high: int) -> int:
    """How much of [low, high) intervals cover."""
    total, at = 0, low
    for start, end in sorted(intervals):
        start, end = max(start, at), min(end, high)
        if end > start:
            total += end - start
            at = end
    return total


def _share(rows: list[Row], chosen: Any) -> float | None:
    total = sum(row["end"] - row["start"] for row in rows)
    part = sum(row["end"] - row["start"] for row in rows if chosen(row))
    return part / total if total else None


def _weighted(rows: list[Row], column: str, above: float) -> float | None:
    kept = [row for row in rows if row[column] is not None and row[column] > above]
    time = sum(row["end"] - row["start"] for row in kept)
    if not time:
        return None
    return float(sum(row[column] * (row["end"] - row["start"]) for row in kept) / time)
