"""What is known of a recorded run, for the rules to look at.

Tests: tests/findings/recorded/test_rules.py.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from haiprof.findings.finding import Evidence
from haiprof.runs import Process
from haiprof.views.run import blocks
from haiprof.views.run.gpu_clocks import Clocks
from haiprof.views.run.ledger import Ledger
from haiprof.views.run.overview import Summary
from haiprof.views.run.series import Stat

Numbers = npt.NDArray[np.int64]

#: Columns of the events that say what happened to links, and what the kernel reported.
LINKS_SCHEMA: Final = {
    "node": pl.String(),
    "time": pl.Int64(),
    "kind": pl.String(),
    "text": pl.String(),
    "attributes": pl.String(),
}
MAIN_SCHEMA: Final = {"time": pl.Int64(), "faults": pl.Float64(), "system": pl.Float64()}
#: The metric of the time that threads which communicate wait for a CPU, percent.
TALKERS_WAIT: Final = "proc.communication_wait.percent"
#: Of the main thread, which trains: its time in the kernel, percent, and its page faults.
MAIN_SYSTEM: Final = "proc.main_system.percent"
MAIN_FAULTS: Final = "proc.main_minor_faults.per_s"
#: The size of what the model is called with.
INPUT_ELEMENTS: Final = "model.input.elements"
#: How often torch gave memory of a GPU back to the driver.
DEVICE_FREES: Final = "torch.device_frees.count"
#: Kinds of events that rules look at.
FACTS: Final = (
    "loader", "loader_workers", "threads", "ddp", "autograd", "compile", "skipped_update", "start",
)  # fmt: skip


@dataclass(frozen=True)
class Rank:
    """What is known of one process of a rank.

    Attributes:
        process: the process.
        ledger: what its time went to.
        lines: at which lines, see :func:`haiprof.views.run.hot_lines.hot_lines`.
        slow: excess of its slow steps, see :func:`haiprof.views.run.slow_steps.excess`.
        summary: its samples, summed up; None: there are none.
        facts: attributes of its events of the kinds of :data:`FACTS`, by kind, in their order,
            with the ``time`` of each, ns UTC.
        exchanged: bytes that it got in all_to_all.
        memory: ``time`` and ``value`` of its memory, ns UTC and bytes.
        device_memory: the same of the memory of its tensors on GPUs.
        device_frees: the same of :data:`DEVICE_FREES`.
        main_thread: ``time``, ``faults`` and ``system``: :data:`MAIN_FAULTS` and
            :data:`MAIN_SYSTEM`.
        elements: of its inputs, by group of steps; empty: not known of all of them.
    """

    process: Process
    ledger: Ledger
    lines: pl.DataFrame
    slow: Numbers
    summary: Summary | None = None
    facts: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    exchanged: int = 0
    memory: pl.DataFrame = field(default_factory=lambda: pl.DataFrame())
    device_memory: pl.DataFrame = field(default_factory=lambda: pl.DataFrame())
    device_frees: pl.DataFrame = field(default_factory=lambda: pl.DataFrame())
    main_thread: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=MAIN_SCHEMA))
    elements: Numbers = field(default_factory=lambda: np.zeros(0, np.int64))

    @functools.cached_property
    def begins(self) -> Numbers:
        """Where each block of its steps begins."""
        return blocks.edges(self.ledger.duration, self.ledger.count)

    def share(self, part: Numbers) -> blocks.Share:
        """Return the share of the steps' time that a part of each group of steps takes."""
        return blocks.share(part, self.ledger.duration, self.begins)

    def of(self, *causes: str) -> Evidence:
        """Return what the ledger says of some causes in all steps, as evidence."""
        value = int(self.ledger.of(*causes).sum())
        return Evidence("ledger", " + ".join(causes), value, "ns", self.ledger.stepped)

    def stat(self, metric: str) -> Stat | None:
        """Return what was sampled of a metric of its process."""
        return None if self.summary is None else self.summary.stats.get(metric)

    @property
    def delayed_transfers(self) -> int:
        """How long a thread that communicates had no CPU during transfers, at most, ns."""
        queued = self.stat(TALKERS_WAIT)
        if queued is None:
            return 0
        waited = int(queued.mean / 100 * self.ledger.stepped)
        return min(waited, int(self.ledger.of("transfer").sum()))

    @property
    def samples_in_steps(self) -> int:
        """How many samples of the training thread are in steps, or between them."""
        outside = ("startup", "shutdown", "down", "unrecorded", "hang", "lost")
        rows = self.lines.filter(~pl.col("worker"), ~pl.col("cause").is_in(outside))
        return int(rows["samples"].sum())

    def spent(self, samples: Mapping[str, int]) -> int:
        """Return the time that samples of the training thread stand for, ns.

        The ledger knows what each cause took; samples only share that out.

        Args:
            samples: their number, by cause.
        """
        mine = self.lines.filter(~pl.col("worker"))
        sums = dict(mine.group_by("cause").agg(pl.col("samples").sum()).iter_rows())
        return int(
            sum(
                count / sums[cause] * int(self.ledger.of(cause).sum())
                for cause, count in samples.items()
                if sums.get(cause)
            )
        )

    def extent(self, part: Numbers) -> tuple[int | None, int | None]:
        """Return the first and the last step in which a part takes its time; None: of the run."""
        parts = np.add.reduceat(part, self.begins).astype(np.float64)
        wholes = np.add.reduceat(self.ledger.duration, self.begins).astype(np.float64)
        found = blocks.stretch(parts, wholes)
        if found is None:
            return None, None
        ends = np.append(self.begins[1:], len(part)) - 1
        first, last = int(self.begins[found[0]]), int(ends[found[1]])
        group, width = self.ledger.group, self.ledger.width
        since = None if found[0] == 0 else int(group[first]) * width
        until = None if found[1] >= len(ends) - 2 else int(group[last]) * width
        return since, until

    @property
    def numbers(self) -> tuple[int, ...]:
        """Its rank, if it has one."""
        return () if self.process.rank is None else (self.process.rank,)


