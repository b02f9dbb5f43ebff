"""What the page of a run shows of an earlier one beside it: step times, and time by stack.

Tests: tests/show/page/test_compare.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from haiprof.common.frame_texts import frame_text
from haiprof.show import stacks
from haiprof.show.page.context import Context
from haiprof.show.paths import widths
from haiprof.views.run.overview import Summary

#: A path of calls, its outermost frame first.
Path = tuple[str, ...]
Floats = npt.NDArray[np.float64]


class Earlier(NamedTuple):
    """An earlier run: its ranks by label, and the time (s a step) of each path of their stacks."""

    ranks: dict[str, Summary]
    paths: dict[tuple[int | None, str], dict[Path, float]]


def earlier(found: Context) -> Earlier:
    """Return what is shown of a run in the page of a later one."""
    ranks = {s.process.label: s for s in found.ranks if s.steps}
    paths: dict[tuple[int | None, str], dict[Path, float]] = {}
    for chosen in found.chosen:
        steps = sum(s.steps for s in chosen.summaries[-1:])
        for title, flame in stacks.sampled(found.analyzer, chosen.processes).flames.items():
            if not steps or not flame.height:
                continue
            frames = flame.select("function", "file", "line").iter_rows()
            above = flame["parent"].to_list()
            width = widths(flame) / 1e9 / steps
            named = paths_of((frame_text(*frame) for frame in frames), above)
            paths[chosen.rank, title] = dict(zip(named, width.tolist(), strict=True))
    return Earlier(ranks, paths)


def paths_of(names: Iterable[str], parents: Iterable[int | None]) -> list[Path]:
    """Return the path of each row; callers come first."""
    paths: list[Path] = []
    for name, parent in zip(names, parents, strict=True):
        above = paths[parent] if parent is not None and parent >= 0 else ()
        paths.append((*above, name))
    return paths
