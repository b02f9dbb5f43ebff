"""The functions of the job that a share of samples points at.

Tests: tests/findings/recorded/test_rules.py.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from typing import Final, NamedTuple

import polars as pl

from haiprof.common.frame_texts import IMPORTLIB, PYTHON, SEPARATOR, short_file
from haiprof.findings.finding import LEAST, SURE
from haiprof.findings.recorded.doing import AWAY, PYTHON_CODE, TENSORS, doing
from haiprof.views.run.ledger import MOST_PARTS

#: A function is of the trunk if this share of all tensor operations is called from it.
_TRUNK: Final = 0.10
#: A branch with more tensor operations than this share is what the job is there for.
_SOME: Final = 0.2
_LINE: Final = re.compile(r":\d+\)$")
#: What these run is training.
_PHASES: Final = ("input", "forward", "recompute", "backward", "optimizer")
#: Files of torch whose functions change gradients or weights as a part of the update.
_UPDATES: Final = r"/torch/(nn/utils|optim|amp)/"
#: A function of torch's modules that is a part of it, too.
_ZERO_GRAD: Final = "zero_grad"
#: Packages that do not call the phases, although they are called in between.
_NO_FRAMEWORK: Final = ("torch", "haiprof", PYTHON, IMPORTLIB)
#: Of fewer samples no share is worth the name.
_FEWEST: Final = 30
#: To say that most are in one function, fewer are enough.
_FEW: Final = 10
_MOST_OF_THEM: Final = 0.5
#: Of a share that is measured by counting: the quantile of 97.5 %.
_QUANTILE: Final = 1.96


class Hot(NamedTuple):
    """A function of the job, and how many of all samples are in it.

    Attributes:
        function: it, as ``function (file)``; of a branch, the first one of it.
        line: the innermost line of it with most samples.
        share: of all samples.
        low: at least, with 97.5 % certainty.
        high: at most, with the same.
        samples: in it.
        of: all samples.
        doing: what most of them do.
        logs: share of them that write to a log, or to a file.
        native: share of them that run without the GIL.
        cause: of the ledger in which most of them are.
        by_cause: samples in it, by cause.
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
    native: float
    cause: str
    by_cause: dict[str, int]

    @property
    def within(self) -> bool:
        """Whether the line with most samples is in the function itself."""
        name = self.function.partition(" (")[0]
        return self.line.startswith(f"{name} (")

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
    in_functions = known.with_columns(function_of("line").alias("of"))
    groups = in_functions.group_by("of", maintain_order=True)
    found = [_hot(str(name), rows, of) for (name,), rows in groups]
    return sorted(found, key=lambda hot: -hot.samples)


def apart(lines: pl.DataFrame, trained: pl.DataFrame) -> str | None:
    """Return the line of the innermost function that most samples are in and training is not.

    Args:
        lines: samples of what is done besides.
        trained: those of the phases.
    """
    known = {
        _LINE.sub(")", frame)
        for path in trained["path"].drop_nulls().unique().to_list()
        for frame in path.split(SEPARATOR)
    }
    counts: dict[str, Counter[str]] = {}
    for path, samples in lines.select("path", "samples").drop_nulls().iter_rows():
        for frame in reversed(path.split(SEPARATOR)):
            function = _LINE.sub(")", frame)
            if function not in known:
                counts.setdefault(function, Counter())[frame] += samples
                break
    most = max(counts.values(), key=lambda each: each.total(), default=None)
    enough = _MOST_OF_THEM * int(lines["samples"].sum())
    return most.most_common(1)[0][0] if most and most.total() >= enough else None


def most_in(lines: pl.DataFrame) -> str | None:
    """Return the line of the function that most of these samples are in; None: in no single one."""
    count = int(lines["samples"].sum())
    hot = next(iter(functions(lines, count)), None)
    return hot.line if hot is not None and count >= _FEW and hot.share >= _MOST_OF_THEM else None


def _hot(name: str, rows: pl.DataFrame, of: int) -> Hot:
    count = int(rows["samples"].sum())
    logs = int(rows.filter(pl.col("logs"))["samples"].sum()) / count
    free = pl.col("state").is_in(("running", "ready")) & ~pl.col("gil")
    native = int(rows.filter(free)["samples"].sum()) / count
    line, doing, cause = (_most(rows, each) for each in ("line", "doing", "cause"))
    low, high = _interval(count, of)
    return Hot(
        name,
        line,
        count / of,
        low,
        high,
        count,
        of,
        doing,
        logs,
        native,
        cause,
        {str(name): int(part["samples"].sum()) for (name,), part in rows.group_by("cause")},
    )


