"""Where columns of processes stand in frames; what they hold: tests/answers/test_traced.py."""

from __future__ import annotations

from typing import NamedTuple

import polars as pl

from haiprof.answers.rank_columns import rank_first

WHO = {"node": ["n0"], "rank": [3], "pid": [70]}


class Frames(NamedTuple):
    """An answer of several frames."""

    steps: pl.DataFrame
    summary: pl.DataFrame
    note: str


def test_rank_comes_first_and_what_only_identifies_it_last() -> None:
    frame = pl.DataFrame({**WHO, "session": [1], "step": [5], "duration": [9]})
    found = rank_first(frame)
    assert found.columns == ["rank", "step", "duration", "node", "pid", "session"]
    assert found.row(0) == (3, 5, 9, "n0", 70, 1)


def test_a_view_s_own_columns_stay_where_they_are() -> None:
    frame = pl.DataFrame({"late_rank": [1], "node": ["n0"], "rank": [3], "pid": [70]})
    assert rank_first(frame).columns == frame.columns
    assert rank_first(pl.DataFrame()).columns == []


def test_each_frame_of_an_answer() -> None:
    answer = Frames(pl.DataFrame({**WHO, "step": [5]}), pl.DataFrame({"begin": [1]}), "text")
    found = rank_first(answer)
    assert isinstance(found, Frames)
    assert found.steps.columns == ["rank", "step", "node", "pid"]
    assert found.summary.columns == ["begin"]
    assert found.note == "text"
    assert rank_first(None) is None
    assert rank_first(["a"]) == ["a"]
