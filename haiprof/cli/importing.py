"""``haiprof import``: reads traces once and for all, so that they open at once from then on."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from haiprof.cli.console import say
from haiprof.errors import HaiprofError
from haiprof.printable import printable


def import_traces(path: str, out: Path | None) -> None:
    """Import the traces at ``path`` and print where the import is.

    What is missing of them is said on stderr, one line each.

    Args:
        path: a trace, a folder of them, or a URL of fsspec.
        out: the folder to write; beside the traces when None.

    Raises:
        HaiprofError: there are no traces, none can be read, or the import cannot be written.
    """
    from haiprof import schema
    from haiprof.sources.kineto.find import find
    from haiprof.sources.kineto.kept import keep, place_of, why_not_fresh

    signal.siginterrupt(signal.SIGINT, True)
    found = find(path)
    if found is None:
        raise HaiprofError(f"{path}: no traces (*.json) in it: give a trace or a folder of some")
    place = out or place_of(found)
    if place is None:
        raise HaiprofError(f"{path}: an import cannot be kept there: give a folder with --out")
    if why_not_fresh(found, place) is None:
        print(f"{printable(str(place))} (was up to date)")
    else:
        with _bar("reading traces", sum(source.bytes for source in found.sources)) as told:
            keep(found, place, told=told)
        print(printable(str(place)))
    for line in json.loads((place / schema.RUN_FILE).read_text("utf-8")).get("problems", []):
        say(line)


@contextlib.contextmanager
def _bar(text: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a bar on a terminal while the body runs; yield what moves it on by some bytes."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn(text), BarColumn(), DownloadColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(text, total=total or None)
        yield lambda count: progress.advance(task, count)
