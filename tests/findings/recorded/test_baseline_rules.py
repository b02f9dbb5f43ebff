"""What a run takes longer for than a good one."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from recorded_cases import STEPS, life, node, rank, stats

from haiprof.findings.finding import Finding
from haiprof.findings.kinds import KINDS
from haiprof.findings.recorded.baseline_rules import slower
from haiprof.findings.recorded.case import Case

MS = 1_000_000


def case(own: Any, facts: dict[str, Any] | None = None, **more: Any) -> Case:
    return Case([rank(own, facts=facts or {})], **more)


def only(after: Case, before: Case) -> Finding:
    (finding,) = slower(after, before, "good")
    assert finding.kind in KINDS
    return finding


def test_a_step_that_takes_longer_is_named_with_what_does() -> None:
    finding = only(case(life({"dataloader": 41, "forward": 32})), case(life()))
    assert finding.kind == "regression"
    assert finding.problem == "A step takes 142 ms instead of 100 ms in good: 40 ms more in input"
    assert finding.phase == "input"
    assert finding.lost_ns == pytest.approx(42 * MS * STEPS, rel=0.02)
    assert finding.low_ns is not None
    assert finding.high_ns is not None
    assert finding.low_ns <= (finding.lost_ns or 0) <= finding.high_ns
    first, second = finding.evidence[:2]
    assert (first.metric, second.metric) == ("a step", "input, a step")
    assert second.reference == pytest.approx(1 * MS, rel=0.02)


@pytest.mark.parametrize("forward", [20, 30, 33])
def test_what_takes_as_long_or_less_is_no_finding(forward: float) -> None:
    assert slower(case(life({"forward": forward})), case(life()), "good") == []


def test_settings_that_differ_are_evidence() -> None:
    good = {
        "loader": [{"loader": 0, "num_workers": 4, "batch_size": 8}, {"num_workers": 9}],
        "threads": [{"num_threads": 1}, {"num_threads": 8}],
    }
    now = {
        "loader": [{"loader": 7, "num_workers": 0, "batch_size": 8}],
        "threads": [{"num_threads": 8}],
    }
    finding = only(case(life({"dataloader": 41}), now), case(life(), good))
    settings = [each for each in finding.evidence if each.unit == "setting"]
    assert [(each.metric, each.reference, each.value) for each in settings] == [
        ("loader.num_workers", "4", "0")
    ]


def moving(ms: float, size: int) -> Case:
    waits = [(160 + (100 + ms) * n, 160 + ms + (100 + ms) * n) for n in range(STEPS)]
    pending = [(low, low, high, 1) for low, high in waits]
    own = life({"backward": 60 + ms}, waits=waits, pending=pending)
    rows = {"operations": [STEPS], "bytes": [size], "op": ["all_reduce"]}
    return Case([rank(own)], operations=pl.DataFrame(rows))


def test_as_many_bytes_that_take_longer_are_a_slow_link() -> None:
    finding = only(moving(40, 1 << 20), moving(10, 1 << 20))
    assert finding.kind == "slow_link"
    assert finding.problem.startswith("The 1 MiB that each step transfers take 40 ms")
    assert only(moving(40, 4 << 20), moving(10, 1 << 20)).kind == "regression"


def clocked(own: Any, hertz: float) -> Case:
    sampled = node(50)
    sampled.stats["cpu.frequency.hertz"] = stats(cpu=hertz).stats["proc.cpu.percent"]
    return case(own, nodes=[sampled])


def test_a_lower_clock_explains_what_all_work_takes_longer() -> None:
    good = clocked(life(), 3e9)
    all_slower = {"forward": 45.0, "backward": 90.0, "optimizer": 12.0, "other": 1.5}
    finding = only(clocked(life(all_slower), 2e9), good)
    assert finding.kind == "cpu_clock"
    assert "run at 2 GHz, and ran at 3 GHz in good" in finding.problem
    assert only(clocked(life({"forward": 78.0}), 2e9), good).kind == "regression"
    assert only(clocked(life(all_slower), 3e9), good).kind == "regression"


def test_runs_without_steps_say_nothing() -> None:
    assert slower(Case([]), case(life()), "good") == []
    assert slower(case(life()), Case([]), "good") == []
