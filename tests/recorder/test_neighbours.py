"""What others do on the node beside a training job: each shows in its own series, and in no other.

The memory controllers are stood in for by a PMU that every machine has, which counts the pages that
are touched for the first time: who writes fresh memory is counted to the byte.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from commands import start_haiprof, the_run
from fixtures import ROOT
from recording import read_table, wait_recorded

pytestmark = pytest.mark.jobs

EXAMPLE = ROOT / "examples" / "train_digits.py"
MIB = 1 << 20
#: How long each of them is watched, s.
WATCHED = 5.0
#: The job keeps the memory that it has freed: else it touches fresh pages at each step, and more or
#: fewer of them with its speed, which whoever takes CPU time from it changes.
KEEPS_MEMORY = {
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    "MALLOC_TOP_PAD_": str(1 << 26),
    "MALLOC_MMAP_THRESHOLD_": str(1 << 25),
}

BURN = """
import contextlib, json, os, sys, time
with contextlib.suppress(PermissionError):  # it burns as much on a machine that has other work
    os.nice(-15)
end = time.monotonic() + float(sys.argv[1])
done = [(time.time_ns(), time.process_time())]
while time.monotonic() < end:
    busy = time.process_time() + 0.03
    while time.process_time() < busy:
        pass
    done.append((time.time_ns(), time.process_time()))
    time.sleep(0.03)
    done.append((time.time_ns(), time.process_time()))
print(json.dumps(done))
"""

READ = """
import json, mmap, os, sys, time
fd = os.open(sys.argv[2], os.O_RDONLY | os.O_DIRECT)
buffer, read = mmap.mmap(-1, 1 << 20), 0
begun, end = time.monotonic(), time.monotonic() + float(sys.argv[1])
done = [(time.time_ns(), read)]
while time.monotonic() < end:
    read += os.preadv(fd, [buffer], read % (64 << 20))
    done.append((time.time_ns(), read))
    time.sleep(max(0.0, begun + read / (40 << 20) - time.monotonic()))
print(json.dumps(done))
"""

STREAM = """
import json, mmap, sys, time
part, written = 4 << 20, 0
begun, end = time.monotonic(), time.monotonic() + float(sys.argv[1])
done = [(time.time_ns(), written)]
while time.monotonic() < end:
    with mmap.mmap(-1, part) as fresh:
        fresh.madvise(mmap.MADV_NOHUGEPAGE)
        for page in range(0, part, mmap.PAGESIZE):
            fresh[page] = 1
    written += part
    done.append((time.time_ns(), written))
    time.sleep(max(0.0, begun + written / (80 << 20) - time.monotonic()))
print(json.dumps(done))
"""


@dataclass(frozen=True, eq=False)
class Watched:
    """One neighbour: when it was there (ns UTC); what it had done by when, and the job in CPU s."""

    begin: int
    end: int
    done: list[tuple[int, float]]
    of_job: list[tuple[int, float]]


@dataclass(frozen=True)
class Sampled:
    """The mean of a metric from its first to its last sample while a neighbour was there."""

    first: int
    last: int
    mean: float

    def rate(self, done: list[tuple[int, float]]) -> float:
        """What somebody did a second in that time."""
        begin, end = np.interp([self.first, self.last], *zip(*done, strict=True))
        return float(end - begin) / (self.last - self.first) * 1e9


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    """A tree whose memory controller is the kernel's count of page faults, on every CPU."""
    try:
        paranoid = int(Path("/proc/sys/kernel/perf_event_paranoid").read_text())
    except OSError:
        pytest.skip("this kernel has no perf events")
    if os.geteuid() != 0 and paranoid > 0:
        pytest.skip("counting all of a CPU needs root, CAP_PERFMON or perf_event_paranoid <= 0")
    root = tmp_path / "sys"
    pmu = root / "bus" / "event_source" / "devices" / "uncore_imc_free_running_0"
    cpus = sorted(os.sched_getaffinity(0))
    files = {
        pmu / "type": "1",  # PERF_TYPE_SOFTWARE
        pmu / "cpumask": ",".join(map(str, cpus)),
        pmu / "format" / "event": "config:0-7",
        pmu / "events" / "write": "event=0x02",  # PERF_COUNT_SW_PAGE_FAULTS
        pmu / "events" / "write.scale": str(os.sysconf("SC_PAGESIZE") / MIB),
        pmu / "events" / "write.unit": "MiB",
        pmu / "events" / "read": "event=0x04",  # PERF_COUNT_SW_CPU_MIGRATIONS
        pmu / "events" / "read.scale": "1",
        pmu / "events" / "read.unit": "MiB",
    }
    for cpu in cpus:
        topology = root / "devices" / "system" / "cpu" / f"cpu{cpu}" / "topology"
        files[topology / "physical_package_id"] = "0"
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n", encoding="utf-8")
    return root


