"""``haiprof export``: writes a run for other programs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, cast

from haiprof.cli.arguments import UsageError
from haiprof.cli.logged import one_run
from haiprof.cli.process.progress import things_done
from haiprof.cli.report import open_run, say_problems
from haiprof.common.choices import did_you_mean
from haiprof.common.printable import printable
from haiprof.errors import HaiprofError

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from haiprof.analyzer import Analyzer

#: What can be written.
FORMATS: Final = ("csv", "perfetto", "chrome", "tensorboard", "parquet", "folded", "speedscope")
#: Of the sampled stacks.
_OF_STACKS: Final = ("folded", "speedscope")
#: The words before the run, as in msprof; the default form of each.
KINDS: Final = {"summary": "csv", "timeline": "json"}

#: These draw a critical path; of the longest step if that is asked for.
_WITH_PATH: Final = ("perfetto", "chrome")
LONGEST: Final = "longest"

_OnItem = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """What to write of a run, and where.

    Attributes:
        to: one of :data:`FORMATS`, or empty.
        form: csv or json, of a summary or a timeline; or empty.
        out: the file or folder to write.
        rank: this one only.
        start: only from this many seconds after the run began.
        until: only up to this many seconds after that.
        path: number of the step whose critical path is drawn, or ``longest``; or empty.
    """

    to: str
    form: str
    out: Path
    rank: int | None = None
    start: float | None = None
    until: float | None = None
    path: str = ""


def export(
    words: Sequence[str],
    options: ExportOptions,
    executor: Executor | None = None,
    *,
    last: bool = False,
) -> None:
    """Write a run in another format and print each file.

    Args:
        words: a run folder, a log directory with one run, or traces; maybe one of :data:`KINDS`
            before it.
        options: what to write, and where.
        executor: does the work of each rank.
        last: the newest run of the log directory, or of the one that ``words`` end with.

    Raises:
        HaiprofError: there is no such run, rank or time, or a file cannot be written.
        UsageError: there is no such format, or it has no such option; or no run is named.
    """
    given = words[-1] if words and _names_run(words[-1], last=last) else None
    kinds = words if given is None else words[:-1]
    _check(kinds, options)
    run = one_run(given, last=last)
    opened = open_run(run, executor)
    if options.start is not None or options.until is not None:
        until = math.inf if options.until is None else options.until
        opened = opened.between(options.start or 0.0, until)
    if not kinds and options.to in ("", "csv"):
        written = _views(opened, run, options.out)
    elif options.to in _OF_STACKS:
        from haiprof.export import stack_texts

        written = stack_texts.write(opened, options.out, options.to, options.rank)
    else:
        from haiprof.export.chosen import chosen, traced

        # These two also write what belongs to nodes.
        all_of = chosen if options.to in ("perfetto", "parquet") else traced
        with things_done(len(all_of(opened, options.rank))) as on_item:
            if kinds:
                written = _as_msprof(opened, kinds[0], options, on_item)
            else:
                written = _in_format(opened, options, on_item)
    say_problems(opened)
    for file in written:
        print(printable(str(file)))


def _names_run(word: str, *, last: bool) -> bool:
    return word not in KINDS or (not last and Path(word).exists())


def _check(kinds: Sequence[str], options: ExportOptions) -> None:
    to, form = options.to, options.form
    if len(kinds) > 1 or (kinds and kinds[0] not in KINDS):
        hint = did_you_mean(kinds[0], KINDS) if len(kinds) == 1 else ""
        which = f"{hint} choose {' or '.join(KINDS)}".lstrip()
        raise UsageError(f"{kinds[0]}: is not a kind of export: {which}")
    if kinds and to:
        raise UsageError(f"--to {to}: a {kinds[0]} has none: choose csv or json with --format")
    if form and (not kinds or form not in KINDS.values()):
        raise UsageError(
            f"--format {form}: choose csv or json, of a {' or '.join(KINDS)}"
            if kinds
            else f"--format {form}: only a {' or '.join(KINDS)} has one: see --to"
        )
    if to and to not in FORMATS:
        which = f"{did_you_mean(to, FORMATS)} choose {' or '.join(FORMATS)}".lstrip()
        raise UsageError(f"--to {to}: is not a format: {which}")
    if options.rank is not None and not kinds and to in ("", "csv"):
        raise UsageError("--rank: the views as CSV are of all ranks: choose another --to")
    if options.path and (kinds or to not in _WITH_PATH):
        raise UsageError(f"--critical-path: choose --to {' or '.join(_WITH_PATH)}")
    if options.path and options.path != LONGEST and not options.path.isdecimal():
        raise UsageError(f"--critical-path {options.path}: give the number of a step, or {LONGEST}")
    start, until = options.start or 0.0, options.until
    if not 0 <= start < math.inf:
        raise UsageError(f"--from {start:g}: give seconds after the run began, from 0 on")
    if until is not None and not until > start:
        raise UsageError(f"--until {until:g}: give more seconds than --from has ({start:g})")


def _views(opened: Analyzer, run: str, out: Path) -> list[Path]:
    from haiprof.export import csv

    with things_done(len(csv.VIEWS)) as on_item:
        written = csv.write(opened, out, on_item)
    if not written:
        raise HaiprofError(f"{run}: no view of this run has a row, so nothing was written")
    return written


def _in_format(opened: Analyzer, options: ExportOptions, on_item: _OnItem) -> list[Path]:
    from haiprof.export import chrome, critical_path, parquet, perfetto, tensorboard

    paths = None
    if options.path:
        step = None if options.path == LONGEST else int(options.path)
        paths = critical_path.paths(opened, options.rank, step)
    if options.to == "perfetto":
        clock = opened.clock_by_node()
        perfetto.write(opened, options.out, options.rank, clock, on_item, paths)
        return [options.out]
    if options.to == "chrome":
        return chrome.write(opened, options.out, options.rank, on_item, paths=paths)
    if options.to == "tensorboard":
        return tensorboard.write(opened, options.out, options.rank, on_item)
    return parquet.write(opened, options.out, options.rank, on_item)


def _as_msprof(opened: Analyzer, kind: str, options: ExportOptions, on_item: _OnItem) -> list[Path]:
    from haiprof.export import msprof

    write = msprof.write_summary if kind == "summary" else msprof.write_timeline
    form = cast(Literal["csv", "json"], options.form or KINDS[kind])
    return write(opened, options.out, options.rank, form, on_item)
