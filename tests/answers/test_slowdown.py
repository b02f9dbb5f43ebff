"""What slows down runs as they are on disk: of ranks side by side, of pipelines, of imports."""

from __future__ import annotations

from pathlib import Path

import other_tools
import pytest
import runs

from haiprof import schema
from haiprof.analyzer import Analyzer

STEPS = 40
#: What a rank does in a step besides waiting, ms.
OWN = (("dataloader", 1.0), ("forward", 4.0))


def side_by_side(folder: Path, delays: dict[int, float], waits: bool = True) -> Analyzer:
    """Record ranks that meet in each backward, which ends 5 ms after the last one began it."""
    run = runs.write_run(folder / "r")
    for rank, delay in delays.items():
        process = runs.write_process(run, rank, world_size=len(delays))
        rows, now = [], 0.0
        for step in range(STEPS):
            first = now
            for name, length in OWN:
                took = length + (delay if name == "forward" else 0.0)
                rows.append(runs.span(now, took, "phase", name, step))
                now += took
            most = max(delays.values()) if waits else delay
            end = first + 5 + most + 5
            rows.append(runs.span(now, end - now, "phase", "backward", step))
            rows.append(runs.span(end, 2, "phase", "optimizer", step))
            now = end + 2
            rows.append(runs.span(first, now - first, "step", "step", step))
        runs.write_closed(process, schema.SPANS, rows)
    return Analyzer(run)


def test_ranks_side_by_side(tmp_path: Path) -> None:
    run = side_by_side(tmp_path, {0: 0.0, 1: 0.5, 2: 8.0, 3: 0.0})
    found = run.slowdown()
    assert found.why is None
    first = found.causes.row(0, named=True)
    assert (first["rank"], first["kind"], first["cause"]) == (2, "rank", "rank 2")
    assert first["duration"] == pytest.approx(20e6, rel=1e-6)
    assert first["without"] == pytest.approx(12.5e6, rel=1e-6)
    assert first["words"] == "Without the delays of rank 2 a step takes 12.5 ms instead of 20 ms"
    second = found.causes.row(1, named=True)
    assert (second["kind"], second["cause"]) == ("phase", "forward")
    (whole,) = found.whole.to_dicts()
    assert (whole["steps"], whole["ranks"]) == (STEPS, 4)
    assert whole["slowdown"] == pytest.approx(20 / 12, rel=1e-6)
    assert run.problems() == []
    # Asked for the late ranks as well, the waiting is left out once.
    assert run.imbalance()["rank"].to_list() == [2]


def test_waiting_in_collectives_of_the_jobs_own(tmp_path: Path) -> None:
    # All ranks are as long in the rest of a step: only the collectives tell who waits in it.
    run = runs.write_run(tmp_path / "r")
    delays = {0: 0.0, 1: 6.0, 2: 0.0}
    for rank, delay in delays.items():
        process = runs.write_process(run, rank, world_size=len(delays))
        spans, waits = [], []
        for step in range(STEPS):
            at = 20.0 * step
            spans.append(runs.span(at, 4 + delay, "phase", "forward", step))
            spans.append(runs.span(at, 20, "step", "step", step))
            for side in ("work", "wait"):
                took = 15 - 4 - delay
                more = {"side": side, "group_size": len(delays), "thread": 1, "step": step}
                waits.append(runs.collective(at + 4 + delay, took, step + 1, **more))
        runs.write_closed(process, schema.SPANS, spans)
        runs.write_closed(process, schema.COLLECTIVES, waits)
    found = Analyzer(run).slowdown()
    assert found.why is None
    first = found.causes.row(0, named=True)
    assert (first["cause"], first["without"]) == ("rank 1", 14_000_000)


def test_ranks_that_do_not_wait(tmp_path: Path) -> None:
    found = side_by_side(tmp_path, {0: 0.0, 1: 8.0}, waits=False).slowdown()
    assert found.why is not None
    assert "do not wait for each other" in found.why
    assert (found.causes.height, found.steps.height, found.whole.height) == (0, 0, 0)


def test_a_rank_alone(tmp_path: Path) -> None:
    found = side_by_side(tmp_path, {0: 0.0}).slowdown()
    assert found.why is not None
    assert "fewer than two ranks" in found.why
    assert not found.causes.height


def test_a_recorded_pipeline(tmp_path: Path) -> None:
    run = runs.write_run(tmp_path / "r")
    begin, length = {0: 0.0, 1: 10.0}, {0: 10.0, 1: 30.0}
    for rank in range(2):
        process = runs.write_process(run, rank, world_size=2)
        rows = []
        for step in range(3):
            at = 200.0 * step
            times = (begin[rank], 40.0 if rank == 1 else 70.0)
            for name, start in zip(("forward", "backward"), times, strict=True):
                rows.append(
                    runs.device_span(at + start, length[rank], name, step, category="pipeline")
                    | {"microbatch": 0, "stage": rank}
                )
        runs.write_closed(process, schema.DEVICE_SPANS, rows)
    found = Analyzer(run).slowdown()
    assert found.steps["measured"].to_list() == [80_000_000] * 3
    assert found.steps["replayed"].to_list() == [80_000_000] * 3
    assert found.causes.select("cause", "without").row(0) == ("rank 1", 40_000_000)


def test_a_timeline_of_megatron(tmp_path: Path) -> None:
    folder = other_tools.unpack("megatron", tmp_path / "data")
    run = Analyzer(folder / "data-1-pipeline-4-tensor-1-pp-aggregated.json")
    found = run.slowdown()
    assert found.why is None
    assert (found.steps["replayed"] / found.steps["measured"]).to_list() == pytest.approx(
        [1.0] * found.steps.height, rel=0.05
    )
    # The last stage has the loss and the vocabulary besides its layers.
    assert found.causes.filter(found.causes["kind"] == "rank")["rank"][0] == 3
