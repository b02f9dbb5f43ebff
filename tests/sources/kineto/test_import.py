"""The import of real traces against a slow, plain reading of the same files."""

from __future__ import annotations

import json
from typing import Any

import polars as pl
import pytest
import traces
from polars.testing import assert_frame_equal

from haiprof import schema
from haiprof.sources import tables
from haiprof.sources.open import open_path


def plain(frame: pl.DataFrame) -> pl.DataFrame:
    """The frame with texts as such, to be compared."""
    return frame.with_columns(pl.col(pl.Categorical()).cast(pl.String))


def values(text: str | None) -> Any:
    return None if text is None else json.loads(text)


@pytest.mark.parametrize("run", traces.runs())
def test_tables_equal_a_plain_reading_of_the_file(run: str) -> None:
    for file in traces.files(run):
        slow = traces.load(file)
        opened = open_path(file)
        (process,) = opened.run.processes
        assert opened.run.problems == ()
        for name in traces.NAMES:
            read = tables.read_table(process.folder, schema.TABLES[name])
            assert read.problems == []
            frame, known = plain(read.frame), plain(slow.table(name))
            if name == "spans":
                found, wanted = (
                    f["attributes"].map_elements(values, pl.Object) for f in (frame, known)
                )
                assert found.to_list() == wanted.to_list()
                frame, known = frame.drop("attributes"), known.drop("attributes")
            if name == "collectives":
                # The import has the host's before the devices'; the reading has them as they come.
                frame, known = (
                    f.drop("attributes").sort("side", maintain_order=True, descending=True)
                    for f in (frame, known)
                )
            assert_frame_equal(frame, known, check_exact=True)
        begins = [getattr(slow, n)[c] for n, c in (("spans", "start"), ("kernels", "start"))]
        assert process.started_ns <= min(b.min() for b in begins if len(b))
        assert process.rank == slow.rank
