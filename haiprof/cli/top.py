"""``haiprof top``: shows a running job in the terminal, from what its recorder writes."""

from __future__ import annotations

import os
import shutil
import sys
from typing import Final

from rich.console import Console

from haiprof.cli.live_runs import choose, recorder_lives
from haiprof.common.places import ring_dirs
from haiprof.recorder.launch import ring_doorbell
from haiprof.show.live.frame import lines
from haiprof.show.live.job import Job
from haiprof.show.live.terminal import Terminal, render

#: Of a frame's interval, and s at most: what reading may take. The rest is read for the next frame.
_READING: Final = 0.5
_MOST_READING: Final = 0.15


def top(what: str | None, hz: float, once: bool) -> None:
    """Show a run until ``q``; one frame where stdout is no terminal, or with ``once``.

    Args:
        what: a run's folder, a log directory, a pid or a name; None: what is recorded here.
        hz: frames per second.
        once: print one frame and return.

    Raises:
        HaiprofError: there is no such run, or it cannot be read.
        OSError: the terminal is gone.
    """
    folder, others = choose(what)
    job = Job(folder, lambda: recorder_lives(folder))
    if once or not _whole_screen():
        _print(job, others)
        return
    console = Console(file=sys.stdout, highlight=False)
    reading = min(_MOST_READING, _READING / hz)
    try:
        with Terminal(console) as terminal:
            while True:
                for rings in ring_dirs(folder):
                    ring_doorbell(rings)  # so that what is shown is no older than a frame or two
                job.shows_places = terminal.places
                job.look(reading)
                width, height = _size()
                console.width = width
                terminal.draw(lines(job, width, height, others))
                if not terminal.wait(1 / hz):
                    return
    except KeyboardInterrupt:
        return  # the usual way to quit


def _print(job: Job, others: tuple[str, ...]) -> None:
    job.look(float("inf"))
    width, height = shutil.get_terminal_size((80, 24))
    console = Console(file=sys.stdout, highlight=False, width=width)
    print("\n".join(render(console, lines(job, width, height, others, fill=False))))


def _whole_screen() -> bool:
    return sys.stdout.isatty() and os.environ.get("TERM", "") not in ("", "dumb", "unknown")


def _size() -> tuple[int, int]:
    """Return columns and rows of the terminal as it is now, whatever the environment says."""
    try:
        width, height = os.get_terminal_size(sys.stdout.fileno())
    except OSError:
        width = height = 0
    return width or 80, height or 24