def _interval(count: int, of: int) -> tuple[float, float]:
    """Return the interval of 95 % of a share that was counted (Wilson, 1927)."""
    share, z2 = count / of, _QUANTILE**2
    middle = (share + z2 / (2 * of)) / (1 + z2 / of)
    half = _QUANTILE / (1 + z2 / of) * math.sqrt(share * (1 - share) / of + z2 / (4 * of * of))
    return min(middle - half, share), max(middle + half, share)


def branches(lines: pl.DataFrame, of: int) -> list[Hot]:
    """Return what the training loop and the model call besides tensor operations, the most first.

    The trunk of the stacks is what most tensor operations are called from. What branches off from
    it, and the trunk's own lines, are what samples belong to. A line that runs without the GIL may
    be in an operator of torch or in another library: it counts with a branch of which other samples
    say what it does.

    Args:
        lines: of the training thread, with the columns that
            :func:`haiprof.findings.recorded.doing.doing` adds.
        of: number of samples that the shares are of.
    """
    known = lines.filter(pl.col("path").is_not_null(), ~pl.col("imports"))
    if not known.height or not of:
        return []
    in_torch = pl.col("package").is_not_null() & (pl.col("doing") == TENSORS)
    trunk = _trunk(known.filter(in_torch))
    places = [_branch(path, trunk) for path in known["path"].to_list()]
    rows = known.with_columns(
        pl.Series("branch", places, pl.String()),
        in_torch.alias("torch"),
        ((pl.col("doing") == TENSORS) & ~in_torch).alias("maybe"),
        pl.col("doing").is_in(AWAY).alias("away"),
    )
    found = []
    for (name,), each in rows.group_by("branch", maintain_order=True):
        away, maybe, torch = (
            int(each.filter(pl.col(kind))["samples"].sum()) for kind in ("away", "maybe", "torch")
        )
        joins = 2 * away >= maybe and torch <= _SOME * (away + maybe)
        mine = each.filter(pl.col("away") | (pl.col("maybe") if joins else pl.lit(value=False)))
        if away:
            found.append(_hot(str(name), mine, of))
    return sorted(found, key=lambda hot: -hot.samples)


def between_phases(lines: pl.DataFrame) -> pl.DataFrame:
    """Return the samples between the phases, with the ``branch`` and the ``framework`` of each.

    ``branch`` is the first function of its path that the phases do not run in, else its last line.
    ``framework`` is, of samples in no line of the job's but one that the phases are called from,
    the package that calls them, empty if that is torch; null for others.

    Args:
        lines: of the training thread, with the columns that
            :func:`haiprof.findings.recorded.doing.doing` adds.
    """
    trained = lines.filter(pl.col("path").is_not_null(), pl.col("cause").is_in(_PHASES))
    known = lines.filter(
        pl.col("path").is_not_null(), pl.col("cause") == "other", ~pl.col("imports")
    )
    trunk, calls = _trunk(trained), _trunk(trained, with_lines=True)
    frameworks = [
        _framework(outer) or "" if path in calls else None
        for path, outer in known.select("path", "outer").iter_rows()
    ]
    return known.with_columns(
        pl.Series(
            "branch", [_branch(path, trunk) for path in known["path"].to_list()], pl.String()
        ),
        pl.Series("framework", frameworks, pl.String()),
    )


def shares_between(lines: pl.DataFrame, *, logged: bool = False) -> dict[str, float]:
    """Return the share of the time between the phases by what is done there, the most first.

    That is ``framework (NAME)``, a function of the job that the phases do not run in, or a line.

    Args:
        lines: as :func:`haiprof.views.run.hot_lines.hot_lines` gives them.
        logged: logging is accounted for elsewhere; the shares are of the rest.
    """
    own = lines.filter(~pl.col("worker"))
    if own.filter(pl.col("cause") == "other")["samples"].sum() < _FEWEST:
        return {}
    mine = doing(own)
    if logged:
        mine = mine.filter(~pl.col("logs"))
    count = int(mine.filter(pl.col("cause") == "other")["samples"].sum())
    if count < _FEWEST:
        return {}
    named = (
        pl.when(pl.col("framework").is_null())
        .then("branch")
        .when(pl.col("framework") != "")
        .then(pl.format("framework ({})", "framework"))
    )
    rows = between_phases(mine).with_columns(named.alias("part")).drop_nulls("part")
    sums = rows.group_by("part", maintain_order=True).agg(pl.col("samples").sum() / count)
    large = sums.filter(pl.col("samples") >= LEAST).sort("samples", descending=True)
    return dict(large.head(MOST_PARTS).iter_rows())


