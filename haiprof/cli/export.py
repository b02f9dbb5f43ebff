"""``haiprof export``: writes what a run tells for other programs."""

from __future__ import annotations

from pathlib import Path

from haiprof.cli.progress import things_done
from haiprof.cli.report import open_run, say_problems
from haiprof.errors import HaiprofError
from haiprof.printable import printable

#: What can be written.
FORMATS = ("csv",)


def export(run: str, to: str, out: Path) -> None:
    """Write a run in another format and print each file.

    Args:
        run: a run folder, a log directory with one run, or traces.
        to: one of :data:`FORMATS`.
        out: the folder to write.

    Raises:
        HaiprofError: there is no such run or format, or a file cannot be written.
    """
    if to not in FORMATS:
        raise HaiprofError(f"--to {to}: is no format: choose {' or '.join(FORMATS)}")
    from haiprof.export import csv

    opened = open_run(run)
    with things_done(len(csv.VIEWS)) as told:
        written = csv.write(opened, out, told)
    if not written:
        raise HaiprofError(f"{run}: no view of this run has a row, so nothing was written")
    say_problems(opened)
    for file in written:
        print(printable(str(file)))
