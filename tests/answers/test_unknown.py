"""What traces lack: found in their data, with the reason and the fix."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
import runs
import traces

from haiprof import schema
from haiprof.analyzer import Analyzer


def why(run: Analyzer, view: str | None = None) -> dict[str, str]:
    found = run.unknown(view)
    return dict(found.select("missing", "why").unique().rows())


def opened(name: str) -> Analyzer:
    return Analyzer(traces.files(name)[0].parent)


def test_what_torch_profiler_was_not_asked_for() -> None:
    reasons = why(opened("dlrm_8rank"))
    assert reasons["allocations"] == "recorded without profile_memory=True"
    assert reasons["spans[python]"] == "recorded without with_stack=True"
    assert "spans.shapes" not in reasons
    assert "kernels" not in reasons


@pytest.mark.parametrize("run", ["hta_cpu_only", "tb_resnet50_num_workers_0", "tl_mi210_gpu_only"])
def test_it_is_what_the_views_lack(run: str) -> None:
    found = opened(run)
    lost = found.unknown().filter(pl.col("consequence") == "all of it")
    lacking = set(lost["view"])
    assert lacking
    for view in ("operators", "modules", "temporal", "idle", "launches", "hardware_counters"):
        frame = getattr(found, view)()
        of_rank = lost.filter(pl.col("view") == view).height
        assert (view in lacking) == (not frame.height), view
        assert of_rank in (0, len(found.run.processes))
    assert ("memory" in lacking) == (not found.memory().curve.height)


def test_one_view_of_one_rank(tmp_path: Path) -> None:
    for rank in range(2):
        traces.write(tmp_path / f"rank{rank}.pt.trace.json", traces.small(rank))
    run = Analyzer(tmp_path)
    frame = run.unknown("memory", rank=1)
    assert frame.columns == [
        "rank", "view", "missing", "consequence", "why", "node", "pid", "session",
    ]  # fmt: skip
    assert set(frame["view"]) == {"memory"}
    assert set(frame["rank"]) == {1}


def test_what_haiprof_recorded_needs_a_deep_trace(tmp_path: Path) -> None:
    run = runs.write_run(tmp_path / "run")
    spans = [runs.span(12 * n, 12, "step", "step", n) for n in range(3)]
    runs.write_closed(runs.write_process(run), schema.SPANS, spans)
    reasons = why(Analyzer(run))
    assert reasons["kernels"] == "no kernels were recorded: haiprof doctor says why"
    assert reasons["spans[op]"] == "haiprof records it in deep traces only: haiprof trace"
    assert "spans[step]" not in reasons