def tensor_work(lines: pl.DataFrame, of: int) -> list[Hot]:
    """Return the branches that mostly compute with tensors, that with most samples first.

    Args:
        lines: as :func:`between_phases` returns them.
        of: number of samples that the shares are of.
    """
    of_update = pl.col("file").str.contains(_UPDATES).fill_null(value=False)
    of_job = lines.filter(pl.col("framework").is_null(), ~of_update)
    tensors = pl.col("samples").filter(pl.col("doing") == TENSORS).sum()
    away = pl.col("samples").filter(pl.col("doing").is_in(AWAY)).sum()
    mostly = of_job.filter((tensors > away).over("branch"))
    return _by("branch", mostly.filter(pl.col("doing").is_in((TENSORS, *AWAY))), of)


def frameworks(lines: pl.DataFrame, of: int) -> list[Hot]:
    """Return the packages that call the phases, with what they do in between: the most first.

    Of each, ``function`` is its name, and ``line`` what most samples are in: a function of the
    package itself, or one of another that it calls.

    Args:
        lines: as :func:`between_phases` returns them.
        of: number of samples that the shares are of.
    """
    of_update = pl.col("function").str.ends_with(_ZERO_GRAD).fill_null(value=False)
    works = pl.col("doing").is_in((TENSORS, PYTHON_CODE))
    own = lines.filter(pl.col("framework") != "", works, ~of_update)
    named = own.with_columns(
        pl.when(pl.col("package").is_not_null())
        .then(pl.format("{} ({})", "function", pl.col("file").map_elements(short_file, pl.String)))
        .otherwise("line")
        .alias("line")
    )
    return _by("framework", named, of)


def _by(column: str, rows: pl.DataFrame, of: int) -> list[Hot]:
    groups = rows.group_by(column, maintain_order=True)
    found = [_hot(str(name), each, of) for (name,), each in groups] if of else []
    return sorted(found, key=lambda hot: -hot.samples)


def _framework(outer: str | None) -> str | None:
    """Return the first package that a line calls, of packages from the innermost one on."""
    packages = (outer or "").split()[::-1]
    return next((name for name in packages if name not in _NO_FRAMEWORK), None)


def _trunk(lines: pl.DataFrame, *, with_lines: bool = False) -> set[str]:
    """Return the paths of functions, or of their lines, that many of some samples are in."""
    counts: Counter[str] = Counter()
    for path, samples in lines.select("path", "samples").iter_rows():
        for prefix in _prefixes(path, with_lines=with_lines):
            counts[prefix] += samples
    least = _TRUNK * int(lines["samples"].sum())
    return {prefix for prefix, samples in counts.items() if samples >= max(least, 1)}


def _prefixes(path: str, *, with_lines: bool = False) -> list[str]:
    frames = path.split(SEPARATOR)
    functions = frames if with_lines else [_LINE.sub(")", frame) for frame in frames]
    return list(itertools.accumulate(functions, lambda before, one: f"{before}{SEPARATOR}{one}"))


def _branch(path: str, trunk: set[str]) -> str:
    """Return the first function of a path that is not of the trunk, else its last line."""
    for prefix in _prefixes(path):
        if prefix not in trunk:
            return prefix.rpartition(SEPARATOR)[2]
    return path.rpartition(SEPARATOR)[2]


def function_of(column: str) -> pl.Expr:
    """Return lines, ``function (file:line)``, without the line's number."""
    return pl.col(column).str.replace(r":\d+\)$", ")")


def _most(rows: pl.DataFrame, name: str) -> str:
    sums = rows.group_by(name, maintain_order=True).agg(pl.col("samples").sum())
    return str(sums.sort("samples", descending=True, maintain_order=True)[name][0])
