"""``haiprof report``: writes a run's report as one HTML file."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING

from haiprof.cli.console import spinner
from haiprof.printable import printable

if TYPE_CHECKING:
    from haiprof.analyzer import Analyzer


def open_run(path: Path) -> Analyzer:
    """Open a run so that Ctrl-C works while it is read.

    Raises:
        HaiprofError: there is no such run, or it cannot be read.
    """
    from haiprof.analyzer import Analyzer

    # polars has calls restarted that SIGINT interrupts: a read from a file server that hangs would
    # go on for ever.
    signal.siginterrupt(signal.SIGINT, True)
    return Analyzer(path)


def write_report(run: Path, output: Path | None) -> None:
    """Write the report and print where it is and the three most telling lines.

    Args:
        run: a run folder, or a log directory with one run.
        output: the file to write; ``report.html`` in the run's folder when None.

    Raises:
        HaiprofError: there is no such run, it cannot be read, or the file cannot be written.
    """
    with spinner("reading the run"):
        opened = open_run(run)
        lines = opened.headline()
    with spinner("writing the report"):
        written = opened.report(output or opened.run.folder / "report.html")
    print(printable(str(written)))
    for line in lines:
        print(f"  {printable(line)}")
