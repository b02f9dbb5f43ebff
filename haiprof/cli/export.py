"""``haiprof export``: writes what a run tells for other programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, cast

from haiprof.cli.progress import things_done
from haiprof.cli.report import open_run, say_problems
from haiprof.errors import HaiprofError
from haiprof.printable import printable

if TYPE_CHECKING:
    from haiprof.analyzer import Analyzer

#: What can be written.
FORMATS: Final = ("csv", "perfetto", "chrome", "tensorboard", "parquet")
#: In msprof's manner: what stands before the run, and which form it has if none is asked for.
KINDS: Final = {"summary": "csv", "timeline": "json"}

_Told = Callable[[str], None]


def export(words: Sequence[str], to: str, form: str, out: Path, rank: int | None) -> None:
    """Write a run in another format and print each file.

    Args:
        words: a run folder, a log directory with one run, or traces; maybe one of :data:`KINDS`
            before it.
        to: one of :data:`FORMATS`, or empty.
        form: csv or json, of a summary or a timeline; or empty.
        out: the file or folder to write.
        rank: this one only.

    Raises:
        HaiprofError: there is no such run, rank or format, or a file cannot be written.
    """
    *kinds, run = words
    if len(kinds) > 1 or (kinds and kinds[0] not in KINDS):
        raise HaiprofError(f"{words[0]}: is no kind of export: choose {' or '.join(KINDS)}")
    if kinds and to:
        raise HaiprofError(f"--to {to}: a {kinds[0]} has none: choose csv or json with --format")
    if form and (not kinds or form not in KINDS.values()):
        raise HaiprofError(
            f"--format {form}: choose csv or json, of a {' or '.join(KINDS)}"
            if kinds
            else f"--format {form}: only a {' or '.join(KINDS)} has one: see --to"
        )
    if to and to not in FORMATS:
        raise HaiprofError(f"--to {to}: is no format: choose {' or '.join(FORMATS)}")
    if not kinds and to in ("", "csv"):
        if rank is not None:
            raise HaiprofError("--rank: the views as CSV are of all ranks: choose another --to")
        opened = open_run(run)
        written = _views(opened, run, out)
    else:
        from haiprof.export.chosen import chosen, traced

        opened = open_run(run)
        # What these two write is of nodes too.
        every = (chosen if to in ("perfetto", "parquet") else traced)(opened, rank)
        with things_done(len(every)) as told:
            if kinds:
                written = _as_msprof(opened, kinds[0], form or KINDS[kinds[0]], out, rank, told)
            else:
                written = _in_format(opened, to, out, rank, told)
    say_problems(opened)
    for file in written:
        print(printable(str(file)))


def _views(opened: Analyzer, run: str, out: Path) -> list[Path]:
    from haiprof.export import csv

    with things_done(len(csv.VIEWS)) as told:
        written = csv.write(opened, out, told)
    if not written:
        raise HaiprofError(f"{run}: no view of this run has a row, so nothing was written")
    return written


def _in_format(opened: Analyzer, to: str, out: Path, rank: int | None, told: _Told) -> list[Path]:
    from haiprof.export import chrome, parquet, perfetto, tensorboard

    if to == "perfetto":
        perfetto.write(opened, out, rank, opened.clock_by_node(), told)
        return [out]
    if to == "chrome":
        return chrome.write(opened, out, rank, told)
    if to == "tensorboard":
        return tensorboard.write(opened, out, rank, told)
    return parquet.write(opened, out, rank, told)


def _as_msprof(
    opened: Analyzer, kind: str, form: str, out: Path, rank: int | None, told: _Told
) -> list[Path]:
    from haiprof.export import msprof

    write = msprof.write_summary if kind == "summary" else msprof.write_timeline
    return write(opened, out, rank, cast(Literal["csv", "json"], form), told)
