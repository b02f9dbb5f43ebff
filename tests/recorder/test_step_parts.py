"""What steps were spent on, summed up while they are drained: the same as of the spans themselves.

What is late, forgotten or one of too many: tests/native/drain_step_parts_test.cpp.
"""

from __future__ import annotations

import os
import random
import signal
import threading
from pathlib import Path

import polars as pl
import pytest
from commands import haiprof
from recording import (
    process_file,
    python,
    read_back,
    read_table,
    run_python,
    the_recorder,
    wait_recorded,
)

from haiprof import _core, schema
from haiprof.recorder.tables import RingTables
from haiprof.sources import summed_up as views
from haiprof.views.run import steps as step_views

KINDS = ("phase", "user", "other")
PHASE, USER, GC = (_core.CATEGORIES.index(name) for name in ("phase", "user", "gc"))
STEP = _core.CATEGORIES.index("step")


def summed_up(parts: pl.DataFrame) -> pl.DataFrame:
    return parts.filter(pl.col("kind").is_in(KINDS)).select(
        "step", pl.col("kind").alias("category"), "name", "duration", "count"
    )


def of_spans(spans: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the steps, and what each was spent on, as the views have them."""
    spans = spans.with_columns(pl.col("category", "name").cast(pl.Categorical))
    steps = step_views.steps(spans)
    texts = pl.col("category", "name").cast(pl.String)
    return steps, step_views.phases(spans, steps).with_columns(texts)


def frame(folder: Path, table: str) -> pl.DataFrame:
    return pl.DataFrame(pl.from_arrow(read_table(folder, table, pauses=True)))


def same(parts: pl.DataFrame, spans: pl.DataFrame) -> None:
    steps, phases = of_spans(spans)
    own = parts.filter(pl.col("kind") == "step")
    assert own.select("step", "start", "duration").sort("start").equals(steps)
    key = ["step", "category", "name", "duration"]
    assert summed_up(parts).sort(key).equals(phases.select(*key, "count").sort(key))


def drained(
    reader: _core.RingReader, tables: RingTables, *, ended: bool = False
) -> dict[str, pl.DataFrame]:
    reader.take()
    if ended:
        reader.settle()
    found = {}
    for name, raw in reader.rows().items():
        batch = tables.batch(schema.TABLES[name], raw, reader.texts)
        found[name] = pl.DataFrame(pl.from_arrow(read_back(batch))).with_columns(
            pl.selectors.categorical().cast(pl.String)
        )
    reader.clear()
    return found


def work(rng: random.Random, depth: int) -> None:
    for _ in range(rng.randrange(4)):
        kind = rng.choice((PHASE, PHASE, USER, GC))
        with _core.Span(rng.choice("abcd"), kind):
            if depth and rng.random() < 0.6:
                work(rng, depth - 1)


@pytest.mark.parametrize("seed", range(8))
def test_random_spans_of_several_threads(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    ring = tmp_path / "1.ring"
    _core.open_ring(str(ring), bytes=_core.MIN_RING_BYTES, rank=0, run="r", run_dir=str(tmp_path))
    try:
        reader, tables = _core.RingReader(ring), RingTables()
        found: list[dict[str, pl.DataFrame]] = []
        others = [random.Random(f"{seed} {n}") for n in range(2)]
        for _ in range(20):
            work(rng, 0)  # between two steps
            with _core.Span("step", STEP):
                threads = [threading.Thread(target=work, args=(other, 2)) for other in others]
                for thread in threads:
                    thread.start()
                work(rng, 3)
                for thread in threads:
                    thread.join()
            if rng.random() < 0.3:
                found.append(drained(reader, tables))
        found.append(drained(reader, tables, ended=True))
    finally:
        _core.close_ring()
    whole = {
        name: pl.concat(part[name] for part in found if name in part)
        for name in ("spans", "step_parts")
    }
    # They have no numbers, so a span belongs to the step in whose time it begins.
    starts = whole["spans"].filter(pl.col("category") == "step")["start"].sort()
    assert starts.len() == 20
    steps, phases = of_spans(whole["spans"])
    own = whole["step_parts"].filter(pl.col("kind") == "step")
    assert own.select("step", "start", "duration").equals(steps)
    row = (pl.col("kind") == "step").cum_sum() - 1
    parts = whole["step_parts"].with_columns(row.alias("row"))
    first = (phases["category"] == "other").shift(1, fill_value=False).cum_sum()
    expected = phases.with_columns(first.alias("row"))
    key = ["row", "category", "name", "duration", "count"]
    given = parts.filter(pl.col("kind").is_in(KINDS)).rename({"kind": "category"})
    assert (
        given.select(key).cast({"row": pl.UInt32}).sort(key).rows()
        == expected.select(key).cast({"row": pl.UInt32}).sort(key).rows()
    )


LOOP = """
import sys, torch, haiprof
torch.set_num_threads(1)
haiprof.start(sys.argv[1], run="run", ring_mib=int(sys.argv[2]))
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
data = torch.utils.data.DataLoader(torch.randn(4 * 100, 8), batch_size=4)
inner = haiprof.range("inner")
for epoch in range(int(sys.argv[3])):
    for number, batch in enumerate(data):
        with haiprof.range("outer"):
            with inner:
                loss = model(batch).mean()
            loss.backward()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()
    with torch.no_grad():
        for batch in data:
            model(batch)
            break
    print(epoch, flush=True)
    if len(sys.argv) > 4:
        sys.stdin.readline()
haiprof.stop()
"""


def test_a_loop_with_accumulation_ranges_and_evaluation(shm: Path, tmp_path: Path) -> None:
    run_python(LOOP, str(tmp_path), "16", "3")
    wait_recorded(shm)
    folder = next(tmp_path.glob("run/*#0"))
    parts, spans = frame(folder, "step_parts"), frame(folder, "spans")
    same(parts, spans)
    assert parts.filter(pl.col("kind") == "step").height == 150
    assert {"dataloader", "forward", "backward", "optimizer", "eval", "inner", "outer"} <= set(
        parts["name"]
    )
    pauses = spans.filter(pl.col("category") == "gc")
    assert parts.filter(pl.col("kind") == "gc")["count"].sum() <= pauses.height
    assert (folder / "step_parts-0.arrow").stat().st_size < 120 * 150


def test_the_last_span_of_a_part_is_there_whole(shm: Path, tmp_path: Path) -> None:
    run_python(LOOP, str(tmp_path), "16", "1")
    wait_recorded(shm)
    folder = next(tmp_path.glob("run/*#0"))
    parts = frame(folder, "step_parts").filter(pl.col("kind") == "phase")
    spans = frame(folder, "spans").filter(pl.col("category") == "phase").drop_nulls("step")
    last = spans.sort("start").group_by("step", "name").agg(pl.col("start", "duration").last())
    given = parts.select("step", "name", "start", pl.coalesce("last", "duration").alias("duration"))
    key = ["step", "name"]
    assert given.sort(key).equals(last.select(given.columns).sort(key))


@pytest.mark.parametrize("mib", [16, 2])
def test_a_recorder_that_takes_over_goes_on(shm: Path, tmp_path: Path, mib: int) -> None:
    job = python(LOOP, str(tmp_path), str(mib), "6", "waits", stdin=-1)
    assert job.stdin is not None
    assert job.stdout is not None
    for epoch in range(6):
        assert job.stdout.readline() == f"{epoch}\n"
        if epoch == 3:
            os.kill(the_recorder(shm), signal.SIGKILL)
        job.stdin.write("\n")
        job.stdin.flush()
    job.communicate(timeout=60)
    done = haiprof("recover")
    assert done.returncode == 0, done.stderr
    folder = next(tmp_path.glob("run/*#0"))
    assert process_file(folder)["state"] == "closed"
    parts, spans = frame(folder, "step_parts"), frame(folder, "spans")
    # What a small ring had no room for any more is summed up nowhere, and said to be so.
    gaps = parts.filter(pl.col("kind") == "gap")["step"].to_list()
    assert len(gaps) <= (0 if mib == 16 else 5)
    steps, phases = of_spans(spans)
    own = parts.filter(pl.col("kind") == "step").sort("start")
    seen, summed = steps["step"].to_list(), sorted([*own["step"], *gaps])
    lost = sorted(set(range(300)) - set(seen))
    if lost:
        # With no recorder for long enough a small ring overwrites the oldest: steps that follow one
        # another, as is reported. The sums of the two before them were not on disk, either.
        assert mib == 2
        assert frame(folder, "events").filter(pl.col("kind") == "lost").height > 0
        assert lost == list(range(lost[0], lost[-1] + 1))
        assert lost[-1] < 250
        assert set(seen) - set(summed) <= {lost[0] - 1, lost[0] - 2}
        gaps += set(seen) - set(summed)
        summed = sorted([*own["step"], *gaps])
    assert summed == seen == sorted(set(seen))
    # Between two recorders a clock reading more may move a time by a little.
    key = ["step", "category", "name"]
    both = summed_up(parts).join(phases, on=key, how="full", suffix="_spans", coalesce=True)
    both = both.filter(~pl.col("step").is_in(gaps))
    assert both.null_count().select("duration", "duration_spans").sum_horizontal().item() == 0
    assert both.filter(pl.col("count") != pl.col("count_spans")).height == 0
    assert both.select((pl.col("duration") - pl.col("duration_spans")).abs().max()).item() < 20_000


def test_spans_that_were_removed_are_shown_by_what_was_summed_up(shm: Path, tmp_path: Path) -> None:
    run_python(LOOP, str(tmp_path), "16", "2")
    wait_recorded(shm)
    folder = next(tmp_path.glob("run/*#0"))
    parts, spans = frame(folder, "step_parts"), frame(folder, "spans")
    texts = pl.col("category", "name").cast(pl.String)
    until = int(spans["start"].sort()[spans.height // 2])
    shown, boundary = views.spans(parts, until, 1)
    assert until <= boundary
    later = views.newer(spans, boundary).select(shown.columns)
    together = pl.concat([shown.with_columns(texts), later])
    steps, phases = of_spans(together)
    expected_steps, expected = of_spans(spans)
    assert steps.equals(expected_steps)
    key = ["step", "category", "name", "duration"]
    assert phases.select(key).sort(key).equals(expected.select(key).sort(key))
