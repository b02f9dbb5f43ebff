"""Bars on the terminal while something is read or written; nothing where there is no terminal.

Tests: tests/cli/test_report.py.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator


def on_terminal() -> bool:
    """Whether somebody would see a bar."""
    return sys.stderr is not None and sys.stderr.isatty()


@contextlib.contextmanager
def bytes_read(text: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a bar while the body runs; yield what advances it by some bytes, from any thread."""
    if not on_terminal():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn(text), BarColumn(), DownloadColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(text, total=total or None)
        yield lambda count: progress.advance(task, count)


@contextlib.contextmanager
def things_done(total: int) -> Iterator[Callable[[str], None]]:
    """Show a bar while the body runs; yield what advances it to the next item, given its name."""
    if not on_terminal():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=total)

        def report(name: str) -> None:
            progress.update(task, advance=1, description=name)

        yield report


@contextlib.contextmanager
def rows_made(text: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar while the body runs; yield what takes how many are made, and of how many."""
    if not on_terminal():
        yield lambda made, of: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = TextColumn(text), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(text, total=None)
        yield lambda made, of: progress.update(task, completed=made, total=of)


@contextlib.contextmanager
def seconds_passing(
    text: str, seconds: float, plain: Callable[[str], None] | None = None
) -> Iterator[Callable[[float], None]]:
    """Show a bar of ``seconds`` while the body runs; yield what takes how many have passed.

    Args:
        text: beside the bar.
        seconds: its length.
        plain: where there is no terminal it takes a line at the start, and one at the end.
    """
    if not on_terminal():
        if plain is None:
            yield lambda _: None
            return
        plain(f"{text} for {seconds:g} s")
        at = [0.0]
        yield lambda passed: at.__setitem__(0, passed)
        plain(f"{text}: over after {min(at[0], seconds):.0f} of {seconds:g} s; closing the files")
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn(text), BarColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(text, total=seconds)
        yield lambda passed: progress.update(task, completed=passed)
