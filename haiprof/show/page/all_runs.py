"""The page of all runs: what their hours were lost to, and a table to sort and search.

It is the report's page with other sections.

Tests: tests/cli/test_runs.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from haiprof.common.numbers import hours, milliseconds, percent, utc
from haiprof.common.owned_files import replace_or_fill
from haiprof.common.printable import printable
from haiprof.errors import HaiprofError
from haiprof.show.grid import NOTHING, Grid, cut
from haiprof.show.page import document
from haiprof.show.page.build import Built
from haiprof.show.page.context import table
from haiprof.show.page.write import to_html
from haiprof.show.run_hours import main_cause, total, words

if TYPE_CHECKING:
    import polars as pl

#: A column: its heading, what of a row it shows, and how that is written.
_Column = tuple[str, str, Callable[[Any], str]]
#: Runs that have a bar: those that lost most.
_BARS: Final = 30
#: Rows of the table; the JSON has all.
_ROWS: Final = 10_000
_HELP: Final = (
    "Hours are those of the GPUs, or where there are none of the ranks. Shares of data and "
    "communication are of the steps; busy and power are of a GPU, on average; the trend is how "
    "much longer a step takes in the last quarter than in the first. A dash: not known."
)


def write(found: pl.DataFrame, where: str, path: Path) -> Path:
    """Write the page to ``path``; a file of that name is replaced only by a whole new one.

    Args:
        found: as :func:`haiprof.answers.all_runs.all_runs` returns it.
        where: the log directory, or its URL.
        path: the file to write.

    Raises:
        HaiprofError: the file cannot be written.
    """
    content = to_html(build(found, where)).encode("utf-8", "replace")
    # In the log directory a link may be somebody else's.
    try:
        beside = Path(where).is_dir() and Path(where).samefile(path.parent)
        replace_or_fill(path, content, through=not beside)
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise HaiprofError(f"{path}: cannot be written ({reason}): choose another file") from None
    return path


def build(found: pl.DataFrame, where: str) -> Built:
    """Return the page, as data."""
    from haiprof import __version__

    rows = list(found.iter_rows(named=True))
    name = cut(printable(where))
    tab: document.Tab = {"id": "runs", "title": "All runs", "sections": _sections(rows)}
    whole: document.Document = {
        "format": document.FORMAT,
        "title": f"haiprof: runs of {name}",
        "name": f"Runs of {name}",
        "facts": [f"{utc(time.time_ns())[:16]} UTC"],
        "origin_ns": "0",
        "duration": 0.0,
        "headline": [cut(total(found))],
        "ranks": [],
        "chosen_ranks": [],
        "tabs": [tab],
        "made_by": f"haiprof {__version__}",
    }
    return Built(whole, [])


def _sections(rows: Sequence[dict[str, Any]]) -> list[document.Section]:
    sections: list[document.Section] = []
    for unit, word in (("gpu", "GPU"), ("rank", "rank")):
        of = [row for row in rows if (row["gpu_hours"] is None) == (unit == "rank")]
        lost = [row for row in of if row["lost_shares"] and row[f"{unit}_hours_lost"]]
        if lost:
            sections.append(_bars(lost, unit, word))
    shown = [_with(row) for row in rows[:_ROWS]]
    note = _HELP if len(shown) == len(rows) else f"{len(shown)} of {len(rows)} runs. {_HELP}"
    grids = {
        "all-runs": _grid("All runs", _COLUMNS, shown, note),
        "what-they-are": _grid("What was run, and what was found", _TEXTS, shown, ""),
    }
    for name, grid in grids.items():
        section = table(grid, name)
        if not rows:
            section["empty"] = "There is no run."
        sections.append(section)
    return sections


def _grid(
    title: str, columns: Sequence[_Column], rows: Sequence[dict[str, Any]], note: str
) -> Grid:
    """Lay out a table, without the columns of which nothing is known."""
    of_cpu = any(row["gpu_hours"] is None for row in rows)

    def is_known(name: str) -> bool:
        if name.startswith("rank_hours") and not of_cpu:
            return False
        return name == "place" or any(row[name] is not None for row in rows)

    known = [column for column in columns if is_known(column[1])]
    numbers = [n for n, (_, name, _) in enumerate(known) if name in _NUMBERS]
    return Grid(
        title,
        [heading for heading, _, _ in known],
        [[cut(_written(write, row[name])) for _, name, write in known] for row in rows],
        frozenset(numbers),
        note,
        {n: [_number(row[known[n][1]]) for row in rows] for n in numbers},
    )


def _bars(rows: Sequence[dict[str, Any]], unit: str, word: str) -> document.Bars:
    shown = rows[:_BARS]
    causes = [c for c in shown[0]["lost_shares"] if any(row["lost_shares"][c] for row in shown)]
    section: document.Bars = {
        "kind": "bars",
        "id": f"lost-{unit}",
        "title": f"{word} hours lost, by what they were lost to",
        "unit": f"{word} h",
        "categories": [cut(row["folder"] or row["run"]) for row in shown],
        "parts": [
            {
                "name": words(cause),
                "values": [
                    _product(row["lost_shares"][cause], row[f"{unit}_hours"]) for row in shown
                ],
            }
            for cause in causes
        ],
        "stacked": True,
    }
    if len(shown) < len(rows):
        section["note"] = f"The {len(shown)} of {len(rows)} runs that lost most."
    return section


def _product(share: float | None, of: float | None) -> float | None:
    return None if share is None or of is None else share * of


def _with(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with what only the table has."""
    state = row["state"] if row["problem"] is None else f"{row['state'] or ''}; {row['problem']}"
    others = (row["findings"] or [])[1:]
    finding = row["finding"] and (
        f"{row['finding']}; {', '.join(others)}" if others else row["finding"]
    )
    of = {"to": main_cause(row), "state": state and state.removeprefix("; "), "finding": finding}
    return {**row, **of, "place": row["folder"] or row["run"]}


