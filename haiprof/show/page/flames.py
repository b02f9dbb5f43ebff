"""Which code: flame graphs of sampled stacks by phase, and the lines with most time.

Tests: tests/show/page/test_build.py.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from haiprof.common.frame_texts import frame_text, short_file
from haiprof.show import stacks
from haiprof.show.grid import cut
from haiprof.show.page import document
from haiprof.show.page.context import Chosen, Context, table
from haiprof.show.page.earlier import Earlier, Path, paths_of
from haiprof.show.page.trees import Floats, tree
from haiprof.show.paths import widths

_ALL: Final = "all"


def sections(found: Context, before: Earlier | None) -> list[document.Section]:
    """Return the sections of each rank; one that says why where there are none."""
    made: list[document.Section] = []
    for chosen in found.chosen:
        made += _of_rank(found, chosen, before)
    if not made:
        why = "No stacks were sampled; --stack-hz 10 samples them."
        made.append(
            {"kind": "text", "id": "code", "title": "Sampled stacks", "lines": [], "empty": why}
        )
    return made


def _of_rank(found: Context, chosen: Chosen, before: Earlier | None) -> list[document.Section]:
    sampled = stacks.sampled(found.analyzer, chosen.processes)
    made: list[document.Section] = []
    for position, (title, flame) in enumerate(sampled.flames.items()):
        if int(flame["self"].sum()):
            found.columns.next_blob()
            was = None if before is None else before.paths.get((chosen.rank, title))
            identifier = f"flame-{chosen.key}-{position}"
            made.append(_flame(found, chosen, identifier, title, flame, was))
    for position, grid in enumerate(sampled.grids):
        section = table(grid, f"lines-{chosen.key}-{position}", "", chosen)
        lines = [str(row[2]) for row in grid.rows]
        section["places"] = [_place(chosen, line) for line in lines]
        made.append(section)
    if sampled.notes:
        text: document.Text = {
            "kind": "text",
            "id": f"stacks-{chosen.key}",
            "title": "Sampled stacks",
            "lines": [cut(note) for note in sampled.notes],
        }
        if chosen.rank is not None:
            text["rank"] = chosen.rank
        made.append(text)
    return made


def _place(chosen: Chosen, line: str) -> document.Place:
    place: document.Place = {"tab": "code", "frame": line}
    if chosen.rank is not None:
        place["rank"] = chosen.rank
    return place


def _flame(
    found: Context,
    chosen: Chosen,
    identifier: str,
    title: str,
    flame: pl.DataFrame,
    was: dict[Path, float] | None,
) -> document.Flame:
    names: dict[str, int] = {}
    places: list[str] = []

    def number(function: str, file: str, line: int | None) -> int:
        text = cut(frame_text(function, file, line))
        if text not in names:
            names[text] = len(names)
            places.append(cut(f"{short_file(file)}{f':{line}' if line else ''}") if file else "")
        return names[text]

    frames = flame.select("function", "file", "line").iter_rows()
    name_of = np.array([number(*frame) for frame in frames], np.int64)
    parent = flame["parent"].cast(pl.Int64).fill_null(-1).to_numpy()
    width = widths(flame)
    before = None if was is None else _before(chosen, flame, was)
    trees = [tree(found.columns, _ALL, name_of, parent, width, before)]
    # The outermost rows are the phases: each is a tree of its own, too.
    roots = np.flatnonzero(parent < 0)
    if identifier.endswith("-0") and len(roots) > 1:
        for begin, end in zip(roots, [*roots[1:], len(parent)], strict=True):
            inside = slice(begin + 1, end)
            above = parent[inside] - (begin + 1)
            above[above < 0] = -1
            phase = cut(str(flame["function"][int(begin)]))
            part = None if before is None else before[inside]
            trees.append(tree(found.columns, phase, name_of[inside], above, width[inside], part))
    section: document.Flame = {
        "kind": "flame",
        "id": identifier,
        "title": f"{title}: {chosen.label}",
        "unit": "s",
        "names": list(names),
        "places": places,
        "trees": [tree for tree in trees if tree["self"]["n"]],
    }
    if chosen.rank is not None:
        section["rank"] = chosen.rank
    if before is not None:
        section["note"] = "Before: the time of the earlier run, for as many steps as in this one."
    return section


def _before(chosen: Chosen, flame: pl.DataFrame, was: dict[Path, float]) -> Floats:
    """Return how long each path took in an earlier run, ns, for as many steps."""
    frames = flame.select("function", "file", "line").iter_rows()
    paths = paths_of((frame_text(*frame) for frame in frames), flame["parent"].to_list())
    steps = chosen.summaries[-1].steps
    return np.array([was.get(path, 0.0) * steps * 1e9 for path in paths])
