"""Which processes of a run an export is of, and their tables."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import polars as pl

from haiprof import schema
from haiprof.errors import HaiprofError
from haiprof.runs import ROLE_NODE, Process
from haiprof.sources import tables
from haiprof.sources.arrow_memory import give_back

if TYPE_CHECKING:
    from haiprof.analyzer import Analyzer

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Chosen:
    """A process of the run, or of the deep traces in its folders; ``label`` is unique."""

    label: str
    process: Process
    deep: bool = False
    #: What could not be read of it.
    problems: list[str] = field(default_factory=list)

    def read(self, table: schema.Table, columns: Sequence[str] | None = None) -> pl.DataFrame:
        """Read some columns of a table, by default all; what cannot be read is a problem."""
        give_back()  # what the table before this one needed
        window = self.process.window
        names = [c.name for c in table.columns] if columns is None else columns
        read = tables.read(self.process, table, names)
        self.problems.extend(read.problems)
        if table is schema.EVENTS and window is not None:
            # What holds in the window but was before it is for views.
            return read.frame.filter(pl.col("time") >= window[0])
        return read.frame


def chosen(analyzer: Analyzer, rank: int | None, *, nodes: bool = True) -> list[Chosen]:
    """Return the processes of a run, or of one rank; those of its deep traces after them.

    Args:
        analyzer: the run.
        rank: this one and its node only; None for all.
        nodes: whether to include nodes.

    Raises:
        HaiprofError: there is no such rank.
    """
    processes = _of(analyzer, rank, nodes, deep=False)
    if rank is not None and all(each.process.rank != rank for each in processes):
        known = ", ".join(map(str, analyzer.ranks[:20])) or "none"
        raise HaiprofError(f"--rank {rank}: the run has no such rank: it has {known}")
    deep = analyzer.deep
    if deep is not None and deep is not analyzer:
        processes += [
            replace(each, label=f"{each.label}, deep trace")
            for each in _of(deep, rank, nodes, deep=True)
        ]
    return processes


def traced(analyzer: Analyzer, rank: int | None) -> list[Chosen]:
    """Return each process that is not a node: its deep traces if any, else itself.

    Raises:
        HaiprofError: there is no such rank.
    """
    every = chosen(analyzer, rank, nodes=False)
    deep = {_who(each) for each in every if each.deep}
    return [each for each in every if each.deep or _who(each) not in deep]


def done(
    analyzer: Analyzer,
    work: Callable[..., _Result],
    jobs: Sequence[tuple[Any, ...]],
    on_process: Callable[[str], None] | None,
) -> Iterator[tuple[Chosen, _Result]]:
    """Yield each process with the result of its work: one by one, or by the run's executor.

    Args:
        analyzer: the run.
        work: called with each of the jobs; must be picklable.
        jobs: a :class:`Chosen` each, and further arguments of its work.
        on_process: called with each process's label when it is done.

    Raises:
        OSError: of the work. After any other failure the process is left out and named.
    """
    pairs = [(job[0].process, job) for job in jobs]
    for (_, job), (result, problems, failed) in analyzer.each(functools.partial(_do, work), pairs):
        analyzer.note(problems)
        if failed is not None:
            raise failed
        if on_process is not None:
            on_process(job[0].label)
        yield job[0], result


def _do(
    work: Callable[..., Any], pair: tuple[Process, Sequence[Any]]
) -> tuple[Any, list[str], OSError | None]:
    each, *more = pair[1]
    try:
        return work(each, *more), each.problems, None
    except OSError as error:  # a disk that is full is so for all
        return None, [], error


def _who(each: Chosen) -> tuple[str, int | None, int | None]:
    return each.process.node, each.process.rank, each.process.pid


def _of(analyzer: Analyzer, rank: int | None, nodes: bool, *, deep: bool) -> list[Chosen]:
    every = analyzer.run.processes
    mine = {p.node for p in every if p.rank == rank and p.role != ROLE_NODE}
    return [
        Chosen(p.label, p, deep)
        for p in every
        if (nodes and (rank is None or p.node in mine) if p.role == ROLE_NODE else True)
        and (rank is None or p.rank == rank or p.role == ROLE_NODE)
    ]
