"""What a training job notices: import, memory, the recorder's CPU and memory."""

from __future__ import annotations

import statistics
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
from figures import (
    Figure,
    Interval,
    Measured,
    Reference,
    Unit,
    added_within,
    at_most,
    median,
)
from processes import cpu_seconds, recorder_of, rss_mib
from recording import wait_recorded
from reporting import Report

SOAK_SECONDS = 600
HERE = Path(__file__).parent


def start(program: str, *arguments: str) -> subprocess.Popen[str]:
    """Start a program that may import ``trainer``."""
    program = f"import sys; sys.path.append({str(HERE)!r})\n" + textwrap.dedent(program)
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE, text=True
    )


def printed(program: str, *arguments: str) -> str:
    """Run a program and return what it wrote."""
    with start(program, *arguments) as process:
        assert process.stdout is not None
        out = process.stdout.read()
    assert process.returncode == 0
    return out


def test_import(benchmark: Any, report: Report, shm: Path) -> None:
    program = """
    import time
    begin = time.perf_counter()
    import haiprof
    haiprof.start, haiprof.range
    print((time.perf_counter() - begin) * 1e3)
    """
    times = benchmark.pedantic(
        lambda: [float(printed(program)) for _ in range(15)], rounds=1, iterations=1
    )
    took = median(times).times(1e-3)
    report(Figure("import haiprof", Unit.SECONDS, took, target=at_most(50e-3)))


def test_interpreter_start_when_off(benchmark: Any, report: Report, shm: Path) -> None:
    pth = HERE.parent / "haiprof.pth"
    program = f"""
    import time
    line = {pth.read_text()!r}
    times = []
    for _ in range(2001):
        begin = time.perf_counter_ns()
        exec(line)
        times.append(time.perf_counter_ns() - begin)
    times.sort()
    print(times[0] / 1e3, times[1000] / 1e3, times[-1] / 1e3)
    """
    least, middle, most = benchmark.pedantic(
        lambda: [float(x) for x in printed(program).split()], rounds=1, iterations=1
    )
    took = Measured(middle, Interval(least, most, "range")).times(1e-6)
    what = "starting an interpreter with haiprof off"
    report(Figure(what, Unit.SECONDS, took, target=at_most(100e-6)))


def test_memory_added_to_the_job(benchmark: Any, report: Report, shm: Path, tmp_path: Path) -> None:
    program = """
    from trainer import Training, rss_mib
    training = Training()
    training.run(2)
    before = rss_mib()
    if sys.argv[1:]:
        import haiprof
        haiprof.start(sys.argv[1], run="memory")
    training.run(4)
    print(rss_mib() - before)
    """

    def measure() -> tuple[list[float], list[float]]:
        added = [float(printed(program, str(tmp_path / str(i)))) for i in range(3)]
        return added, [float(printed(program)) for _ in range(3)]

    added, anyway = benchmark.pedantic(measure, rounds=1, iterations=1)
    wait_recorded(shm, 120)
    mib = statistics.median(added) - statistics.median(anyway)
    benchmark.extra_info.update(with_haiprof_mib=added, without_mib=anyway)
    # As far as any two of the jobs lie apart.
    ends = Interval(min(added) - max(anyway), max(added) - min(anyway), "range")
    memory = Measured(mib, ends).times(2**20)
    report(Figure("memory added to the job", Unit.BYTES, memory, target=at_most(24 * 2**20)))


def test_cpu_of_the_recorder_at_defaults(
    benchmark: Any, report: Report, shm: Path, tmp_path: Path
) -> None:
    program = """
    import haiprof
    haiprof.start(sys.argv[1], run="cpu")
    from trainer import Training
    print(Training().run(float(sys.argv[2])))
    """
    seconds = 40.0

    def measure() -> tuple[float, float, int]:
        job = start(program, str(tmp_path), str(seconds + 5))
        recorder = recorder_of(shm)
        time.sleep(4)  # its imports and first files
        begin, used = time.monotonic(), cpu_seconds(recorder)
        time.sleep(seconds)
        share = (cpu_seconds(recorder) - used) / (time.monotonic() - begin)
        memory = rss_mib(recorder)
        out, _ = job.communicate()
        return share, memory, int(out)

    share, memory, steps = benchmark.pedantic(measure, rounds=1, iterations=1)
    wait_recorded(shm, 120)
    benchmark.extra_info.update(steps=steps)
    report(
        Figure("the recorder, of a core", Unit.SHARE, Measured(share), target=at_most(0.01)),
        Figure("the recorder's memory", Unit.BYTES, Measured(memory * 2**20)),
    )


@pytest.mark.soak
def test_memory_of_the_recorder_after_ten_minutes(
    benchmark: Any, report: Report, shm: Path, tmp_path: Path
) -> None:
    program = """
    import haiprof, time
    haiprof.start(sys.argv[1], run="soak", hooks=False)
    begin, n = time.monotonic(), 0
    spans = [haiprof.range(f"work {i}") for i in range(50)]
    while (elapsed := time.monotonic() - begin) < float(sys.argv[2]):
        while n < elapsed * 5000:
            with spans[n % 50]:
                pass
            n += 1
        time.sleep(0.002)
    print(n)
    """
    mib: list[tuple[int, float]] = []

    def measure() -> int:
        job = start(program, str(tmp_path), str(SOAK_SECONDS + 5))
        recorder = recorder_of(shm)
        begin = time.monotonic()
        for second in range(0, SOAK_SECONDS + 1, 10):
            time.sleep(max(0, begin + second - time.monotonic()))
            mib.append((second, rss_mib(recorder)))
        out, _ = job.communicate()
        return int(out)

    records = benchmark.pedantic(measure, rounds=1, iterations=1)
    wait_recorded(shm, 120)
    at = dict(mib)
    benchmark.extra_info.update(records=records, rss_mib=mib)
    assert records >= 5000 * SOAK_SECONDS
    after, early = (Measured(at[second] * 2**20) for second in (SOAK_SECONDS, 60))
    what = "the recorder's memory after ten minutes"
    one = Reference("after one", early)
    report(Figure(what, Unit.BYTES, after, one, added_within(5 * 2**20)))
