"""``haiprof view``: shows a run in a browser of this machine, and follows a running one."""

from __future__ import annotations

from pathlib import Path

from haiprof.cli.logged import meant
from haiprof.cli.process.console import spinner
from haiprof.cli.process.interrupts import interruptible
from haiprof.cli.report import open_in_browser
from haiprof.common.printable import printable
from haiprof.errors import HaiprofError


def view(run: str, port: int, *, show: bool) -> None:
    """Serve the page of a run until Ctrl-C.

    Args:
        run: a run folder, or a log directory with one run.
        port: to listen on; 0: any.
        show: open it in a web browser.

    Raises:
        HaiprofError: there is no such run, it cannot be read, or the port is taken.
    """
    from haiprof.analyzer import Analyzer
    from haiprof.show.page.serve import Pages, Server

    path = meant(run)
    interruptible()
    with spinner("reading the run"):
        folder = Path(Analyzer(path).run.folder)
        pages = Pages(folder, lambda: Analyzer(path))
    try:
        server = Server(pages, port)
    except OSError as error:
        raise HaiprofError(f"--port {port}: {error.strerror}: choose another, or none") from None
    with server:
        print(printable(server.link), flush=True)
        if show:
            open_in_browser(server.link)
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            print(flush=True)
