"""What the kernel reports counts where steps around it are slow, and only there."""

from __future__ import annotations

import json
from collections.abc import Sequence

import polars as pl
import pytest
from charged_lives import MS
from recorded_cases import PHASES, found, life, line, rank, torch_lines

from haiprof.findings.finding import Finding
from haiprof.findings.recorded.case import LINKS_SCHEMA

SECOND = 10**9
STEPS = 3000  # of 0.1 s
SLOW = {1000: {"dataloader": 40_000.0}}
#: When step 1000 of those ends, s.
AT = 140
SERVER = "nfs: server fs1 not responding, still trying"


def reports(*given: tuple[float, str, str]) -> pl.DataFrame:
    rows = [
        ("n0", round(at * SECOND), "kernel_log", text, json.dumps({"about": about}))
        for at, about, text in given
    ]
    return pl.DataFrame(rows, LINKS_SCHEMA, orient="row")


def of(
    seldom: dict[int, dict[str, float]], *given: tuple[float, str, str], **more: int
) -> Sequence[Finding]:
    own = rank(life(seldom=seldom, steps=STEPS), torch_lines(100))
    return found(own, reports=reports(*given), **more)


def test_a_server_that_did_not_answer_while_a_step_waited() -> None:
    (finding,) = of(SLOW, (AT - 5, "nfs", SERVER), (AT - 1, "nfs", "nfs: server fs1 OK"))
    assert (finding.kind, finding.phase, finding.ranks) == ("slow_storage", "input", (0,))
    assert (finding.since, finding.until) == (1000, 1000)
    assert finding.problem.endswith(f"on n0, as its kernel reported: {SERVER} (2 reports)")
    assert finding.lost_ns == pytest.approx(40_000 * MS, rel=0.01)


def test_what_else_is_said_of_the_same_steps_is_left_out() -> None:
    waits = {n: {"dataloader": 2_000.0} for n in range(1000, 1040, 2)}
    assert [one.kind for one in of(waits)] == ["slow_loader"]
    (finding,) = of(waits, (AT, "nfs", SERVER))
    assert (finding.kind, finding.since, finding.until) == ("slow_storage", 1000, 1038)


@pytest.mark.parametrize(
    ("seldom", "given"),
    [
        ({}, (AT, "nfs", SERVER)),
        ({}, (AT, "mce", "mce: [Hardware Error]: Machine check events logged")),
        ({}, (AT, "disk", "I/O error, dev sda, sector 1")),
    ],
)
def test_a_report_without_slow_steps_is_no_finding(
    seldom: dict[int, dict[str, float]], given: tuple[float, str, str]
) -> None:
    assert of(seldom, given) == []


@pytest.mark.parametrize(
    "given",
    [(AT + 120, "mce", "late"), (AT - 5, "xid", "said elsewhere"), (AT - 5, "unheard of", "")],
)
def test_a_report_that_is_not_of_that_time_or_kind_explains_nothing(
    given: tuple[float, str, str],
) -> None:
    assert of(SLOW, given) == []


def test_steps_that_are_as_slow_elsewhere_are_not_explained() -> None:
    often = {n: {"dataloader": 4_000.0} for n in range(100, STEPS, 200)}
    found_of = [one.kind for one in of(often, (AT, "mce", "mce: [Hardware Error]"))]
    assert "machine_errors" not in found_of


@pytest.mark.parametrize(("more", "phase"), [(2_000, "hang"), (250, "forward")])
def test_where_steps_are_when_the_hardware_fails_is_named(more: int, phase: str) -> None:
    slow = {n: {"forward": PHASES["forward"] + more} for n in range(1000, 1000 + 25_000 // more)}
    # Step 1000 begins after 100.1 s.
    own = line(phase, 60, "Net.forward (/job/net.py:7)", slow=phase == "forward", gil=False)
    seen = rank(life(seldom=slow, steps=STEPS), [own, *torch_lines(100)])
    (finding,) = found(seen, reports=reports(*((at, "mce", "a") for at in range(100, 140, 5))))
    assert (finding.kind, finding.phase) == ("machine_errors", phase)
    assert finding.line == "Net.forward (/job/net.py:7)"


def test_a_damaged_report_is_none() -> None:
    rows = [("n0", AT * SECOND, "kernel_log", None, text) for text in ("", "[]", "{", None)]
    own = rank(life(seldom=SLOW, steps=STEPS), torch_lines(100))
    assert found(own, reports=pl.DataFrame(rows, LINKS_SCHEMA, orient="row")) == []
