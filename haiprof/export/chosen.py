"""Which processes of a run an export is of, and their tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from haiprof import schema
from haiprof.errors import HaiprofError
from haiprof.sources.arrow_memory import give_back
from haiprof.sources.own import ROLE_NODE, Process

if TYPE_CHECKING:
    from haiprof.analyzer import Analyzer


class Chosen(NamedTuple):
    """A process of the run, or of the deep traces in its folders; ``label`` is unique."""

    label: str
    process: Process
    of: Analyzer

    def read(self, table: schema.Table, columns: Sequence[str] | None = None) -> pl.DataFrame:
        """Read some columns of a table, by default all; what cannot be read is noted by the run."""
        give_back()  # what the table before this one needed
        names = [c.name for c in table.columns] if columns is None else columns
        return self.of.read(self.process, table, names)


def chosen(analyzer: Analyzer, rank: int | None, *, nodes: bool = True) -> list[Chosen]:
    """Return the processes of a run, or of one rank; those of its deep traces after them.

    Args:
        analyzer: the run.
        rank: whose, and its node's; None for all.
        nodes: whether nodes are wanted too.

    Raises:
        HaiprofError: there is no such rank.
    """
    made = _of(analyzer, rank, nodes)
    if rank is not None and all(each.process.rank != rank for each in made):
        known = ", ".join(map(str, analyzer.ranks[:20])) or "none"
        raise HaiprofError(f"--rank {rank}: the run has no such rank: it has {known}")
    deep = analyzer.deep
    if deep is not None and deep is not analyzer:
        made += [
            each._replace(label=f"{each.label}, deep trace") for each in _of(deep, rank, nodes)
        ]
    return made


def traced(analyzer: Analyzer, rank: int | None) -> list[Chosen]:
    """Return each process that is no node by what knows most of it: its deep traces, or itself.

    Raises:
        HaiprofError: there is no such rank.
    """
    every = chosen(analyzer, rank, nodes=False)
    deep = {_who(each) for each in every if each.of is analyzer.deep}
    return [each for each in every if each.of is analyzer.deep or _who(each) not in deep]


def _who(each: Chosen) -> tuple[str, int | None, int | None]:
    return each.process.node, each.process.rank, each.process.pid


def _of(analyzer: Analyzer, rank: int | None, nodes: bool) -> list[Chosen]:
    every = analyzer.run.processes
    mine = {p.node for p in every if p.rank == rank and p.role != ROLE_NODE}
    return [
        Chosen(p.label, p, analyzer)
        for p in every
        if (nodes and (rank is None or p.node in mine) if p.role == ROLE_NODE else True)
        and (rank is None or p.rank == rank or p.role == ROLE_NODE)
    ]
