"""What a rank did while the others waited for it."""

from __future__ import annotations

import polars as pl
import runs
from runs import MS, T0, span, stack

from haiprof import schema
from haiprof.views.run.late_places import SCHEMA, place
from haiprof.views.run.stacks import Tree, described, placed


def found(
    intervals: list[tuple[float, float]], spans: list[runs.Row], samples: list[runs.Row]
) -> tuple[str | None, str | None]:
    nodes = [
        *runs.FRAMES,
        {"id": 4, "parent": 1, "function": "read", "line": 9,
         "file": "/x/lib/python3.11/site-packages/zarr/core.py"},
    ]  # fmt: skip
    tables = [
        pl.from_arrow(runs.batch(table, rows))
        for table, rows in (
            (schema.FRAMES, nodes),
            (schema.SPANS, spans),
            (schema.STACKS, samples),
        )
    ]
    frames, span_table, stacks = (t for t in tables if isinstance(t, pl.DataFrame))
    tree = Tree(frames)
    rows = described(placed(stacks, tree, span_table), tree)
    times = [(T0 + round(begin * MS), T0 + round(end * MS)) for begin, end in intervals]
    place_of = place(times, span_table, rows)
    assert dict(place_of.schema) == SCHEMA
    phase, line = place_of.row(0)
    return phase, line


def test_the_phase_and_the_line_of_the_job_that_most_of_it_went_in() -> None:
    spans = [span(0, 300, "phase", "dataloader"), span(300, 200, "phase", "forward")]
    samples = [stack(0, 4), stack(100, 4), stack(200, 1), stack(300, 2), stack(400, 2)]
    assert found([(50, 320)], spans, samples) == ("dataloader", "load (/job/data.py:88)")
    assert found([(290, 310), (410, 420)], spans, samples) == (
        "forward",
        "Model.forward (/job/model.py:12)",
    )


def test_a_sample_counts_for_the_moment_at_which_it_was_taken() -> None:
    samples = [stack(0, 1), stack(100, 2, 3), stack(400, 1)]
    assert found([(20, 100)], [], samples)[1] is None
    assert found([(20, 101)], [], samples)[1] == "Model.forward (/job/model.py:12)"
    assert found([(290, 410)], [], samples)[1] is None  # one of each
    assert found([(150, 410)], [], samples)[1] == "Model.forward (/job/model.py:12)"
    assert found([(100, 101), (400, 401), (400, 401)], [], samples)[1] == "load (/job/data.py:88)"


def test_what_is_not_known_is_not_named() -> None:
    assert found([(0, 100)], [], []) == (None, None)
    spans = [span(0, 40, "phase", "forward"), span(40, 30, "phase", "backward")]
    # No phase has half of it.
    assert found([(0, 100)], spans, [])[0] is None
