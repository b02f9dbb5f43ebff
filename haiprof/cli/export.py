"""``haiprof export``: writes what a run tells for other programs."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from haiprof.cli.report import open_run
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
    with bar(len(csv.VIEWS)) as told:
        written = csv.write(opened, out, told)
    if not written:
        raise HaiprofError(f"{run}: no view of this run has a row, so nothing was written")
    for file in written:
        print(printable(str(file)))


@contextlib.contextmanager
def bar(total: int) -> Iterator[Callable[[str], None]]:
    """Show a bar on a terminal while the body runs; yield what moves it on to the next view."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=total)

        def told(name: str) -> None:
            progress.update(task, advance=1, description=name)

        yield told
