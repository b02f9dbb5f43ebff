"""The run over time: step times, what steps consist of, events, and a few series beside them.

Tests: tests/show/page/test_build.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import polars as pl

from haiprof.show import panels as panels_of
from haiprof.show import recording
from haiprof.show.colours import phase_colour
from haiprof.show.grid import cut
from haiprof.show.overview import known_phases
from haiprof.show.page import document
from haiprof.show.page.context import Chosen, Context
from haiprof.views.run.overview import Summary, phase_names
from haiprof.views.run.series import decimate

#: With more ranks than this, one line stands for all, between the fastest and the slowest.
_LINES: Final = 8
_BINS: Final = 600
_MARKS: Final = 2_000
#: Shown beside the steps: the first of these families that were sampled.
_BESIDE: Final = ("CPU of the job", "GPU", "Memory of the job")


def sections(found: Context) -> list[document.Section]:
    """Return the sections on the whole run, then those of each rank."""
    stepped = [s for s in found.ranks if s.steps]
    marks = _marks(found)
    made: list[document.Section] = []
    if stepped:
        made.append(_step_times(found, stepped, marks))
        made += _phases(found, stepped)
    else:
        empty: document.Series = {
            "kind": "series", "id": "steps", "title": "Step time", "axis": "run", "unit": "ms",
            "lines": [], "marks": marks, "empty": "No step was recorded",
        }  # fmt: skip
        made.append(empty)
    return made


def _step_times(
    found: Context, stepped: list[Summary], marks: list[document.Mark]
) -> document.Series:
    found.columns.next_blob()
    lines: list[document.Line] = []
    if len(stepped) <= _LINES:
        for summary in stepped:
            keep = decimate(summary.trend_start, summary.trend_ns.astype(np.float64), found.points)
            lines.append(
                {
                    "name": summary.process.label,
                    "x": found.columns.times(found.seconds(summary.trend_start[keep])),
                    "y": found.columns.numbers(summary.trend_ns[keep] / 1e6),
                }
            )
    else:
        lines.append(_all_ranks(found, stepped))
    section: document.Series = {
        "kind": "series",
        "id": "steps",
        "title": "Step time",
        "axis": "run",
        "unit": "ms",
        "lines": lines,
        "marks": marks,
        "open": True,
    }
    if len(stepped) > _LINES:
        section["note"] = "The median rank, between the fastest and the slowest."
    return section


def _all_ranks(found: Context, stepped: list[Summary]) -> document.Line:
    """Return one line for all ranks: in each part of the time the median of their steps."""
    start = np.concatenate([s.trend_start for s in stepped])
    lasted = np.concatenate([s.trend_ns for s in stepped])
    first, last = int(start.min()), int(start.max()) + 1
    bins = min(_BINS, max(len(s.trend_ns) for s in stepped))
    width = max((last - first) / bins, 1.0)
    frame = pl.DataFrame({"bin": ((start - first) / width).astype(np.int64), "ns": lasted})
    rows = (
        frame.group_by("bin")
        .agg(
            pl.col("ns").median().alias("median"),
            pl.col("ns").min().alias("low"),
            pl.col("ns").max().alias("high"),
        )
        .sort("bin")
    )
    x = first + (rows["bin"].to_numpy() * width).astype(np.int64)
    packed = {name: found.columns.numbers(rows[name].to_numpy() / 1e6) for name in rows.columns[1:]}
    return {
        "name": f"median of {len(stepped)} ranks",
        "x": found.columns.times(found.seconds(x)),
        "y": packed["median"],
        "low": packed["low"],
        "high": packed["high"],
    }


def _phases(found: Context, stepped: list[Summary]) -> list[document.Section]:
    """Return what the steps of each chosen rank consist of, over time."""
    if not known_phases(stepped):
        return []
    made: list[document.Section] = []
    for chosen in found.chosen:
        own = [s for s in chosen.summaries if s.steps]
        if not own or not known_phases(own):
            continue
        found.columns.next_blob()
        names = phase_names(own)
        on_gpu = any(s.gpu is not None for s in own)
        share = max(found.points // len(own), 4)
        bands = [panels_of.step_bands(found.analyzer, s.process, names, share) for s in own]
        made.append(
            stack(
                found,
                chosen,
                f"phases-{chosen.key}",
                f"Phases of each step{' (host)' if on_gpu else ''}: {chosen.label}",
                names,
                bands,
            )
        )
    return made


def stack(
    found: Context,
    chosen: Chosen,
    identifier: str,
    title: str,
    names: Sequence[str],
    bands: Sequence[tuple[pl.DataFrame, int]],
) -> document.Series:
    """Return bands on top of each other; each part falls to 0 where its last step ends (ns)."""
    lines: list[document.Line] = []
    for position, name in enumerate(names):
        x, y = [], []
        for rows, end in bands:
            band = rows.filter(pl.col("name") == name)
            x += [band["start"].to_numpy(), np.array([end])]
            y += [band["duration"].to_numpy(), np.zeros(1)]
        lines.append(
            {
                "name": cut(name),
                "x": found.columns.times(found.seconds(np.concatenate(x))),
                "y": found.columns.numbers(np.concatenate(y) / 1e6),
                "colour": phase_colour(name, position),
            }
        )
    section: document.Series = {
        "kind": "series",
        "id": identifier,
        "title": title,
        "axis": "run",
        "unit": "ms",
        "stacked": True,
        "lines": lines,
    }
    if chosen.rank is not None:
        section["rank"] = chosen.rank
    return section


def _marks(found: Context) -> list[document.Mark]:
    """Return the events of all ranks, at most so many, those of each kind that come first."""
    events = found.analyzer.events().with_columns(pl.col("kind").cast(pl.String))
    events = events.filter(recording.is_latency().not_()).sort("time")
    kinds = max(events["kind"].n_unique(), 1)
    some = events.group_by("kind", maintain_order=True).head(max(_MARKS // kinds, 1)).sort("time")
    marks: list[document.Mark] = []
    for time, kind, text, rank in some.select("time", "kind", "text", "rank").iter_rows():
        mark: document.Mark = {
            "at": found.second(time),
            "kind": cut(kind or ""),
            "text": cut(text or ""),
        }
        if rank is not None:
            mark["rank"] = rank
        marks.append(mark)
    return marks


def beside(found: Context, machine: Sequence[document.Section]) -> list[document.Section]:
    """Return the series of the machine that are shown beside the steps, too."""
    picked: list[document.Section] = []
    for chosen in found.chosen[:1]:
        for family in _BESIDE:
            for section in machine:
                of_rank = section.get("rank", chosen.rank) == chosen.rank
                if section.get("group") == family and of_rank and section["kind"] == "series":
                    copied: Any = {**section, "id": f"run-{section['id']}", "open": True}
                    copied.pop("rank", None)
                    picked.append(copied)
                    break
    return picked