def cpu_seconds(session: int) -> float:
    """Return what all processes of a session have spent, their ended children included."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session:
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def beside(job: int, program: str, *arguments: str) -> Watched:
    begin = time.time_ns()
    words = [sys.executable, "-c", program, str(WATCHED), *arguments]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as neighbour:
        of_job = []
        while time.time_ns() < begin + WATCHED * 1e9:
            of_job.append((time.time_ns(), cpu_seconds(job)))
            time.sleep(0.2)
        end = time.time_ns()
        printed, _ = neighbour.communicate()
    assert neighbour.returncode == 0
    return Watched(begin, end, json.loads(printed), of_job)


def rows(folder: Path, metric: str, watched: Watched, instance: str | None) -> pa.Table:
    """Return a metric while a neighbour was there; the moments of its coming and going apart."""
    samples = read_table(folder, "samples")
    kept = (pc.field("metric") == metric) & (pc.field("time") > watched.begin + 10**9)
    kept &= pc.field("time") < watched.end - 10**9 // 2
    kept &= pc.field("instance").is_null() if instance is None else pc.field("instance") == instance
    return samples.filter(kept).sort_by("time")


def values(folder: Path, metric: str, watched: Watched, instance: str | None) -> list[float]:
    return rows(folder, metric, watched, instance)["value"].to_pylist() or [0.0]


def sampled(folder: Path, metric: str, watched: Watched, instance: str | None = None) -> Sampled:
    found = rows(folder, metric, watched, instance)
    times, means = found["time"].to_numpy(), found["value"].to_numpy()
    # Each is the mean since the one before.
    mean = np.average(means[1:], weights=np.diff(times))
    return Sampled(int(times[0]), int(times[-1]), float(mean))


def whole_disk(path: Path) -> str:
    """Return the name of the disk that a file lies on; skip where that is no disk."""
    device = path.stat().st_dev
    block = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
    if not block.exists():
        pytest.skip(f"{path} does not lie on a disk")
    block = block.resolve()
    return block.parent.name if (block / "partition").exists() else block.name


def test_each_neighbour_shows_in_its_own_series_and_in_no_other(
    shm: Path, tmp_path: Path, sysfs: Path
) -> None:
    file = tmp_path / "data"
    file.write_bytes(os.urandom(MIB) * 64)
    disk = whole_disk(file)
    with file.open("rb") as written:
        os.fsync(written.fileno())
    job = start_haiprof(
        "run", "--log-dir", tmp_path / "log", "--sample-hz", "4", "--sysfs-root", sysfs, "--",
        sys.executable, EXAMPLE, "--epochs", "100000", "--workers", "0",
        env={**os.environ, **KEEPS_MEMORY, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    try:
        assert job.stdout is not None
        assert job.stdout.readline().startswith("epoch 1/")
        nobody = beside(job.pid, "import time, sys; time.sleep(float(sys.argv[1])); print([])")
        burner = beside(job.pid, BURN)
        reader = beside(job.pid, READ, str(file))
        streamer = beside(job.pid, STREAM)
    finally:
        os.killpg(job.pid, signal.SIGTERM)
        job.communicate(timeout=60)
    wait_recorded(shm)

    run = the_run(tmp_path / "log")
    node = next(p.parent for p in run.glob("*/process.json") if "#" not in p.parent.name)
    cores = os.cpu_count() or 1

    everybody = (nobody, burner, reader, streamer)
    whole = {w: sampled(node, "cpu.util.percent", w) for w in everybody}
    of_job = {w: sampled(node, "proc.cpu.percent", w, "command") for w in everybody}
    others = {w: (whole[w].mean * cores - of_job[w].mean) / 100 for w in everybody}

    def change(metric: str, watched: Watched, instance: str | None = None) -> float:
        now, before = (values(node, metric, w, instance) for w in (watched, nobody))
        return statistics.median(now) - statistics.median(before)

    # Who else keeps this machine busy burns CPU and touches memory, too: what comes on top is only
    # sure where nobody does.
    burnt = whole[burner].rate(burner.done)
    own = {nobody: 0.0, burner: burnt, reader: 0.0, streamer: 0.0}
    quiet = all(others[watched] - own[watched] < 0.3 for watched in own)

    # The one that burns CPU: as much that is not the job's.
    assert burnt > 0.1
    assert others[burner] > burnt - 0.15
    if quiet:
        for watched in (burner, reader, streamer):
            more = others[watched] - others[nobody]
            assert more == pytest.approx(own[watched], abs=0.25)

    # The one that reads past the page cache: the disk, and not the job.
    read = {w: sampled(node, "disk.read.bytes_per_s", w, disk) for w in everybody}
    wanted = read[reader].rate(reader.done)
    assert read[reader].mean > 0.9 * wanted
    for watched in (burner, reader, streamer):
        if quiet:
            more = read[watched].mean - read[nobody].mean
            due = wanted if watched is reader else 0.0
            assert more == pytest.approx(due, rel=0.05, abs=2 * MIB)
        for metric in ("io.storage_read.bytes_per_s", "io.syscall_read.bytes_per_s"):
            assert abs(change(metric, watched, "command")) < 2 * MIB

    # The one that streams through memory: the memory controllers.
    written = {w: sampled(node, "dram.write.bytes_per_s", w) for w in everybody}
    wanted = written[streamer].rate(streamer.done)
    assert written[streamer].mean > 0.9 * wanted
    for watched in (burner, reader, streamer) if quiet else ():
        more = written[watched].mean - written[nobody].mean
        due = wanted if watched is streamer else 0.0
        assert more == pytest.approx(due, rel=0.05, abs=8 * MIB)

    # And what the job is seen to do is what it did, whoever was beside it.
    for watched in (burner, reader, streamer):
        did = of_job[watched].rate(watched.of_job)
        assert of_job[watched].mean / 100 == pytest.approx(did, rel=0.15)
        assert abs(change("proc.rss.bytes", watched, "command")) < 64 * MIB
