"""Who uses the disk that makes storage slow."""

from __future__ import annotations

import pytest
from recorded_cases import found, life, line, node, rank, stats, torch_lines

from haiprof.findings.finding import Finding
from haiprof.findings.recorded.case import Rank
from haiprof.views.run.overview import Summary
from haiprof.views.run.series import Stat

MB = 10.0**6


def stat(mean: float) -> Stat:
    return Stat(mean, mean, 1, 0, 10**9, 100)


def reading(own: float | None) -> Rank:
    """Return a rank that waits for its loader, which reads so many bytes a second."""
    summary = stats()
    if own is not None:
        summary.stats["io.storage_read.bytes_per_s"] = stat(own)
    reads = line("input", 60, "load (/job/data.py:4)", worker=True, state="uninterruptible",
                 waits_in="folio_wait_bit", gil=False)  # fmt: skip
    return rank(life({"dataloader": 100.0}), [reads, *torch_lines(50)], summary=summary)


def busy(percent: float, read: float = 200 * MB) -> Summary:
    summary = node(50.0)
    summary.part_stats = {
        "sda": {
            "disk.busy.percent": stat(percent),
            "disk.read.bytes_per_s": stat(read),
            "disk.queue.requests": stat(31.0),
            "disk.read_latency.milliseconds": stat(45.0),
        },
        "sdb": {"disk.busy.percent": stat(1.0), "disk.read.bytes_per_s": stat(5 * MB)},
    }
    return summary


def of(own: float | None, summary: Summary) -> Finding:
    (finding,) = found(reading(own), nodes=[summary])
    assert finding.kind == "slow_storage"
    return finding


def test_other_programs_that_use_the_disk_are_named_with_it() -> None:
    finding = of(20 * MB, busy(97.0))
    assert finding.problem.endswith(
        "Other programs move 180 MB/s of the 200 MB/s of disk sda of n0, which is busy 97 % of the "
        "time; 31.0 requests are in its queue, and one takes 45 ms"
    )
    assert finding.advice.startswith("move the programs that use that disk")
    assert finding.evidence[-1].value == pytest.approx(180 * MB)


@pytest.mark.parametrize(
    ("own", "summary"),
    [(190 * MB, busy(97.0)), (20 * MB, busy(20.0)), (None, busy(97.0)), (20 * MB, node(50.0))],
)
def test_a_disk_that_the_job_itself_uses_or_that_has_time_is_not_named(
    own: float | None, summary: Summary
) -> None:
    assert "Other programs" not in of(own, summary).problem
