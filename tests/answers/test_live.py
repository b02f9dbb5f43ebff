"""What is said of a running job: what its steps take longer for, and what costs it time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from recorded_cases import PHASES, STEPS, life, line, node, pair, rank, stats, torch_lines
from runs import T0, make_run, span, steady, write_closed

from haiprof import schema
from haiprof.answers.live import changed, lasting, look
from haiprof.findings.recorded.case import Case
from haiprof.sources import segment_file

LOADS = [line("input", 40, "Data.load (/job/data.py:7)"), *torch_lines(60)]


def case(changes: dict[str, float] | None = None, lines: Any = (), **more: Any) -> Case:
    return Case([rank(life(changes), lines or torch_lines(100))], **more)


def test_what_has_become_slow_is_named() -> None:
    (found,) = changed(case(), case({"dataloader": 31}, LOADS))
    assert (found.kind, found.line) == ("slow_loader", "Data.load (/job/data.py:7)")
    assert found.problem.startswith("A step takes 130 ms instead of 100 ms in the minute before. ")


def test_a_rank_that_becomes_late_is_named() -> None:
    (found,) = changed(Case(pair(None)), Case(pair({"forward": 20.0})))
    assert (found.kind, found.ranks) == ("straggler", (1,))


def test_what_was_as_slow_before_is_not_to_blame() -> None:
    before, after = case({"dataloader": 31}, LOADS), case({"dataloader": 31, "forward": 60}, LOADS)
    assert "slow_loader" in [each.kind for each in lasting(after)]
    (found,) = changed(before, after)
    assert (found.kind, found.phase) == ("regression", "forward")
    assert "30 ms more in forward" in found.problem
    assert "since then" in found.advice


def test_the_line_that_takes_longer_is_named() -> None:
    """Where most of the time is says nothing: it was there before."""
    usual, new = "step (/job/train.py:5)", "log (/job/train.py:9)"
    before = case({"other": 31}, [line("other", 30, usual), *torch_lines(60)])
    lines = [line("other", 30, usual), line("other", 30, new), *torch_lines(60)]
    (found,) = changed(before, case({"other": 61}, lines))
    assert (found.kind, found.line) == ("regression", new)
    assert found.problem.endswith(f": 30 ms more between the phases, most of it at {new}")
    (found,) = changed(before, case({"other": 61}, [line("other", 30, usual), *torch_lines(60)]))
    assert found.line == usual


def test_a_rank_is_late_in_what_takes_most_though_all_are_slower_too() -> None:
    """What one is late by is less than what all take longer for another reason."""
    new, late, more = "blend (/job/train.py:9)", 20.0, 22.0
    begins = [100 + (100 + late + more) * n for n in range(STEPS)]
    waits = [(b + 60, b + 60 + late) for b in begins]
    pending = [(b + 55, b + 60 + late, b + 60.5 + late, 1) for b in begins]
    waiting = {"backward": PHASES["backward"] + late, "optimizer": PHASES["optimizer"] + more}
    working = {"forward": PHASES["forward"] + late, "optimizer": PHASES["optimizer"] + more}
    lines = [line("forward", 45, new), line("optimizer", 20, new), *torch_lines(35)]
    first = rank(life(waiting, waits=waits, pending=pending), torch_lines(100))
    after = Case([first, rank(life(working), lines, number=1)])
    assert "straggler" in [each.kind for each in lasting(after)]
    (found,) = changed(Case(pair(None)), after)
    assert (found.kind, found.ranks, found.line) == ("straggler", (1,), new)
    # It is late in something else than what takes most of the time.
    usual = [line("forward", 45, "norm (/job/train.py:3)"), *torch_lines(5)]
    before = Case([rank(life(), torch_lines(100)), rank(life(), usual, number=1)])
    after = Case([first, rank(life(working), [*usual, line("optimizer", 50, new)], number=1)])
    assert "straggler" in [each.kind for each in lasting(after)]
    (found,) = changed(before, after)
    assert (found.kind, found.ranks, found.line) == ("regression", (0, 1), new)


@pytest.mark.parametrize(("busy", "kind"), [(90, "cpu_neighbour"), (13, "regression")])
def test_who_takes_the_cpus_is_named_from_a_tenth_on(busy: float, kind: str) -> None:
    """Which rules over a whole run take for usual: here it was not there before."""
    queue = [(100, 0), *((100 + 110 * n, 9.0) for n in range(1, STEPS + 1))]
    slower = rank(life({"forward": 40}, queue=queue), torch_lines(100), summary=stats(cpu=100))
    after = Case([slower], nodes=[node(busy)])
    assert lasting(after) == []
    (found,) = changed(case(), after)
    assert (found.kind, found.phase) == (kind, "cpu_queue")
    assert found.problem.startswith("A step takes 110 ms instead of 100 ms in the minute before")


def test_nothing_is_said_of_steps_that_take_as_long() -> None:
    slow = case({"dataloader": 31}, LOADS)
    assert changed(slow, slow) == []
    assert changed(case(), case({"dataloader": 3})) == []
    assert changed(Case([]), slow) == []


def test_what_lasts_is_what_costs_steps_their_time() -> None:
    assert [each.kind for each in lasting(case({"dataloader": 31}, LOADS))] == ["slow_loader"]
    grows = rank(life(), torch_lines(100), summary=stats(memory=0.0))
    assert lasting(Case([grows])) == []


def test_of_a_run_only_the_ranks_of_the_node_are_looked_at(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", ranks=2)
    assert look(run, "n0", [(0, 1 << 62)]) == look(run, "n0", [(0, 1 << 62)])
    assert look(run, "elsewhere", [(0, 1 << 62)]) == []
    assert look(run, "n0", [(0, 1), (1, 2)]) == []


@pytest.mark.parametrize("hours", [2, 24])
def test_a_look_reads_as_much_of_a_long_run_as_of_a_short_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    run = make_run(tmp_path / "run", ranks=2)
    for file in [*run.glob("*/spans-0.arrow"), *run.glob("*/samples-0.arrow")]:
        name = file.name.partition("-")[0]
        file.rename(file.with_name(f"{name}-{hours}.arrow"))
        for hour in range(hours):
            second = (hour - hours) * 3600
            spent = [span(1000 * second, 1, "step", "step", 1)]
            rows = spent if name == "spans" else steady(1, {("cpu.util.percent", None): 1.0})
            old = [{**row, "time": T0 + second * 10**9} for row in rows]
            write_closed(file.parent, schema.TABLES[name], old, hour)
    opened: Counter[str] = Counter()
    original = segment_file.Opened._open

    def counted(
        self: segment_file.Opened, file: Path, how: Callable[[], None]
    ) -> segment_file.Opened:
        opened[f"{file.parent.name}/{file.name}"] += 1
        return original(self, file, how)

    monkeypatch.setattr(segment_file.Opened, "_open", counted)
    look(run, "n0", [(T0, T0 + 60 * 10**9)])
    asked = {name for name in opened if "spans" in name or "samples" in name}
    assert len(asked) == 10, "of five tables the newest file, and one before it"
    assert {int(name.rpartition("-")[2].split(".")[0]) for name in asked} == {hours, hours - 1}


def said(*words: str) -> Any:
    program = "from haiprof.answers.live import main; main()"
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, *words], check=True, capture_output=True,
        timeout=120, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    return json.loads(done.stdout)


def test_it_says_so_as_json(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", ranks=2)
    assert said("60", str(run), "n0", "0", "1") == {"findings": [], "problem": None}
    assert "no such" in said("60", str(tmp_path / "none"), "n0", "0", "1")["problem"]