def _written(write: Callable[[Any], str], value: Any) -> str:
    return NOTHING if value is None else write(value)


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _watts(value: float) -> str:
    return f"{value:.0f} W"


def _signed(value: float) -> str:
    return f"{'+' if value >= 0 else '-'}{percent(abs(value))}"


def _when(time_ns: int) -> str:
    try:
        return utc(time_ns)[:16]
    except (OverflowError, ValueError, OSError):  # of a document that was forged
        return NOTHING


def _lasted(ns: int) -> str:
    return f"{hours(ns / 3.6e12)} h"


_COLUMNS: Final[tuple[_Column, ...]] = (
    ("run", "place", str),
    ("user", "user", str),
    ("GPU h lost", "gpu_hours_lost", hours),
    ("of", "gpu_hours", hours),
    ("rank h lost", "rank_hours_lost", hours),
    ("of", "rank_hours", hours),
    ("mostly to", "to", str),
    ("state", "state", str),
    ("began (UTC)", "started", _when),
    ("lasted", "duration", _lasted),
    ("GPUs", "gpus", str),
    ("ranks", "ranks", str),
    ("steps", "steps", str),
    ("step", "step_ns", milliseconds),
    ("trend", "step_trend", _signed),
    ("data", "data_share", percent),
    ("comm.", "exposed_communication_share", percent),
    ("busy", "gpu_busy_share", percent),
    ("power", "gpu_power_watts", _watts),
    ("MFU", "mfu", percent),
    ("goodput", "goodput", percent),
)
_TEXTS: Final[tuple[_Column, ...]] = (
    ("run", "place", str),
    ("findings", "finding", str),
    ("command", "command", str),
    ("host", "host", str),
    ("GPU", "gpu", str),
)
_NUMBERS: Final = frozenset(
    ("gpu_hours_lost", "gpu_hours", "rank_hours_lost", "rank_hours", "started", "duration", "gpus",
     "ranks", "steps", "step_ns", "step_trend", "data_share", "exposed_communication_share",
     "gpu_busy_share", "gpu_power_watts", "mfu", "goodput")
)  # fmt: skip
