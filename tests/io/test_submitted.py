"""What is read and written in every way there is: each byte in the series that see it, once."""

from __future__ import annotations

import ctypes
import itertools
import json
import mmap
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from recording import python, read_table, run_python, wait_for, wait_recorded

from haiprof import _core
from haiprof.capture import hooks

MB = 1 << 20
SIZE = 64 * MB

#: What makes the functions of the library that submits I/O callable.
LIBRARY = """
    import _ctypes, ctypes, json, mmap, os, sys, time
    from haiprof import _core

    class User:
        def __init__(self, path):
            self.path = path
            self.library = ctypes.CDLL(path)
            self.library.move.restype = self.library.wrong.restype = ctypes.c_long
            self.library.move.argtypes = [
                ctypes.c_char_p, ctypes.c_char_p, ctypes.c_long, ctypes.c_int, ctypes.c_int]

        def reload(self):
            before = self.loaded()
            _ctypes.dlclose(self.library._handle)
            gone = before - self.loaded()
            place = mmap.mmap(-1, 1 << 20)  # so that it cannot lie where it was
            self.__init__(self.path)
            self.place = place
            return sorted(os.path.basename(path) for path in gone)

        def loaded(self):
            return {line.split()[-1] for line in open("/proc/self/maps") if ".so" in line}

        def move(self, way, path, size, direct=0, write=0):
            got = self.library.move(way.encode(), os.fsencode(path), size, direct, write)
            assert got == size, (way, got)

        def wrong(self, way):
            error = ctypes.c_int()
            return self.library.wrong(way.encode(), ctypes.byref(error)), error.value
"""

# Does what its standard input says: a Python expression a line, with `user` the library.
SERVANT = (
    textwrap.dedent(LIBRARY)
    + """
_core.open_ring(sys.argv[1])
if sys.argv[2] == "hooked first":
    assert _core.count_submitted() == ""
user = User(sys.argv[3])
if sys.argv[2] == "loaded first":
    user.move("libaio", sys.argv[4], 1 << 20)  # so that calls are bound already
    assert _core.count_submitted() == ""
print("ready", flush=True)

def forked(work):
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException as error:
            print(error, file=sys.stderr)
            os._exit(1)
    return pid

for line in sys.stdin:
    print(json.dumps(eval(line)), flush=True)
"""
)


