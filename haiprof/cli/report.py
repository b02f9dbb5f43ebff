"""``haiprof report``: writes a run's report as one HTML file."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Final

from haiprof.cli.console import spinner
from haiprof.printable import printable

if TYPE_CHECKING:
    from haiprof.analyzer import Analyzer
    from haiprof.sources.own import Run

_NAME: Final = "report.html"


def open_run(path: str | Path) -> Analyzer:
    """Open a run so that Ctrl-C works while it is read.

    Raises:
        HaiprofError: there is no such run, or it cannot be read.
    """
    from haiprof.analyzer import Analyzer

    # polars has calls restarted that SIGINT interrupts: a read from a file server that hangs would
    # go on for ever.
    signal.siginterrupt(signal.SIGINT, True)
    return Analyzer(path)


def write_report(run: str | Path, output: Path | None) -> None:
    """Write the report and print where it is and the three most telling lines.

    Args:
        run: a run folder, a log directory with one run, or traces.
        output: the file to write; ``report.html`` in the folder of the run or the traces, or
            beside the one trace, when None.

    Raises:
        HaiprofError: there is no such run, it cannot be read, or the file cannot be written.
    """
    with spinner("reading the run"):
        opened = open_run(run)
        lines = opened.headline()
    with spinner("writing the report"):
        written = opened.report(output or _place(opened.run))
    print(printable(str(written)))
    for line in lines:
        print(f"  {printable(line)}")


def _place(run: Run) -> Path:
    source = Path(run.source or run.folder)
    if source.is_dir():
        return source / _NAME
    # Beside a trace; for one behind a URL here.
    name = f"{source.name}.{_NAME}"
    return source.with_name(name) if source.exists() else Path(name)
