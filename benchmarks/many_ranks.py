"""Makes a run of many ranks from a real one: a step of eight ranks, again and again.

The kernels are those of the real step, with their names, grids and streams. Each section between
two of its collectives takes as long as it did there, with some noise of each rank and step; a
straggler's take a fifth longer from the middle of the run on. A collective begins when its rank
arrives and ends on all ranks together, once it moved its data after the last of them arrived: so
all others wait for a straggler.

The folders are as haiprof's recorders close them: of each rank spans, device phases, kernels, what
was summed up of its steps and samples, and what each kernel of NCCL communicated; of each host
samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import runs

from haiprof import schema
from haiprof.analyzer import Analyzer
from haiprof.views.intervals import Times, covered, merge
from haiprof.views.trace.communication import communications

KERNELS = 100_000
RANKS_OF_HOST = 8
#: How much longer the work of a straggler takes, and how much that of any rank varies.
SLOWER, NOISE = 1.2, 0.01
#: Where the host's and the device's phases end, as shares of a step.
PHASES = (("dataloader", 0.05), ("forward", 0.40), ("backward", 0.90), ("optimizer", 1.0))
#: Rows of ``step_parts`` that only kernels tell.
OF_KERNELS = ("busy", "communication", "exposed", "copying", "phase_busy", "idle")
#: Least work between two collectives, ns.
_LEAST_SECTION = 50_000
_ELEMENTS = 1 << 20

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Step:
    """A rank's real step.

    ``kernels`` are its activities by start; of each ``section`` is how many collectives began
    before it, ``place`` the share of its section that was over, and ``collective`` the number of
    the collective that it is, or -1. ``work`` (before each collective, and after the last) and
    ``moving`` (of each collective) are ns; ``ops`` say which each is.
    """

    kernels: pl.DataFrame
    section: Numbers
    place: npt.NDArray[np.float64]
    collective: Numbers
    work: Numbers
    moving: Numbers
    ops: Sequence[str]


def real_steps(traces: Path) -> list[Step]:
    """Read the step of each rank of a folder of traces whose ranks have the same collectives."""
    steps = []
    analyzer = Analyzer(traces)
    for _, linked in analyzer._traced._linked(None, _whole):
        found = communications(linked)
        (start, end) = linked.steps.row(0)[1:]
        kernels = linked.activities.filter(pl.col("kind") != "sync").sort("start")
        begun = kernels["start"].to_numpy()
        arrived = found["start"].to_numpy()
        number = {row: n for n, row in enumerate(found["activity"].to_list())}
        collective = np.array([number.get(row, -1) for row in kernels["row"].to_list()])
        section = np.searchsorted(arrived, begun, side="right") - (collective >= 0)
        low = np.concatenate(([begun[0]], arrived))
        high = np.concatenate((arrived, [max(end, begun[-1] + 1)]))
        place = (begun - low[section]) / np.maximum((high - low)[section], 1)
        steps.append(
            Step(
                kernels,
                section,
                np.where(collective >= 0, 1.0, np.clip(place, 0.0, 1.0)),
                collective,
                np.diff(np.concatenate(([start], found["end"].to_numpy(), [end])))
                - np.concatenate(((found["end"] - found["start"]).to_numpy(), [0])),
                (found["end"] - found["start"]).to_numpy(),
                found["op"].to_list(),
            )
        )
    return steps


def _whole(linked: Any) -> Any:
    return linked


class Job:
    """A run of ``ranks`` ranks: when which of them arrives where.

    The ``stragglers`` are ranks of different hosts.
    """

    def __init__(self, steps_of: Sequence[Step], ranks: int, seed: int = 0) -> None:
        """Lay the whole job out in time."""
        self.real = steps_of
        self.ranks = ranks
        self.steps = -(-KERNELS // min(len(step.place) for step in steps_of))
        self.stragglers = sorted({ranks // 7, ranks // 2 + 1, ranks - 2})
        work = np.median([step.work for step in steps_of], axis=0)
        self.work = np.maximum(work, _LEAST_SECTION)
        self.moving = np.min([step.moving for step in steps_of], axis=0)
        self._seed = seed
        self.slowness = 1 + NOISE * self._random(ranks).random((ranks, self.steps))
        self.slowness[self.stragglers, self.steps // 2 :] *= SLOWER
        # Of each step and section: from its begin to its end of the rank that takes longest.
        longest = np.outer(self.slowness.max(axis=0), self.work)
        longest[:, :-1] += self.moving
        ended = runs.T0 + np.cumsum(longest.ravel()).astype(np.int64).reshape(longest.shape)
        begun = np.concatenate(([runs.T0], ended.ravel()[:-1])).reshape(longest.shape)
        #: When each section of each step begins, and the last of each step ends.
        self.begun, self.ended = begun, ended[:, -1]

    def write(self, run: Path) -> Path:
        """Write the run's folder; return it."""
        runs.write_run(run)
        names = pl.concat([step.kernels["name"].cast(pl.String) for step in self.real])
        words = names.unique(maintain_order=True).to_list()
        codes = [
            step.kernels["name"].cast(pl.String).replace_strict(words, range(len(words))).to_numpy()
            for step in self.real
        ]
        for rank in range(self.ranks):
            self._write_rank(run, rank, words, codes[rank % len(codes)])
        for host in range(-(-self.ranks // RANKS_OF_HOST)):
            folder = runs.write_node(run, f"n{host}", ended_ns=int(self.ended[-1]))
            runs.write_closed(folder, schema.SAMPLES, runs.node_samples(10))
        return run

    def _write_rank(self, run: Path, rank: int, words: list[str], names: Numbers) -> None:
        local = rank % RANKS_OF_HOST
        folder = runs.write_process(
            run,
            rank,
            f"n{rank // RANKS_OF_HOST}",
            local_rank=local,
            world_size=self.ranks,
            ended_ns=int(self.ended[-1]),
        )
        step = self.real[rank % len(self.real)]
        count = len(step.place)
        slowness = self.slowness[rank]
        # One row per step, one column per section, then per activity.
        arrived = self.begun + (slowness[:, None] * self.work).astype(np.int64)
        low = np.column_stack((self.begun[:, 0], arrived[:, :-1]))
        start = low[:, step.section] + (
            step.place * (arrived[:, step.section] - low[:, step.section])
        ).astype(np.int64)
        alone = step.kernels["duration"].to_numpy()
        noise = 1 + NOISE * self._random(rank).random(start.shape)
        duration = (slowness[:, None] * alone * noise).astype(np.int64)
        met = np.flatnonzero(step.collective >= 0)
        which = step.collective[met]
        duration[:, met] = self.begun[:, 1:][:, which] - start[:, met]
        number = np.arange(self.steps * count)
        kernels: dict[str, Any] = {
            "start": start.ravel(),
            "duration": duration.ravel(),
            "name": (np.tile(names, self.steps), words),
            "correlation": number,
        }
        for name in ("kind", "copy_kind"):
            texts = step.kernels[name].cast(pl.String)
            distinct = texts.drop_nulls().unique(maintain_order=True).to_list()
            codes = texts.replace_strict(distinct, range(len(distinct)), default=None)
            kernels[name] = (self._again(codes), distinct)
        for name in (
            "device", "stream", "grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z",
            "registers", "shared_memory", "bytes",
        ):  # fmt: skip
            kernels[name] = self._again(step.kernels[name])
        kernels["device"] = np.zeros(len(number))
        write(folder, schema.KERNELS, kernels)
        rows = (np.arange(self.steps)[:, None] * count + met).ravel()
        ops = sorted(set(step.ops))
        op_of = np.array([ops.index(op) for op in step.ops])[which]
        write(
            folder,
            schema.COLLECTIVES,
            {
                "start": kernels["start"][rows],
                "duration": kernels["duration"][rows],
                "side": (np.zeros(len(rows), np.int64), ["device"]),
                "op": (np.tile(op_of, self.steps), ops),
                "correlation": rows,
                "group": (np.zeros(len(rows), np.int64), ["default_pg"]),
                "group_size": np.full(len(rows), self.ranks),
                "type": (np.zeros(len(rows), np.int64), ["float"]),
                "elements_in": np.tile(_ELEMENTS * (1 + which), self.steps),
                "elements_out": np.tile(_ELEMENTS * (1 + which), self.steps),
            },
        )
        self._write_phases(folder)
        busy = (step.kernels["kind"].cast(pl.String) == "kernel").to_numpy()
        communicates = step.collective >= 0
        self._write_parts(
            folder,
            {
                "busy": (start, duration),
                "communication": (start[:, communicates], duration[:, communicates]),
                "computing": (start[:, ~communicates], duration[:, ~communicates]),
                "kernels": (start[:, busy], duration[:, busy]),
            },
        )
        # The day's first event: kernels are recorded from before the first step on.
        runs.write_closed(folder, schema.EVENTS, [runs.recording_begins(-1, "start", "all")])
        runs.write_closed(folder, schema.SAMPLES, runs.host_samples(10))

    def _random(self, what: int) -> np.random.Generator:
        return np.random.default_rng((self._seed, what))

    def _again(self, column: pl.Series) -> pa.Array:
        """Repeat a column of the step for all steps."""
        return pa.concat_arrays([column.to_arrow()] * self.steps)

    def _edges(self) -> Numbers:
        """Where the phases of each step begin, and the last of them ends."""
        begun = self.begun[:, 0]
        share = np.array([0.0, *(end for _, end in PHASES)])
        edges: Numbers = begun[:, None] + ((self.ended - begun)[:, None] * share).astype(np.int64)
        return edges

    def _write_parts(self, folder: Path, ran: Mapping[str, tuple[Numbers, Numbers]]) -> None:
        """Write what a recorder sums up of each step, on the host and on the device."""
        edges = self._edges()
        begun, ended = edges[:, 0], edges[:, -1]
        # On the device a step begins where the one before ended, the first with its first phase.
        low = np.concatenate((edges[:1, 1], ended[:-1]))
        names = [name for name, _ in PHASES]
        covers = {name: merge(a.ravel(), (a + b).ravel()) for name, (a, b) in ran.items()}

        def share_of(name: str, since: Numbers, until: Numbers) -> Times:
            return covered(*covers[name], since.ravel(), until.ravel()).reshape(since.shape)

        busy = share_of("busy", low, ended)
        alone = {n: busy - share_of(n, low, ended) for n in ("computing", "kernels")}
        phase_busy = share_of("busy", edges[:, 1:-1], edges[:, 2:])
        inside = np.maximum(edges[:, :-1], low[:, None])
        idle = np.maximum(edges[:, 1:] - inside, 0) - share_of("busy", inside, edges[:, 1:])
        took = np.diff(edges)
        rows = [
            ("step", "step", begun, ended - begun),
            *(("phase", name, edges[:, n], took[:, n]) for n, name in enumerate(names)),
            ("other", "other", begun, np.zeros_like(begun)),
            ("device_step", "step", low, ended - low),
            *(
                ("device_phase", name, edges[:, n], took[:, n])
                for n, name in enumerate(names[1:], 1)
            ),
            ("busy", "busy", low, busy),
            ("communication", "communication", low, share_of("communication", low, ended)),
            ("exposed", "exposed", low, alone["computing"]),
            ("copying", "copying", low, alone["kernels"]),
            *(
                ("phase_busy", name, edges[:, 1], phase_busy[:, n])
                for n, name in enumerate(names[1:])
            ),
            *(("idle", name, low, idle[:, n]) for n, name in enumerate(names)),
        ]
        kinds = list(dict.fromkeys(kind for kind, *_ in rows))
        words = list(dict.fromkeys(name for _, name, *_ in rows))
        of_device = [kind not in ("step", "phase", "other") for kind, *_ in rows]
        on_disk = np.ones((self.steps, len(rows)), np.bool_)
        # Of the last step not all kernels may have come.
        measured = [row for row, (kind, *_) in enumerate(rows) if kind in OF_KERNELS]
        on_disk[-1, measured] = False
        many = len(rows)
        device = pa.array(np.zeros(self.steps * many), mask=~np.tile(of_device, self.steps))
        columns = {
            "start": np.column_stack([start for *_, start, _ in rows]).ravel(),
            "duration": np.column_stack([took for *_, took in rows]).ravel(),
            "kind": np.tile([kinds.index(kind) for kind, *_ in rows], self.steps),
            "name": np.tile([words.index(name) for _, name, *_ in rows], self.steps),
            "step": np.repeat(np.arange(self.steps), many),
            "count": np.ones(self.steps * many),
            "device": device,
        }
        kept = on_disk.ravel() & ~(
            (columns["kind"] == kinds.index("idle")) & (columns["duration"] == 0)
        )
        columns = {
            name: each.filter(pa.array(kept)) if name == "device" else each[kept]
            for name, each in columns.items()
        }
        columns["kind"] = columns["kind"], kinds
        columns["name"] = columns["name"], words
        write(folder, schema.STEP_PARTS, columns)

    def _write_phases(self, folder: Path) -> None:
        begun, edges = self.begun[:, 0], self._edges()
        took = self.ended - begun
        names = [name for name, _ in PHASES]
        many = len(names)
        steps = np.arange(self.steps)
        host = {
            "start": np.concatenate((edges[:, :-1].ravel(), begun)),
            "duration": np.concatenate((np.diff(edges).ravel(), took)),
            "category": (np.repeat([0, 1], (self.steps * many, self.steps)), ["phase", "step"]),
            "name": (
                np.concatenate((np.tile(np.arange(many), self.steps), np.full(self.steps, many))),
                [*names, "step"],
            ),
            "thread": np.ones(self.steps * (many + 1)),
            "step": np.concatenate((np.repeat(steps, many), steps)),
        }
        write(folder, schema.SPANS, host)
        write(
            folder,
            schema.DEVICE_SPANS,
            {
                "start": edges[:, 1:-1].ravel(),
                "duration": np.diff(edges)[:, 1:].ravel(),
                "category": (np.zeros(self.steps * (many - 1), np.int64), ["phase"]),
                "name": (np.tile(np.arange(many - 1), self.steps), names[1:]),
                "device": np.zeros(self.steps * (many - 1)),
                "stream": np.full(self.steps * (many - 1), 7),
                "step": np.repeat(steps, many - 1),
                "uncertainty": np.full(self.steps * (many - 1), 500),
            },
        )


def write(folder: Path, table: schema.Table, columns: Mapping[str, Any]) -> Path:
    """Write a closed segment; a column of texts is given as codes and words, absent ones are null.

    Columns are numpy's or Arrow's.
    """
    arrow = schema.arrow_schema(table)
    rows = len(columns[arrow.names[0]])
    arrays = []
    for field in arrow:
        given = columns.get(field.name)
        if given is None:
            arrays.append(pa.nulls(rows, field.type))
        elif isinstance(given, tuple):
            codes, words = given
            codes = codes if isinstance(codes, pa.Array) else pa.array(codes)
            arrays.append(
                pa.DictionaryArray.from_arrays(codes.cast(pa.uint32()), pa.array(words, pa.utf8()))
            )
        elif isinstance(given, pa.Array):
            arrays.append(given.cast(field.type))
        else:
            arrays.append(pa.array(given).cast(field.type))
    file = folder / f"{table.name}-0{schema.CLOSED_SUFFIX}"
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    data = pa.table(arrays, schema=arrow)
    with (
        pa.OSFile(str(file), "wb") as sink,
        pa.ipc.new_file(sink, data.schema, options=options) as out,
    ):
        out.write_table(data, 1 << 16)
    return file