def real_library(name: str) -> Path:
    """Return the installed library of that name."""
    listed = subprocess.run(
        ["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=False
    ).stdout
    found = [line.split()[-1] for line in listed.splitlines() if line.split()[:1] == [name]]
    if not found:
        pytest.skip(f"{name} is not installed")
    return Path(found[0])


def needs_rings() -> None:
    """Skip where the kernel has no io_uring for us."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.syscall(425, 1, (ctypes.c_char * 120)())
    if fd < 0:
        pytest.skip(
            f"io_uring_setup: {os.strerror(ctypes.get_errno())} (kernel.io_uring_disabled, or a "
            "container that forbids it)"
        )
    os.close(fd)


@pytest.fixture
def submit(native_build: Path) -> Path:
    """The folder of the doubles of libraries that submit I/O, and of one that uses them."""
    return native_build / "tests" / "native" / "submit"


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    """A file of 64 MiB that lies on a disk."""
    path = tmp_path / "data"
    path.write_bytes(os.urandom(MB) * (SIZE // MB))
    kind = subprocess.run(
        ["stat", "-f", "-c", "%T", path], capture_output=True, text=True, check=True
    ).stdout.strip()
    if kind not in ("ext2/ext3", "xfs", "btrfs", "f2fs"):
        pytest.skip(f"{tmp_path} is on {kind}, which is no file system on a disk")
    yield path
    path.unlink()


def cached(path: Path) -> int:
    """Return how many bytes of a file are in the page cache."""
    with path.open("r+b") as file, mmap.mmap(file.fileno(), SIZE) as mapped:
        pages = (ctypes.c_ubyte * (SIZE // mmap.PAGESIZE))()
        first = ctypes.c_char.from_buffer(mapped)
        failed = ctypes.CDLL(None).mincore(
            ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(SIZE), pages
        )
        del first  # or the mapping cannot be closed
        assert not failed
    return sum(page & 1 for page in pages) * mmap.PAGESIZE


def make_cold(path: Path) -> None:
    """Take a file out of the page cache; what is in use just then stays for a moment."""

    def drop() -> bool:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return cached(path) == 0

    wait_for(drop, what="an empty page cache")


def make_hot(path: Path) -> None:
    """Bring a file into the page cache; others may need the memory meanwhile."""

    def read() -> bool:
        path.read_bytes()
        return cached(path) == SIZE

    wait_for(read, what="a file in the page cache")


class Job:
    """A process that does I/O on command, and what the sampler sees of it."""

    def __init__(
        self, shm: Path, library: Path, data: Path, order: str = "hooked first", **keywords: Any
    ) -> None:
        self.ring = shm / "1.ring"
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVANT, self.ring, order, library, data],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **keywords,
        )  # fmt: skip
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"
        self.sampler = _core.HostSampler(basic=20.0, io=20.0, gpu=0, ib=0, mem=0, power=0)
        self.now = time.monotonic_ns()
        self.sampler.watch(self.process.pid)
        self.sampler.watch_counters(self.process.pid, str(self.ring))
        self.grown()
        self.grown()

    def do(self, line: str) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def grown(self) -> dict[str, float]:
        """Return the bytes of each series since the last call; those with an instance by it."""
        self.now += 20_000_000_000
        grown = {}
        for pid, metric, instance, value, _ in self.sampler.read(self.now):
            if pid == self.process.pid and metric.startswith("io."):
                name = metric.removesuffix(".bytes_per_s").removeprefix("io.")
                grown[f"{name} {instance}" if instance else name] = value * 20
        return grown

    def stop(self) -> None:
        self.process.kill()
        self.process.communicate()


Start = Callable[..., Job]


@pytest.fixture
def start(shm: Path, submit: Path, data: Path) -> Iterator[Start]:
    """Starts a job with one of the libraries."""
    jobs: list[Job] = []

    def start_one(kind: str = "lazy", **keywords: Any) -> Job:
        jobs.append(Job(shm, submit / f"libio_user_{kind}.so", data, **keywords))
        return jobs[-1]

    yield start_one
    for job in jobs:
        job.stop()


def exactly(wanted: float) -> object:
    return pytest.approx(wanted, abs=SIZE / 100)


NOTHING: dict[str, float] = {}
AIO = {"submitted_read libaio": SIZE}
RING = {"submitted_read io_uring": SIZE}

# (how, O_DIRECT, from the page cache, what rchar sees, what read_bytes sees, what is submitted)
TABLE = [
    ("read", False, False, SIZE, SIZE, NOTHING),
    ("read", False, True, SIZE, 0, NOTHING),
    ("read", True, False, SIZE, SIZE, NOTHING),
    ("mmap", False, False, 0, SIZE, NOTHING),
    ("mmap", False, True, 0, 0, NOTHING),
    ("sendfile", False, False, SIZE, SIZE, NOTHING),
    ("libaio", True, False, 0, SIZE, AIO),
    ("libaio", False, False, 0, SIZE, AIO),
    ("libaio", False, True, 0, 0, AIO),
    ("libaio_vectors", True, False, 0, SIZE, AIO),
    ("libaio_syscall", True, False, 0, SIZE, AIO),
    ("uring", True, False, 0, SIZE, RING),
    ("uring", False, False, 0, SIZE, RING),
    ("uring", False, True, 0, 0, RING),
    ("uring_wait", True, False, 0, SIZE, RING),
    ("uring_timeout", True, False, 0, SIZE, RING),
    ("uring_vectors", True, False, 0, SIZE, RING),
    ("uring_polled", True, False, 0, SIZE, RING),
    ("uring_syscall", True, False, 0, SIZE, RING),
    ("uring_syscall", False, True, 0, 0, RING),
]


def name_of(row: Any) -> str | None:
    if isinstance(row, tuple):
        return f"{row[0]} {'direct' if row[1] else 'hot' if row[2] else 'cold'}"
    return None


def moved(job: Job, data: Path, way: str, *, direct: bool, hot: bool) -> dict[str, float]:
    for _ in range(3):
        if hot:
            make_hot(data)
        else:
            make_cold(data)
        job.do(f"user.move({way!r}, {str(data)!r}, {SIZE}, {int(direct)})")
        found = job.grown()
        # The job's own code comes from storage, too, where memory was short: the next time it is
        # there.
        if not hot or direct or found["storage_read"] == exactly(0):
            break
    return found


@pytest.mark.parametrize("kind", ["lazy", "now"])
def test_each_way_to_read_is_seen_where_the_table_says(start: Start, data: Path, kind: str) -> None:
    job = start(kind)
    for way, direct, hot, syscall, storage, submitted in TABLE:
        if way.startswith("uring"):
            needs_rings()
        found = moved(job, data, way, direct=direct, hot=hot)
        what = f"{way} {direct=} {hot=}"
        assert found.pop("syscall_read") == exactly(syscall), what
        assert found.pop("storage_read") == exactly(storage), what
        found = {name: n for name, n in found.items() if name.startswith("submitted") and n}
        assert found == submitted, what


@pytest.mark.parametrize("way", ["libaio", "libaio_vectors", "uring", "uring_vectors",
                                 "uring_syscall", "usrbio"])  # fmt: skip
def test_writes_are_distinguished_from_reads(start: Start, data: Path, way: str) -> None:
    if way.startswith("uring"):
        needs_rings()
    job = start()
    job.do(f"user.move({way!r}, {str(data)!r}, {SIZE}, 1, 1)")
    found = {n: bytes_ for n, bytes_ in job.grown().items() if n.startswith("submitted")}
    instance = {"l": "libaio", "u": "io_uring"}[way[0]] if way != "usrbio" else "usrbio"
    assert found == {f"submitted_write {instance}": SIZE}


@pytest.mark.parametrize(
    ("soname", "ways"),
    [
        ("libaio.so.1", ("libaio", "libaio_vectors", "libaio_syscall")),
        ("liburing.so.2", ("uring", "uring_wait", "uring_timeout", "uring_polled")),
    ],
)
def test_the_real_libraries(start: Start, data: Path, soname: str, ways: tuple[str, ...]) -> None:
    if soname.startswith("liburing"):
        needs_rings()
    job = start(env={**os.environ, "LD_PRELOAD": str(real_library(soname))})
    for way in ways:
        found = moved(job, data, way, direct=True, hot=False)
        assert found["syscall_read"] == exactly(0), way
        assert found["storage_read"] == exactly(SIZE), way
        wanted = RING if way.startswith("uring") else AIO
        assert {n: b for n, b in found.items() if n.startswith("submitted") and b} == wanted, way


def test_calls_that_were_bound_before_are_seen(start: Start, data: Path) -> None:
    job = start("now", order="loaded first")
    assert moved(job, data, "libaio", direct=True, hot=False)["submitted_read libaio"] == SIZE


@pytest.mark.parametrize("kind", ["lazy", "now"])
def test_libraries_may_be_unloaded_and_loaded_again(start: Start, data: Path, kind: str) -> None:
    job = start(kind)
    for _ in range(3):
        assert moved(job, data, "libaio", direct=True, hot=False)["submitted_read libaio"] == SIZE
        assert "libaio.so.1" in job.do("user.reload()")


def test_a_job_that_submits_nothing_has_no_such_series(start: Start, data: Path) -> None:
    job = start()
    found = moved(job, data, "read", direct=False, hot=True)
    assert not [name for name in found if name.startswith("submitted")]


def test_nothing_is_seen_any_more_once_it_is_taken_off(start: Start, data: Path) -> None:
    job = start()
    job.do("_core.leave_submitted()")
    assert "submitted_read libaio" not in moved(job, data, "libaio", direct=True, hot=False)
    assert job.do("_core.count_submitted()") == ""
    assert moved(job, data, "libaio", direct=True, hot=False)["submitted_read libaio"] == SIZE


@pytest.mark.parametrize("reap", ["while they are watched", "unseen"])
def test_forked_workers_count_once(start: Start, data: Path, reap: str) -> None:
    job = start()
    make_cold(data)
    work = f"lambda: user.move('libaio', {str(data)!r}, {SIZE // 4}, 1)"
    pids = [job.do(f"forked({work})") for _ in range(4)]
    seen = []
    if reap == "while they are watched":
        time.sleep(0.5)  # now they are zombies, and were seen with what they did
        seen.append(job.grown())
    for pid in pids:
        assert job.do(f"os.waitpid({pid}, 0)[1]") == 0
    seen += [job.grown(), job.grown()]
    for name, wanted in (("submitted_read libaio", SIZE), ("storage_read", SIZE)):
        assert sum(found.get(name, 0.0) for found in seen) == exactly(wanted), name
    assert sum(found["syscall_read"] for found in seen) == exactly(0)


WRONG = ["no context", "no list", "no request", "less than none", "no list by syscall", "no ring",
         "no parameters", "no such call"]  # fmt: skip


def test_wrong_arguments_fail_as_they_do_without_us(start: Start) -> None:
    job = start()
    with_us = [job.do(f"user.wrong({way!r})") for way in WRONG]
    job.do("_core.leave_submitted()")
    without = [job.do(f"user.wrong({way!r})") for way in WRONG]
    assert with_us == without
    assert with_us[1][0] == -14  # EFAULT, not a crash
    assert not [name for name in job.grown() if name.startswith("submitted")]


def test_counters_of_an_older_ring_are_missing_and_the_rest_is_read(shm: Path) -> None:
    ring = shm / "old.ring"
    run_python(
        """
        import sys
        from haiprof import _core
        _core.open_ring(sys.argv[1])
        _core.event("kind", "text")
        """,
        str(ring),
    )
    with ring.open("r+b") as file:
        file.seek(10)
        assert file.read(2) == b"\x0c\0"  # layout 1.12
        size = int.from_bytes(file.read(4), "little")
        older = 2240  # where SuperBlock::counter_offset is
        file.seek(10)
        file.write(b"\2\0" + older.to_bytes(4, "little"))
        file.seek(older)
        file.write(bytes(size - older))
    reader = _core.RingReader(str(ring))
    assert reader.header["layout"] == "1.2"
    assert reader.take() == 1
    sampler = _core.HostSampler(basic=0, io=1.0, gpu=0, ib=0, mem=0, power=0)
    sampler.watch_counters(os.getpid(), str(ring))
    (source,) = (s for s in sampler.sources() if s["name"] == "submitted")
    assert source["state"] == "absent"


def samples(folder: Path, metric: str) -> dict[int, float]:
    rows = read_table(folder, "samples").to_pylist()
    return {row["time"]: row["value"] for row in rows if row["metric"] == metric}


def recorded_bytes(run: Path) -> float:
    """Return what was submitted as the samples have it: rates by the time they are means of."""
    (node,) = (p for p in run.iterdir() if p.is_dir() and "#" not in p.name)
    (rank,) = (p for p in run.iterdir() if p.name.endswith("#0"))
    read = samples(rank, "io.submitted_read.bytes_per_s")
    # Every reading of the source but the first, with or without growth, has a row of what it cost.
    rows = read_table(node, "samples").to_pylist()
    costs = {
        row["time"]
        for row in rows
        if row["metric"] == "haiprof.cost.ratio" and row["instance"] == "submitted"
    }
    first = min(row["time"] for row in rows)  # all sources are read then
    times = sorted(costs | {first})
    total = 0.0
    for before, now in itertools.pairwise(times):
        total += read.get(now, 0.0) * (now - before) / 1e9
    return total


KILLED = (
    LIBRARY
    + """
    import signal
    import haiprof
    haiprof.start(log_dir=sys.argv[1], run="run", io_interval=0.2)
    user = User(sys.argv[2])
    user.move("libaio", sys.argv[3], 32 << 20, 1)
    pid = os.fork()
    if pid == 0:
        user.move("libaio", sys.argv[3], 32 << 20, 1)
        os._exit(0)
    os.waitpid(pid, 0)
    if len(sys.argv) > 4:
        os.kill(os.getpid(), signal.SIGKILL)
    haiprof.stop()
"""
)


@pytest.mark.parametrize("end", [(), ("killed",)], ids=["stopped", "killed"])
def test_a_job_keeps_its_counts_whatever_its_end(
    shm: Path, submit: Path, data: Path, tmp_path: Path, end: tuple[str, ...]
) -> None:
    process = python(KILLED, str(tmp_path), str(submit / "libio_user_lazy.so"), str(data), *end)
    _, err = process.communicate(timeout=60)
    assert process.returncode == (-9 if end else 0), err
    wait_recorded(shm)
    assert recorded_bytes(tmp_path / "run") == exactly(SIZE)
    assert not list(shm.rglob("*.ring"))


LOADER = (
    LIBRARY
    + """
    from haiprof.capture.session import arm
    arm()  # as the environment does: there is no ring before the first record
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Data(Dataset):
        user = User(sys.argv[1])

        def __len__(self):
            return 16

        def __getitem__(self, index):
            self.user.move("libaio", sys.argv[2], 4 << 20, 1)
            assert not _core.ring_open()
            return index

    assert not _core.ring_open()
    loader = DataLoader(Data(), 1, num_workers=2)
    assert len(list(loader)) == 16
    assert _core.ring_open()
"""
)


def test_workers_of_a_dataloader_count_at_their_rank(
    shm: Path, submit: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HAIPROF_LOG_DIR", str(tmp_path))
    monkeypatch.setenv("HAIPROF_RUN", "run")
    monkeypatch.setenv("HAIPROF_IO_INTERVAL", "0.2")
    run_python(LOADER, str(submit / "libio_user_lazy.so"), str(data))
    wait_recorded(shm)
    assert recorded_bytes(tmp_path / "run") == exactly(SIZE)


SPAWNED = """
    import subprocess, sys
    import haiprof
    haiprof.start(log_dir=sys.argv[1], run="run", io_interval=0.2)
    program = sys.argv[4]
    subprocess.run([sys.executable, "-c", program, *sys.argv[2:4]], check=True)
    haiprof.stop()
"""

# A worker of its own interpreter, armed by the environment as site arms it.
WORKER = (
    textwrap.dedent(LIBRARY)
    + """
from haiprof.capture.session import arm
arm()
user = User(sys.argv[1])
user.move("libaio", sys.argv[2], 64 << 20, 1)
assert not _core.ring_open()
"""
)


def test_a_spawned_worker_counts_at_the_process_above(
    shm: Path, submit: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_python(SPAWNED, str(tmp_path), str(submit / "libio_user_lazy.so"), str(data), WORKER)
    wait_recorded(shm)
    assert recorded_bytes(tmp_path / "run") == exactly(SIZE)


def test_workers_that_outlive_a_ring_do_not_keep_its_memory(shm: Path, tmp_path: Path) -> None:
    program = """
        import os, sys, time
        import haiprof
        haiprof.start(log_dir=sys.argv[1], ring_mib=16)
        with haiprof.range("x"):
            pass
        pid = os.fork()
        if pid == 0:
            time.sleep(60)
        def held(pid):
            maps = [line.split()[0] for line in open(f"/proc/{pid}/maps") if ".ring" in line]
            return sum(int(end, 16) - int(begin, 16) for begin, end in (m.split("-") for m in maps))
        mine = held("self")
        haiprof.stop()
        print(mine, held(pid))
        os.kill(pid, 9)
    """
    mine, worker = map(int, run_python(program, str(tmp_path)).split())
    assert mine > 14 * MB
    assert worker < MB


@pytest.mark.parametrize("kind", ["lazy", "now"])
def test_a_tool_that_stands_before_mmap_goes_on_seeing_the_calls(
    submit: Path, data: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    needs_rings()
    program = (
        textwrap.dedent(LIBRARY)
        + """
seen = ctypes.CDLL(None).maps_seen
user = User(sys.argv[1])
counts = []
for hooked in (False, True):
    if hooked:
        assert _core.count_submitted() == ""
    before = seen()
    user.move("uring_syscall", sys.argv[2], 1 << 20)
    counts.append(seen() - before)
print(*counts)
"""
    )
    monkeypatch.setenv("LD_PRELOAD", str(submit / "libmaps.so"))
    without, hooked = run_python(program, str(submit / f"libio_user_{kind}.so"), str(data)).split()
    assert int(without) >= 2
    assert hooked == without


def test_hooks_say_that_they_are_on() -> None:
    hooks.install()
    try:
        assert hooks.status()["io"] == "on: import slots"
    finally:
        hooks.uninstall()
    assert hooks.status()["io"] == "off: not installed"