@dataclass(frozen=True)
class Device:
    """What is known of one GPU that ranks of a run used.

    Attributes:
        node: the node that it is in.
        instance: its name there: ``gpu0``.
        name: its model.
        ranks: that used it, ascending.
        clocks: at which it computed; None: not sampled.
        power_limit_w: the power that it may draw; None: not known.
        pci: its address; empty: not known.
        errors: what its driver reported of it, in order.
    """

    node: str
    instance: str
    name: str
    ranks: tuple[int, ...]
    clocks: Clocks | None = None
    power_limit_w: float | None = None
    pci: str = ""
    errors: Sequence[DeviceError] = ()

    @property
    def label(self) -> str:
        """Its name in a sentence."""
        return f"{self.instance} of {self.node}"


@dataclass(frozen=True)
class DeviceError:
    """What the driver reported of a GPU.

    Attributes:
        time: when the recorder heard of it, ns UTC.
        kind: of the event: ``xid``, ``ecc``, ``gpu_lost``.
        text: in words.
        xid: number of an Xid.
        corrected: whether nothing came of it, of an ``ecc``.
    """

    time: int
    kind: str
    text: str
    xid: int | None = None
    corrected: bool = False


@dataclass(frozen=True)
class Case:
    """What is known of a run.

    Attributes:
        ranks: the latest process of each rank that had steps.
        nodes: samples of the nodes, summed up.
        operations: collectives by group and kind, see
            :func:`haiprof.views.run.collectives.by_kind`; empty: none, or not recorded.
        devices: the GPUs that the ranks used.
        links: events of the nodes on their links, of :data:`LINKS_SCHEMA`.
        reports: events of the nodes on what their kernels reported, of the same columns.
    """

    ranks: Sequence[Rank]
    nodes: Sequence[Summary] = ()
    operations: pl.DataFrame = field(default_factory=lambda: pl.DataFrame())
    devices: Sequence[Device] = ()
    links: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=LINKS_SCHEMA))
    reports: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=LINKS_SCHEMA))

    def node_of(self, rank: Rank) -> Summary | None:
        """Return the samples of a rank's node."""
        return next((n for n in self.nodes if n.process.node == rank.process.node), None)

    def beside(self, rank: Rank) -> list[Rank]:
        """Return the ranks of a rank's node, itself among them."""
        return [each for each in self.ranks if each.process.node == rank.process.node]
