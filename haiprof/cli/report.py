"""``haiprof report``: writes a run's report as one HTML file."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from haiprof.cli.logged import meant
from haiprof.cli.process.console import say, spinner
from haiprof.cli.process.executors import executor_of
from haiprof.cli.process.interrupts import interruptible
from haiprof.cli.process.progress import bytes_read, on_terminal
from haiprof.common.printable import printable
from haiprof.errors import HaiprofError
from haiprof.sources.found import has_beside

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from haiprof.analyzer import Analyzer
    from haiprof.runs import Run

_NAME: Final = "report.html"


def open_run(path: str | Path, executor: Executor | None = None) -> Analyzer:
    """Open a run so that Ctrl-C works while it is read; ``executor`` runs the work of each rank.

    Raises:
        HaiprofError: there is no such run, or it cannot be read.
    """
    from haiprof.analyzer import Analyzer

    path = meant(path)
    interruptible()
    size = _size(path) if on_terminal() else None
    if size is None:
        with spinner("reading the run"):
            return Analyzer(path, executor)
    with bytes_read("reading traces", size) as on_bytes:
        return Analyzer(path, executor, on_bytes)


def _size(path: str | Path) -> int | None:
    """Return how many bytes of traces there are to be read, None of a run that was recorded."""
    from haiprof import schema
    from haiprof.sources.imports.formats import find

    if (Path(path) / schema.RUN_FILE).exists():
        return None
    with contextlib.suppress(HaiprofError):  # opening it will report that
        found = find(str(path))
        if found is not None:
            return found.bytes
    return None


def say_problems(opened: Analyzer) -> None:
    """Report on stderr what could not be read of traces: one line, and where to see the others."""
    problems = opened.problems() if opened.traced else []
    if problems:
        more = f" (and {len(problems) - 1} more: see the report)" if len(problems) > 1 else ""
        say(f"{problems[0]}{more}")


def write_report(
    run: str | Path,
    output: Path | None,
    workers: int | None = None,
    dask: str | None = None,
    *,
    before: str | Path | None = None,
    show: bool = False,
) -> None:
    """Write the report and print its path and the headline.

    Args:
        run: a run folder, a log directory with one run, or traces.
        output: the file to write; ``report.html`` in the folder of the run or the traces, or
            beside the one trace, when None.
        workers: see :func:`haiprof.cli.process.executors.executor_of`.
        dask: see there.
        before: an earlier run, or earlier traces, that it is compared with.
        show: open it in a web browser.

    Raises:
        HaiprofError: there is no such run, it cannot be read, or the file cannot be written.
    """
    with executor_of(workers, dask) as executor:
        opened = open_run(run, executor)
        earlier = None if before is None else open_run(before, executor)
        with spinner("writing the report"):
            lines = opened.headline()
            written = opened.report(output or _place(opened.run), before=earlier)
        say_problems(opened)
    print(printable(str(written)))
    for line in lines:
        print(f"  {printable(line)}")
    if show:
        open_in_browser(Path(written).absolute().as_uri())


def open_in_browser(link: str) -> None:
    """Show a page in a browser of this machine's screen."""
    import webbrowser

    sys.stdout.flush()  # a browser in this terminal writes there, too
    try:
        shown = bool(os.environ.get("BROWSER") or _has_screen()) and webbrowser.open(link)
    except webbrowser.Error:
        shown = False
    if not shown:
        say(f"no web browser could be started here; open this where there is one: {link}")


def _has_screen() -> bool:
    # Without one, webbrowser takes a browser that fills this terminal.
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _place(run: Run) -> Path:
    source = Path(run.source or run.folder)
    if source.is_dir():
        return source / _NAME
    # Beside a trace; for one behind a URL or in a pipe here.
    name = f"{source.name}.{_NAME}"
    return source.with_name(name) if has_beside(str(source)) else Path(name)
