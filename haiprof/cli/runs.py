"""``haiprof runs``: all runs of a log directory, those that lost most GPU hours first."""

from __future__ import annotations

import json
import re
import shutil
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Executor
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from haiprof.cli.arguments import UsageError
from haiprof.cli.logged import log_dir
from haiprof.cli.ls import recorder_lives
from haiprof.cli.process.columns import aligned, local_time
from haiprof.cli.process.console import say
from haiprof.cli.process.interrupts import interruptible
from haiprof.cli.process.progress import rows_made
from haiprof.common.choices import quoted, unknown
from haiprof.common.numbers import hours, milliseconds, percent
from haiprof.common.printable import printable
from haiprof.errors import HaiprofError
from haiprof.show.grid import NOTHING
from haiprof.show.run_hours import main_cause, total

if TYPE_CHECKING:
    import polars as pl

#: Of the JSON; a minor version only adds fields.
FORMAT: Final = "haiprof-runs"
VERSION: Final = "1.0"
#: Runs that are listed unless all are wanted.
_MOST: Final = 50
_SPAN: Final = re.compile(r"(\d{1,6}(?:\.\d{1,6})?)([smhdw])")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
#: Letters of a run's name that are shown where there is no room for more, and of its state.
_NAME: Final = 24
_STATE: Final = 12
_PROBLEM: Final = 60
_BETWEEN: Final = 2


class Wanted(NamedTuple):
    """Which runs, and how they are shown."""

    since: str = ""
    user: str = ""
    all_runs: bool = False
    as_json: bool = False
    html: Path | None = None


def show_runs(where: str | None, wanted: Wanted, executor: Executor | None = None) -> None:
    """Print a line for each run, or all of them as JSON, or write them as a page.

    Args:
        where: a log directory, a folder with such folders, a run, or a URL; None: the log
            directory of this environment.
        wanted: see there.
        executor: sums up the runs.

    Raises:
        HaiprofError: there is no run, the folder cannot be read, or the page not be written.
        UsageError: ``since`` is no time.
    """
    since_ns = _since(wanted.since) if wanted.since else None
    place = str(log_dir()) if where is None else where
    interruptible()
    from haiprof.answers.all_runs import all_runs

    notes: list[str] = []
    with rows_made("summing up runs") as on_row:
        found = all_runs(
            place,
            executor,
            since_ns=since_ns,
            lives=recorder_lives,
            on_row=on_row,
            note=notes.append,
        )
    for line in notes:
        say(f"the index of the runs is not kept, so all are summed up again next time: {line}")
    if wanted.user:
        found = _of_user(found, wanted.user)
    if wanted.html is not None:
        from haiprof.show.page.all_runs import write

        print(printable(str(write(found, place, wanted.html))))
    if wanted.as_json:
        document = {"format": FORMAT, "version": VERSION, "folder": place}
        json.dump({**document, "runs": found.to_dicts()}, sys.stdout, indent=1)
        print()
    elif wanted.html is None:
        for line in _lines(found, place, wanted):
            print(printable(line))


def _since(text: str) -> int:
    """Return a time, ns UTC, that is given as a date or as how long ago it was."""
    span = _SPAN.fullmatch(text)
    if span is not None:
        return time.time_ns() - round(float(span[1]) * _SECONDS[span[2]] * 1e9)
    try:
        return round(datetime.fromisoformat(text).timestamp() * 1e9)
    except (ValueError, OverflowError, OSError):
        raise UsageError(
            f"--since {quoted(text)}: give a date, as in 2026-03-14 or 2026-03-14T16:30, or how "
            "long ago, as in 7d, 12h or 90m"
        ) from None


def _of_user(found: pl.DataFrame, user: str) -> pl.DataFrame:
    import polars as pl

    mine = found.filter((pl.col("user") == user) | (pl.col("owner") == user))
    if found.height and not mine.height:
        known = pl.concat([found["user"], found["owner"]]).drop_nulls().unique()
        raise HaiprofError(f"--user {quoted(user)}: no run is theirs: {unknown(user, known)}")
    return mine


