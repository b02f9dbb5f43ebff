"""The import of real traces against a slow, plain reading of the same files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import traces
from polars.testing import assert_frame_equal

from haiprof import schema
from haiprof.sources import tables
from haiprof.sources.open import Opened, open_path

#: Made by hand and checked there, or (MTIA) with kernels that the check does not know as such.
WITHOUT_TRUTH = {"handmade_compact", "handmade_modern", "handmade_old", "hta_mtia_inference"}


def union(kernels: pl.DataFrame, base: int) -> float:
    """How long any of them ran, µs: in doubles, since who checked the files had these."""
    total, reached = 0.0, 0.0
    for start, duration in kernels.sort("start").select("start", "duration").iter_rows():
        begin = (start - base) / 1000
        end = begin + duration / 1000
        total += max(end - max(begin, reached), 0)
        reached = max(reached, end)
    return total


def plain(frame: pl.DataFrame) -> pl.DataFrame:
    """The frame with texts as such, to be compared."""
    return frame.with_columns(pl.col(pl.Categorical()).cast(pl.String))


def imported(file: Path) -> tuple[Opened, dict[str, pl.DataFrame]]:
    """One file's import, and the tables of it that a trace fills."""
    opened = open_path(file)
    (process,) = opened.run.processes
    reads = {n: tables.read_table(process.folder, schema.TABLES[n]) for n in traces.NAMES}
    assert [read.problems for read in reads.values()] == [[]] * len(reads)
    return opened, {name: plain(read.frame) for name, read in reads.items()}


def values(text: str | None) -> Any:
    return None if text is None else json.loads(text)


@pytest.mark.parametrize("run", traces.runs())
def test_tables_equal_a_plain_reading_of_the_file(run: str) -> None:
    for file in traces.files(run):
        slow = traces.load(file)
        opened, frames = imported(file)
        (process,) = opened.run.processes
        assert opened.run.problems == ()
        assert process.rank == slow.rank
        for name, frame in frames.items():
            known = plain(slow.table(name))
            if name == "spans":
                found = [values(text) for text in frame["attributes"]]
                assert found == [values(text) for text in known["attributes"]]
            if name in ("spans", "collectives"):
                # Of communication the import keeps more of the arguments.
                frame, known = frame.drop("attributes"), known.drop("attributes")
            if name == "collectives":
                # The import has those of the host first.
                known = known.sort("side", maintain_order=True, descending=True)
            assert_frame_equal(frame, known, check_exact=True)


@pytest.mark.parametrize("run", [run for run in traces.runs() if str(run) not in WITHOUT_TRUTH])
def test_kernels_and_their_ids_are_those_that_the_raw_events_say(run: str) -> None:
    for file in traces.files(run):
        truth = traces.truth()[run, file.name.removesuffix(".gz")]
        _, frames = imported(file)
        kernels = frames["kernels"].filter(pl.col("kind") == "kernel")
        assert kernels.height == truth["kernels"]
        said = re.search(rb'"baseTimeNanoseconds": *(\d+)', traces.text(file))
        base = int(said[1]) if said else 0
        assert union(kernels, base) == pytest.approx(truth["kernel_union_us"], abs=0.051)
        ops = frames["spans"].filter(pl.col("category").is_in(["op", "user", "step"]))
        external = kernels["external"]
        shares = {
            "ext_is_op": external.is_in(ops["external"].unique().implode()).fill_null(False),
            "ext_is_corr": (external == kernels["correlation"]).fill_null(False),
            "ext_none": external.is_null(),
        }
        for name, share in shares.items():
            assert (share.mean() or 0) == pytest.approx(truth[name], abs=5.1e-4), name
        names = ops["name"].unique().to_list()
        found = {name for name in names if name.startswith(("nccl:", "gloo:"))}
        assert found == set(truth["host_comm_ops"])
        assert found <= {
            f"{kind}:{op}" for op in frames["collectives"]["op"] for kind in ("nccl", "gloo")
        }
