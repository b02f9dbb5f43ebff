"""Findings on devices that were idle with work queued, and silence where nothing is known."""

from __future__ import annotations

import pytest
from planted import BEGIN, IDLE, SLOW, STEP, STEPS, US, Job, first


def queued(idle: dict[int, tuple[int, int]], name: str = "cudaLaunchKernel") -> Job:
    """A job whose kernels were all launched by the 20th µs of their step."""
    job = Job()
    for number in range(1, STEPS + 1):
        begin = (number - 1) * STEP
        low, high = idle.get(number, (500, 500))
        job.launch(begin + 20, 50 + number, name)
        job.ran(begin, begin + low, correlation=number)
        job.ran(begin + high, begin + STEP, correlation=50 + number)
    return job


def test_the_host_is_not_blamed_for_work_that_was_queued() -> None:
    # 1.3 % of the time: nothing is known about it, and it is little.
    assert queued({SLOW: (300, 340)}).findings() == []
    (found,) = queued(IDLE).findings()
    assert (found.kind, found.saves_ns) == ("incomplete", None)
    assert found.share == pytest.approx(400 / 3000)
    assert "enable_cuda_sync_events" in found.advice
    # What the host takes long in may be less than it seems, then.
    job = queued({1: (300, 700), **IDLE})
    for row in job.spans:
        if row.get("correlation") == 51:
            row["start"] = 700 * US
    job.host("op", "aten::addmm", 300, 701)
    launch, *_ = job.findings()
    assert (launch.kind, launch.saves_ns) == ("launch", 400 * US)
    assert "the trace may lack activities" in launch.evidence


def test_what_ran_before_the_first_activity_was_not_recorded() -> None:
    job = Job()
    job.launch(20, 50)
    job.ran(900, 3000, correlation=50)
    assert job.findings() == []


def test_a_graph_that_takes_long_to_start() -> None:
    job = queued(IDLE, "cudaGraphLaunch")
    found = job.findings()[0]
    assert (found.kind, found.saves_ns, found.step) == ("graph_launch", 400 * US, SLOW)
    assert "before the last one ends" in found.advice


@pytest.mark.parametrize(
    ("marks", "advice"),
    [
        ((), "fuse small kernels with torch.compile, launch them as a CUDA graph or give each"),
        (("CompiledFunction",), "launch them as a CUDA graph or give each kernel more to do"),
        (("CompiledFunction", "cudaGraphLaunch"), "give each kernel more to do by larger batches"),
    ],
)
def test_pauses_between_kernels_that_were_launched_in_time(
    marks: tuple[str, ...], advice: str
) -> None:
    job = Job()
    for name in marks:
        job.host("runtime" if name.startswith("cuda") else "op", name, 20, 20)
    for number in range(0, 3 * STEP, 10):
        job.launch(0, 1000 + number)
        job.ran(number, number + 8, correlation=1000 + number)
    (found,) = job.findings()
    assert (found.kind, found.saves_ns) == ("latency", 598 * US)
    assert found.advice.startswith(advice)
    assert found.evidence.endswith("299 pauses of 2 µs on average")


def test_pauses_that_no_device_can_do_without() -> None:
    job = Job()
    for number in range(0, 3 * STEP, 10):
        job.launch(0, 1000 + number)
        job.kernels.append({**_row(job), "start": number * US, "duration": 10 * US - 900,
                            "correlation": 1000 + number})  # fmt: skip
    assert job.findings() == []


def _row(job: Job) -> dict[str, object]:
    job.ran(0, 1)
    return job.kernels.pop()


def test_a_device_that_waits_for_another_one() -> None:
    job = queued(IDLE)
    job.host("runtime", "cudaStreamWaitEvent", BEGIN + 18, BEGIN + 19)
    job.launch(BEGIN + 17, 90)
    for begin in (0, BEGIN, 2 * STEP):
        job.ran(begin + 1, begin + 695, "stage 0", device=1, correlation=90, stream=3)
    found = [each for each in job.findings() if each.kind == "other_device"]
    assert found[0].saves_ns == (695 - 300) * US // 2
    assert found[0].evidence.endswith("mostly for stage 0")


def test_a_cause_that_is_first_is_not_of_the_queue() -> None:
    job = Job().busy(IDLE)
    job.host("op", "aten::sort", BEGIN + 300, BEGIN + 700)
    first(job, "cpu_operator", "aten::sort", 400)
