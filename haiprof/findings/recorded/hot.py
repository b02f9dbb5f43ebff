"""The functions of the job that a share of samples points at.

Tests: tests/findings/recorded/test_rules.py.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import polars as pl

from haiprof.findings.finding import LEAST, SURE

#: Of fewer samples no share is worth the name.
_FEWEST: Final = 30
#: Of a share that is measured by counting: the quantile of 97.5 %.
_QUANTILE: Final = 1.96


class Hot(NamedTuple):
    """A function of the job, and how many of all samples are in it.

    Attributes:
        function: it, as ``function (file)``.
        line: the line of it with most samples.
        share: of all samples.
        low: at least, with 97.5 % certainty.
        high: at most, with the same.
        samples: in it.
        of: all samples.
        doing: what most of them do.
        logs: share of them that write to a log, or to a file.
        cause: of the ledger in which most of them are.
    """

    function: str
    line: str
    share: float
    low: float
    high: float
    samples: int
    of: int
    doing: str
    logs: float
    cause: str

    @property
    def counts(self) -> bool:
        """Whether it is worth a finding."""
        return self.of >= _FEWEST and self.share >= LEAST and self.low >= SURE


def functions(lines: pl.DataFrame, of: int) -> list[Hot]:
    """Return the job's functions in which samples are, that with most first.

    Args:
        lines: with the columns that :func:`haiprof.findings.recorded.doing.doing` adds.
        of: number of samples that the shares are of.
    """
    known = lines.filter(pl.col("line").is_not_null())
    if not known.height or not of:
        return []
    found = []
    in_functions = known.with_columns(function_of("line").alias("of"))
    for (name,), rows in in_functions.group_by("of", maintain_order=True):
        count = int(rows["samples"].sum())
        logs = int(rows.filter(pl.col("logs"))["samples"].sum()) / count
        share = count / of
        low, high = _interval(count, of)
        line, doing, cause = (_most(rows, each) for each in ("line", "doing", "cause"))
        found.append(Hot(str(name), line, share, low, high, count, of, doing, logs, cause))
    return sorted(found, key=lambda hot: -hot.samples)


def _interval(count: int, of: int) -> tuple[float, float]:
    """Return the interval of 95 % of a share that was counted (Wilson, 1927)."""
    share, z2 = count / of, _QUANTILE**2
    middle = (share + z2 / (2 * of)) / (1 + z2 / of)
    half = _QUANTILE / (1 + z2 / of) * math.sqrt(share * (1 - share) / of + z2 / (4 * of * of))
    return min(middle - half, share), max(middle + half, share)


def function_of(column: str) -> pl.Expr:
    """Return lines, ``function (file:line)``, without the line's number."""
    return pl.col(column).str.replace(r":\d+\)$", ")")


def _most(rows: pl.DataFrame, name: str) -> str:
    sums = rows.group_by(name, maintain_order=True).agg(pl.col("samples").sum())
    return str(sums.sort("samples", descending=True, maintain_order=True)[name][0])
