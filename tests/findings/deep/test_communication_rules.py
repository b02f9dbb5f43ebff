"""Findings on communication: moving data apart from waiting, and who is waited for."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest
from planted import BEGIN, IDLE, US, Job

from haiprof.findings.deep import communication_rules as rules

WHO = {"node": "n0", "session": 1}


def communicating(op: str, *marks: str) -> Job:
    """A job that communicates from 300 to 700 µs of its second step, and computes nothing then."""
    job = Job().busy(IDLE)
    for place, name in enumerate(marks):
        job.host("user", name, 20 + place, 20 + place)
    job.host("user", f"nccl:{op}", BEGIN + 100, BEGIN + 101)
    job.launch(BEGIN + 100, 70)
    job.ran(BEGIN + 300, BEGIN + 700, "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)",
            stream=20, correlation=70)  # fmt: skip
    return job


TRAINS, DDP, FSDP = "Optimizer.step#SGD.step", "DistributedDataParallel.forward", "FSDP::unshard"


@pytest.mark.parametrize(
    ("op", "marks", "has", "lacks"),
    [
        ("all_reduce", (TRAINS, DDP), "bucket_cap_mb", "prefetch"),
        ("all_reduce", (TRAINS,), "gradient accumulation", "bucket"),
        ("all_reduce", (), "fewer GPUs (tensor parallelism)", "gradient"),
        ("all_to_all", (TRAINS, DDP), "wait for it as late as possible", "bucket"),
        ("all_to_all", (TRAINS, FSDP), "smaller type", "FSDP"),
        ("all_gather", (TRAINS, FSDP), "set_modules_to_forward_prefetch", "bucket"),
        ("all_gather", (TRAINS, DDP), "wait for it as late as possible", "FSDP"),
        ("reduce_scatter", (TRAINS, FSDP), "set_modules_to_forward_prefetch", "bucket"),
        ("send", (TRAINS,), "micro-batches", "bucket"),
    ],
)
def test_the_advice_is_of_the_kind_of_collective_and_job(
    op: str, marks: tuple[str, ...], has: str, lacks: str
) -> None:
    found = next(f for f in communicating(op, *marks).findings() if f.kind.startswith("exposed"))
    assert (found.saves_ns, found.step) == (400 * US, 2)
    assert has in found.advice
    assert lacks not in found.advice
    assert found.evidence.endswith(f"400 µs of it is {op}")


def test_waiting_for_other_ranks_is_not_exposed_communication() -> None:
    job = communicating("all_reduce", TRAINS, DDP)
    begin = BEGIN * US
    waits = (np.array([begin + 250 * US]), np.array([begin + 600 * US]))
    (found,) = job.findings(waits)
    assert (found.kind, found.saves_ns) == ("exposed_communication", 100 * US)
    assert "300 µs more is waiting for other ranks" in found.evidence
    assert "waiting" not in found.problem
    # All of it: nothing is said.
    assert job.findings((np.array([begin]), np.array([begin + 700 * US]))) == []


def test_what_one_trace_cannot_tell_is_said() -> None:
    (found,) = communicating("all_reduce", TRAINS).findings()
    assert found.problem.endswith("nothing is computed, waiting for other ranks included")
    assert found.advice.endswith("to see how much of it is waiting for them")


def test_a_job_on_cpus_waits_for_other_ranks_too() -> None:
    job = Job()
    job.host("user", "gloo:all_reduce", BEGIN + 100, BEGIN + 900)
    (found,) = job.findings((np.array([(BEGIN + 200) * US]), np.array([(BEGIN + 500) * US])))
    assert (found.kind, found.saves_ns) == ("exposed_communication", 500 * US)
    assert job.findings((np.array([(BEGIN + 200) * US]), np.array([(BEGIN + 900) * US]))) == []


def ranks(*rows: tuple[float, int]) -> pl.DataFrame:
    """What each rank caused and waited itself, ns."""
    return pl.DataFrame(
        [
            {**WHO, "rank": rank, "pid": rank, "collectives": 9, "last": 3, "caused": caused,
             "waited": waited}
            for rank, (caused, waited) in enumerate(rows)
        ]
    ).sort("caused", descending=True)  # fmt: skip


def steps(*rows: dict[str, Any]) -> pl.DataFrame:
    who = [{**WHO, "rank": rank, "pid": rank, "duration": 1000} for rank in range(len(rows))]
    return pl.DataFrame([one | row for one, row in zip(who, rows, strict=True)])


def test_ranks_that_wait_for_each_other_by_turns_are_not_late() -> None:
    late = ranks((300.0, 200), (200.0, 300))
    assert rules.stragglers(late, steps({}, {})) == {}
    together = steps({"waiting": 200}, {"waiting": 300})
    ((key, (found,)),) = rules.waiting(together, {}).items()
    assert key == ("n0", 1, 1, 1)
    assert (found.kind, found.saves_ns, found.share) == ("waiting", 300, 0.3)
    assert found.problem.endswith("and no single rank is the reason")
    assert rules.waiting(steps({"waiting": None}, {"waiting": 9}), {}) == {}


@pytest.mark.parametrize(
    ("part", "advice"),
    [("kernel", "give it less of the work"), ("dataloader", "check its storage"),
     ("cpu", "check whether it has more to do")],
)  # fmt: skip
def test_what_a_late_rank_takes_long_in(part: str, advice: str) -> None:
    late = ranks((400.0, 10), (0.0, 400), (0.0, 380))
    parts = dict.fromkeys(("kernel", "dataloader", "cpu", "other"), 100)
    of_all = steps({**parts, part: 400}, parts, parts)
    ((_, (found,)),) = rules.stragglers(late, of_all).items()
    assert found.advice.startswith(advice)
    assert found.evidence.endswith("0.3 µs a step longer than the others'")
    ((_, (plain,)),) = rules.stragglers(late, steps(parts, parts, parts)).items()
    assert plain.advice.startswith("check what it does before these collectives")


def test_a_rank_that_waits_says_for_whom_and_saves_nothing_itself() -> None:
    late = ranks((400.0, 10), (0.0, 400))
    together = steps({"waiting": 10}, {"waiting": 400})
    (found,) = rules.waits_for(together, late, ("n0", 1, 1, 1))
    assert (found.kind, found.saves_ns, found.share) == ("waiting", None, 0.4)
    assert found.problem.endswith("in collectives, mostly for rank 0")
    assert rules.waits_for(together, late, ("n0", 0, 0, 1)) == []
