"""The training loop waits for its data: which findings say so, of whom, and why."""

from __future__ import annotations

from typing import Any

import pytest
from charged_lives import MS
from recorded_cases import STEPS, found, kinds, life, line, rank, torch_lines


def test_a_slow_loader_is_named_with_its_line() -> None:
    loads = [line("input", 40, "Data.__getitem__ (/job/data.py:7)"), *torch_lines(60)]
    (finding,) = found(rank(life({"dataloader": 50}), loads))
    assert (finding.kind, finding.line) == ("slow_loader", "Data.__getitem__ (/job/data.py:7)")
    assert finding.lost_ns == STEPS * 50 * MS
    assert "num_workers" in finding.advice


def test_when_it_began_and_ended_is_known() -> None:
    slow = {n: {"dataloader": 60.0} for n in range(40, 80)}
    (finding,) = found(rank(life(seldom=slow), torch_lines(100)))
    assert finding.kind == "slow_loader"
    assert 30 <= (finding.since or 0) <= 50
    assert 70 <= (finding.until or 0) <= 90
    (always,) = found(rank(life({"dataloader": 50.0}), torch_lines(100)))
    assert (always.since, always.until) == (None, None)


def test_of_a_loader_with_workers_theirs_is_the_line() -> None:
    waits = line("input", 40, state="waiting", waits_in="futex_do_wait", gil=False)
    works = line("input", 70, "Data.load (/job/data.py:8)", worker=True)
    facts = {"loader": [{"num_workers": 2}]}
    (finding,) = found(rank(life({"dataloader": 50}), [waits, works], facts=facts))
    assert (finding.kind, finding.line) == ("slow_loader", "Data.load (/job/data.py:8)")
    assert "more than 2 workers" in finding.advice


def test_reads_make_it_storage() -> None:
    reads = line("input", 40, "Data.read (/job/data.py:8)", state="uninterruptible",
                 waits_in="folio_wait_bit_common")  # fmt: skip
    assert kinds(rank(life({"dataloader": 50}), [reads])) == ["slow_storage"]


def test_single_slow_batches_are_no_slow_loader() -> None:
    seldom = {n: {"dataloader": 300.0} for n in range(5, STEPS, 10)}
    (finding,) = found(rank(life(seldom=seldom), torch_lines(100)))
    assert (finding.kind, finding.phase) == ("slow_batch", "input")
    assert "one in 10" in finding.problem
    assert abs((finding.lost_ns or 0) - 10 * 299 * MS) < 10 * MS


def test_slow_batches_of_a_busy_machine_are_not_the_datas_fault() -> None:
    seldom = {n: {"dataloader": 300.0} for n in range(5, STEPS, 10)}
    every = [(1000 * n + 1000, 30.0) for n in range(14)]
    assert "slow_batch" not in kinds(rank(life(seldom=seldom, queue=every), torch_lines(100)))


def epochs(of: int, start_ms: float = 60.0, recorded: int | None = None, **more: Any) -> Any:
    """Return a rank whose loader starts its workers in the first of so many steps each."""
    own = life(seldom={n: {"dataloader": start_ms} for n in range(0, STEPS, of)})
    begins = [{"time": int(own.start[n])} for n in range(0, STEPS, of)]
    settings = {"num_workers": 2, "persistent_workers": False, "batches": of, **more}
    facts = {"loader": [settings], "loader_workers": begins[:recorded]}
    return rank(own, torch_lines(100), facts=facts)


@pytest.mark.parametrize("recorded", [None, 6])
def test_workers_that_each_epoch_starts_anew_are_why_it_is_slow(recorded: int | None) -> None:
    (finding,) = found(epochs(5, recorded=recorded))
    assert finding.kind == "slow_loader"
    assert "starts 2 workers anew for each epoch of 5 batches" in finding.problem
    assert "persistent_workers=True" in finding.advice
    assert finding.lost_ns == pytest.approx(STEPS / 5 * 59 * MS, rel=0.01)


def test_workers_that_stay_are_not_why() -> None:
    assert kinds(epochs(5, persistent_workers=True)) == ["slow_batch"]
    assert kinds(epochs(25, start_ms=1000)) == ["slow_batch"]


IDLE = {
    "package": "python", "outer": "torch python", "state": "waiting", "gil": False,
    "file": "/usr/lib/python3.11/selectors.py", "waits_in": "poll_schedule_timeout",
}  # fmt: skip


def test_workers_that_wait_for_work_are_not_loading() -> None:
    waits = line("input", 40, state="waiting", waits_in="futex_do_wait", gil=False)
    # A forked worker's stack begins where the training loop asked for it.
    idle = line("input", 200, "main (/job/train.py:7)", worker=True, **IDLE)
    works = line("input", 40, "Data.load (/job/data.py:8)", worker=True)
    (finding,) = found(rank(life({"dataloader": 50}), [waits, idle, works]))
    assert (finding.kind, finding.line) == ("slow_loader", "Data.load (/job/data.py:8)")


def test_more_workers_than_cpus_are_no_advice() -> None:
    works = line("input", 70, "Data.load (/job/data.py:8)", worker=True)
    facts = {"loader": [{"num_workers": 8}], "threads": [{"affinity": 4}]}
    (finding,) = found(rank(life({"dataloader": 50}), [works], facts=facts))
    assert finding.advice == "make that function cheaper: its 8 workers share 4 CPUs"


def test_a_dataset_that_waits_for_a_server_is_slow_storage() -> None:
    asks = line("input", 40, "Data.get (/job/data.py:8)", worker=True, package="python",
                outer="python", state="waiting", gil=False, waits_in="wait_woken")  # fmt: skip
    assert kinds(rank(life({"dataloader": 50}), [asks])) == ["slow_storage"]
