"""``haiprof compare``: what two traces differ in, on a terminal of 80 columns."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any

import pytest
import runs
import traces
from commands import haiprof, only_line


def test_two_recorded_traces_are_compared_in_80_columns() -> None:
    control, test = (traces.files(f"hta_trace_diff_{name}")[0] for name in ("control", "test"))
    done = haiprof("compare", control, test, env={**os.environ, "COLUMNS": "80"})
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_runs_without_a_common_rank_are_one_line(tmp_path: Path) -> None:
    for name, ranks in (("a", (0, 1)), ("b", (2, 3))):
        for rank in ranks:
            file = tmp_path / name / f"r{rank}.pt.trace.json"
            traces.write(file, traces.small(rank))
    done = haiprof("compare", tmp_path / "a", tmp_path / "b")
    assert (done.returncode, done.stdout) == (1, "")
    assert "no rank in common" in only_line(done)


def job(folder: Path, ranks: int, slower: int, steps: int = 6) -> Path:
    """Traces of some steps each; of the first ranks they take longer, the more the higher."""
    first = [e for e in traces.small()["traceEvents"] if e.get("ts", 0) < 1100]
    for rank in range(ranks):
        longer = 1.5 + rank / 100 if rank < slower else 1.0
        document: dict[str, Any] = traces.small(rank)
        document["traceEvents"] = []
        for step in range(steps):
            for event in copy.deepcopy(first):
                if event.get("name", "").startswith("ProfilerStep"):
                    event |= {"name": f"ProfilerStep#{step}", "dur": 100 * longer + step % 2}
                event["ts"] = event["ts"] + 1000 * step
                document["traceEvents"].append(event)
        traces.write(folder / f"r{rank}.pt.trace.json", document)
    return folder


@pytest.mark.jobs
def test_a_hundred_ranks_are_summed_up_and_the_worst_shown(tmp_path: Path) -> None:
    before, after = job(tmp_path / "a", 100, 0), job(tmp_path / "b", 100, 30)
    wide = {**os.environ, "COLUMNS": "200"}
    done = haiprof("compare", before, after, env=wide)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert len(lines) < 60
    assert lines[0].startswith("70 of 100 ranks: no difference shown (a step took ")
    assert lines[1].startswith(
        "30 of 100 ranks: slower by 50 % to 79 %, 64 % at the median (a step"
    )
    ranks = [line.split(":")[0] for line in lines if line.startswith("rank ")]
    assert ranks == ["rank 29", "rank 28", "rank 27", "rank 26"]
    one = haiprof("compare", before, after, "--rank", "3", env=wide)
    assert one.stdout.startswith("rank 3: a step is 53 % slower: ")
    assert "ranks" not in one.stdout


def test_one_step_each_is_compared_and_chance_left_open(tmp_path: Path) -> None:
    before, after = job(tmp_path / "a", 1, 0, steps=1), job(tmp_path / "b", 1, 1, steps=1)
    document = json.loads((after / "r0.pt.trace.json").read_text())
    for event in document["traceEvents"]:
        if event.get("name") == "aten::mm":
            event["dur"] += 7
    traces.write(after / "r0.pt.trace.json", document)
    done = haiprof("compare", before, after, env={**os.environ, "COLUMNS": "200"})
    assert (done.returncode, done.stderr) == (0, "")
    assert "rank 0: a step is 50 % longer: " in done.stdout
    assert "may be chance; trace at least two steps of each" in done.stdout
    row = next(line for line in done.stdout.splitlines() if "aten::mm" in line)
    assert "too few steps" in row
    assert "7 µs" in row


def test_functions_that_take_longer_are_named_where_stacks_were_sampled(tmp_path: Path) -> None:
    before = runs.make_sampled_run(tmp_path / "before", 20)
    after = runs.make_sampled_run(tmp_path / "after", 60, 200.0)
    done = haiprof("compare", before, after)
    assert done.returncode == 0, done.stderr
    assert "Functions: their own time on the training thread, a step" in done.stdout
    (line,) = (line for line in done.stdout.splitlines() if "load (" in line)
    assert [cell.strip() for cell in line.strip("│┃ ").split("│")][:5] == [
        "load (/job/data.py)", "slower", "20 ms", "120 ms", "100 ms",
    ]  # fmt: skip
    assert "Model.forward" not in done.stdout
    assert "Functions" not in haiprof("compare", before, before).stdout


def test_two_recorded_runs_are_compared_by_phases_too(tmp_path: Path) -> None:
    before = runs.make_run(tmp_path / "before", ranks=2)
    slower = [(name, 2 * ms if name == "forward" else ms) for name, ms in runs.PHASES]
    after = runs.make_run(tmp_path / "after", ranks=2, phases=slower)
    done = haiprof("compare", before, after)
    assert done.returncode == 0, done.stderr
    assert "Phases: their time, a step of a rank" in done.stdout
    (line,) = (line for line in done.stdout.splitlines() if "forward" in line)
    assert [cell.strip() for cell in line.strip("│┃ ").split("│")] == [
        "forward", "slower", "4 ms", "8 ms", "4 ms",
    ]  # fmt: skip
    assert not any(name in done.stdout for name in ("backward", "Series", "Findings that"))
    assert "Phases:" not in haiprof("compare", before, before).stdout


def test_a_trace_without_a_rank_is_compared_with_any_rank(tmp_path: Path) -> None:
    ranked = job(tmp_path / "ranked", 2, 0)
    alone = tmp_path / "alone" / "t.pt.trace.json"
    document = json.loads((ranked / "r1.pt.trace.json").read_text())
    del document["distributedInfo"]
    traces.write(alone, document)
    for pair in ((ranked, alone), (alone, ranked)):
        one = haiprof("compare", *pair, "--rank", "1")
        assert (one.returncode, one.stderr) == (0, "")
        assert one.stdout.startswith("rank 1: a step took ")
        lines = haiprof("compare", *pair).stdout.splitlines()
        assert [line.split(":")[0] for line in lines if line.startswith("rank ")] == [
            "rank 0",
            "rank 1",
        ]