# -- the table -----------------------------------------------------------------------------------


def _lines(found: pl.DataFrame, place: str, wanted: Wanted) -> list[str]:
    if not found.height:
        if wanted.since:
            return [f"no run in {place} went on since then"]
        raise HaiprofError(f"{place}: no run lies in it: give a log directory")
    shown = found if wanted.all_runs else found.head(_MOST)
    table = _table(list(shown.iter_rows(named=True)), _width())
    lines = [total(found), *aligned(table)]
    if found.height > shown.height:
        lines.append(f"and {found.height - shown.height} that lost less: --all lists them, too")
    return lines


def _width() -> int:
    return max(80, shutil.get_terminal_size((80, 24)).columns)


def _table(rows: Sequence[dict[str, Any]], width: int) -> list[list[str]]:
    """Lay out the rows: the telling columns first, and more as far as there is room."""
    columns = [[heading, *(cell(row) for row in rows)] for heading, cell in _FIRST]
    used = sum(max(map(len, column)) + _BETWEEN for column in columns) - _BETWEEN
    if used > width:
        state = columns[-1]
        rest = used - max(map(len, state))
        if width - rest < _STATE:
            name = columns[3]
            spare = width - _STATE - (rest - max(map(len, name)))
            columns[3] = [_ending(text, max(_NAME, spare)) for text in name]
            rest += max(map(len, columns[3])) - max(map(len, name))
        columns[-1] = [_beginning(text, max(_STATE, width - rest)) for text in state]
    for heading, cell in _FURTHER if used <= width else ():
        column = [heading, *(cell(row) for row in rows)]
        used += max(map(len, column)) + _BETWEEN
        if used > width:
            break
        columns.append(column)
    return [list(line) for line in zip(*columns, strict=True)]


def _ending(text: str, most: int) -> str:
    return text if len(text) <= most else f"…{text[1 - most :]}"


def _beginning(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _lost(row: dict[str, Any]) -> str:
    for unit, word in (("gpu", "GPU"), ("rank", "rank")):
        if row[f"{unit}_hours_lost"] is not None:
            return f"{hours(row[f'{unit}_hours_lost'])} {word} h"
    return NOTHING


def _lost_share(row: dict[str, Any]) -> str:
    lost, had = row["rank_hours_lost"], row["rank_hours"]
    return percent(lost / had) if had and lost is not None else NOTHING


def _state(row: dict[str, Any]) -> str:
    """Return how the run ended, and what could not be read of it, without the advice."""
    problem = ": ".join((row["problem"] or "").split(": ")[:2])
    parts = [part for part in (row["state"], _beginning(problem, _PROBLEM)) if part]
    return "; ".join(parts) or NOTHING


def _percent(name: str) -> Any:
    return lambda row: NOTHING if row[name] is None else percent(row[name])


def _text(name: str) -> Any:
    return lambda row: NOTHING if row[name] is None else str(row[name])


def _trend(row: dict[str, Any]) -> str:
    change = row["step_trend"]
    if change is None:
        return NOTHING
    return f"{'+' if change >= 0 else '-'}{percent(abs(change))}"


_FIRST: Final = (
    ("LOST", _lost),
    ("SHARE", _lost_share),
    ("MOSTLY TO", main_cause),
    ("RUN", lambda row: row["folder"] or row["run"]),
    ("USER", _text("user")),
    ("STATE", _state),
)
_FURTHER: Final = (
    ("WHEN", lambda row: local_time(row["started"])),
    ("GPUS", _text("gpus")),
    ("STEP", lambda row: NOTHING if row["step_ns"] is None else milliseconds(row["step_ns"])),
    ("BUSY", _percent("gpu_busy_share")),
    ("MFU", _percent("mfu")),
    ("DATA", _percent("data_share")),
    ("COMM", _percent("exposed_communication_share")),
    ("GOODPUT", _percent("goodput")),
    ("TREND", _trend),
    ("RANKS", _text("ranks")),
    ("STEPS", _text("steps")),
    ("FINDING", lambda row: row["finding"] or NOTHING),
)
