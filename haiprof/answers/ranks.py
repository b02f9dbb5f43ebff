"""The processes of a run, and the work over them: what every answer starts from.

Tests: tests/test_analyzer.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any, Final, TypeVar, cast

import numpy as np
import polars as pl

from haiprof.answers.linked_traces import Links
from haiprof.answers.over_ranks import Item, over_ranks
from haiprof.answers.processes import described
from haiprof.errors import HaiprofError
from haiprof.runs import ROLE_NODE, ROLE_RANK, Process, Run
from haiprof.sources import tables

_Result = TypeVar("_Result")

_WHO: Final = {"node": pl.Categorical(), "rank": pl.Int64(), "pid": pl.Int64()}
#: Of processes with fewer rows each, to put the columns of the process in front of all of them
#: together takes a hundredth of the time.
_FEW_ROWS: Final = 100


class Ranks:
    """The processes of a run, an executor for their work, and what is kept of the answers.

    Args:
        run: whose processes they are.
        executor: does the work of each; a few threads of this process when None.
        whole: what this is a part of, in time or of its ranks; their clocks are that one's.
    """

    def __init__(self, run: Run, executor: Executor | None, whole: Ranks | None = None) -> None:
        """Keep nothing yet but what could not be read when the run was opened."""
        self.run = run
        self.executor = executor
        self.whole = whole
        #: What could not be read, a line each; the values mean nothing.
        self.problems = dict.fromkeys(run.problems)
        self._links = Links()
        self._kept: dict[str, Any] = {}
        self._lock = threading.RLock()

    @property
    def where(self) -> str:
        """What is analysed, as errors name it."""
        return self.run.source or str(self.run.folder)

    @property
    def numbers(self) -> list[int]:
        """The ranks that can be read, ascending."""
        return sorted(
            {p.rank for p in self.run.processes if p.role == ROLE_RANK and p.rank is not None}
        )

    @property
    def traced(self) -> bool:
        """Whether any process is known by a deep trace."""
        return any(process.trace is not None for process in self.run.processes)

    @property
    def links(self) -> Links | None:
        """Linked traces of this process; another process of an executor has its own."""
        return self._links if self.executor is None else None

    def linked(self, process: Process) -> Any:
        """Return the linked trace of a process, read here."""
        return self._links.of(process)

    def choose(self, rank: int | None) -> list[Process]:
        """Return the processes of a rank, or all.

        Raises:
            HaiprofError: the run has no such rank.
        """
        if rank is None:
            return list(self.run.processes)
        chosen = [p for p in self.run.processes if p.rank == rank and p.role != ROLE_NODE]
        if not any(p.role == ROLE_RANK for p in chosen):
            raise HaiprofError(f"{self.where}: has no rank {rank}: {described(self.numbers)}")
        return chosen

    def jobs(self, rank: int | None) -> list[Process]:
        """Return the processes of a rank, or all that are not recorders of a node.

        Raises:
            HaiprofError: the run has no such rank.
        """
        return [process for process in self.choose(rank) if process.role != ROLE_NODE]

    def map(
        self, work: Callable[[Item], _Result], processes: Sequence[Item]
    ) -> Iterable[tuple[Item, _Result]]:
        """Do the work for each process, on the executor where there is one.

        A process whose work fails is named among the problems, and left out.
        """
        return over_ranks(work, processes, self.executor, lambda line: self.note([line]))

    def each(
        self, work: Callable[[Item], _Result], processes: Sequence[Item]
    ) -> Iterable[tuple[Item, _Result]]:
        """Do large work for some processes: one at a time, or as the executor does it."""
        if self.executor is None:
            return ((one, work(one)) for one in processes)
        return self.map(work, processes)

    def frames(
        self,
        read: Callable[[Process], tables.Read],
        processes: Sequence[Process],
        columns: Mapping[str, pl.DataType],
    ) -> pl.DataFrame:
        """Return what is read of each process, with its ``node``, ``rank`` and ``pid`` in front."""
        return self.together(self.map(read, processes), columns)

    def together(
        self,
        reads: Iterable[tuple[Process, tables.Read]],
        columns: Mapping[str, pl.DataType],
    ) -> pl.DataFrame:
        """Return what was read of each process, as :meth:`frames` does."""
        frames = [pl.DataFrame(schema=columns)]
        read_of: list[Process] = []
        for process, each in reads:
            self.note(each.problems)
            if each.frame.height:
                frames.append(each.frame)
                read_of.append(process)
        heights = [frame.height for frame in frames[1:]]
        who = [(process.node, process.rank, process.pid) for process in read_of]
        if sum(heights) > _FEW_ROWS * len(heights):
            # As literals: constant columns of millions of rows take no memory.
            for at, its in enumerate(who, 1):
                same = [pl.lit(v, t).alias(n) for (n, t), v in zip(_WHO.items(), its, strict=True)]
                frames[at] = frames[at].select(*same, pl.all())
            return pl.concat([pl.DataFrame(schema={**_WHO, **columns}), *frames[1:]])
        leading = pl.DataFrame(who, _WHO, orient="row")[np.repeat(np.arange(len(who)), heights)]
        return pl.concat([leading, pl.concat(frames)], how="horizontal")

    def once(self, what: str, make: Callable[[], _Result]) -> _Result:
        """Return what ``make`` returned the first time that ``what`` was asked for."""
        with self._lock:
            if what not in self._kept:
                self._kept[what] = make()
            return cast(_Result, self._kept[what])

    def kept(self, what: str) -> Any:
        """Return what :meth:`once` keeps of that; None where nobody has asked yet."""
        return self._kept.get(what)

    def note(self, problems: Iterable[str]) -> None:
        """Remember what could not be read."""
        self.problems.update(dict.fromkeys(problems))
