"""Real process trees whose work is known."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
from host_trees import SECOND, reason, sentences, states

from haiprof import _core

MB = 1 << 20

# A process that does what its standard input says and answers each line.
# "child NAME": starts one like itself; "NAME LINE": hands LINE to it; "write N": writes N bytes.
WORKER = r"""
import os, signal, subprocess, sys
children = {}
sink = os.open("/dev/null", os.O_WRONLY)
block = bytes(1 << 20)
for line in sys.stdin:
    word, _, rest = line.rstrip("\n").partition(" ")
    answer = "ok"
    if word == "write":
        for _ in range(int(rest) >> 20):
            os.write(sink, block)
    elif word == "child":
        children[rest] = subprocess.Popen(
            [sys.executable, "-c", os.environ["WORKER"]],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        answer = str(children[rest].pid)
    elif word == "ignore":
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    elif word == "end":
        child = children.pop(rest)
        child.stdin.close()
        try:
            child.wait()
        except ChildProcessError:
            pass
        child.stdout.close()
    elif word == "leave":
        children.pop(rest)
    elif word in children:
        child = children[word]
        child.stdin.write(rest + "\n")
        child.stdin.flush()
        answer = child.stdout.readline().strip()
    print(answer, flush=True)
"""


class Worker:
    """A watched process, driven line by line, and the sampler that watches it."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "WORKER": WORKER},
        )
        self.do("ready")
        self.sampler = _core.HostSampler(basic=20.0)
        self.now = time.monotonic_ns()
        self.sampler.watch(self.process.pid)
        self.tick()

    def do(self, line: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def tick(self) -> dict[str, float]:
        # Far enough apart that new processes are looked for at every reading.
        seconds = 20.0
        self.now += round(seconds * SECOND)
        rows = self.sampler.read(self.now)
        pid = self.process.pid
        values = {metric: value for target, metric, _, value, _ in rows if target == pid}
        return {m: v * seconds if m.endswith("_per_s") else v for m, v in values.items()}

    def written(self) -> float:
        """Return the megabytes written since the tick before."""
        return self.tick()["io.syscall_write.bytes_per_s"] / MB

    def stop(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def worker() -> Iterator[Worker]:
    worker = Worker()
    yield worker
    worker.stop()


def about(megabytes: float) -> object:
    return pytest.approx(megabytes, abs=0.25)  # start-up and pipes write a little of their own


def test_own_writes_and_those_of_a_living_child(worker: Worker) -> None:
    worker.do(f"write {8 * MB}")
    assert worker.written() == about(8)
    worker.do("child a")
    worker.do(f"a write {4 * MB}")
    assert worker.written() == about(4)
    assert worker.tick()["proc.processes.count"] == 2.0


def test_a_reaped_child_is_counted_once(worker: Worker) -> None:
    worker.do("child a")
    worker.do(f"a write {32 * MB}")
    assert worker.written() == about(32)
    worker.do(f"a write {16 * MB}")
    worker.do("end a")
    # The parent's own numbers jump by 48 here; 32 of them were counted before.
    assert worker.written() == about(16)
    assert worker.written() == about(0)
    assert worker.tick()["proc.processes.count"] == 1.0


def test_a_child_that_nobody_saw_is_counted_at_its_parent(worker: Worker) -> None:
    worker.do("child a")
    worker.do(f"a write {24 * MB}")
    worker.do("end a")
    assert worker.written() == about(24)


def test_a_child_from_before_the_watch_is_not_counted_for_its_past(worker: Worker) -> None:
    worker.do("child a")
    worker.do(f"a write {32 * MB}")
    late = _core.HostSampler(basic=20.0)
    late.watch(worker.process.pid)
    now = worker.now

    def written() -> float:
        nonlocal now
        now += 20 * SECOND
        rows = late.read(now)
        return sum(20 * r[3] for r in rows if r[1] == "io.syscall_write.bytes_per_s") / MB

    assert written() == 0.0
    worker.do(f"a write {8 * MB}")
    assert written() == about(8)
    worker.do(f"a write {4 * MB}")
    worker.do("end a")
    assert written() == about(4)


def test_a_whole_branch_that_dies_between_two_readings(worker: Worker) -> None:
    worker.do("child a")
    worker.do("a child b")
    worker.do(f"a b write {16 * MB}")
    worker.do(f"a write {8 * MB}")
    assert worker.written() == about(24)
    worker.do("a end b")
    worker.do("end a")
    assert worker.written() == about(0)


def test_a_parent_that_waits_for_nobody_takes_nothing_over(worker: Worker) -> None:
    worker.do("ignore")
    worker.do("child a")
    worker.do(f"a write {16 * MB}")
    assert worker.written() == about(16)
    worker.do("end a")
    worker.do(f"write {20 * MB}")
    assert worker.written() == about(20)


def test_an_orphan_goes_on_counting_until_it_dies(worker: Worker) -> None:
    worker.do("child a")
    orphan = int(worker.do("a child b"))
    worker.do(f"a b write {8 * MB}")
    assert worker.written() == about(8)
    worker.do("a leave b")
    os.kill(orphan, signal.SIGSTOP)  # it would end with its parent's pipe
    try:
        worker.do("end a")
        assert worker.written() == about(0)
        assert worker.tick()["proc.processes.count"] == 2.0
    finally:
        os.kill(orphan, signal.SIGKILL)
    worker.do(f"write {4 * MB}")
    assert worker.written() == about(4)


def test_cpu_time_of_a_reaped_child_is_counted_once() -> None:
    code = (
        "import subprocess, sys, time\n"
        "spin = 'import time\\nwhile time.process_time() < 0.6: pass\\nprint(1, flush=True)\\n'\n"
        "for line in sys.stdin:\n"
        "    p = subprocess.Popen([sys.executable, '-c', spin + 'input()'],"
        " stdin=subprocess.PIPE, stdout=subprocess.PIPE)\n"
        "    p.stdout.readline(); print('spun', flush=True); sys.stdin.readline()\n"
        "    p.communicate(b'x'); print('reaped', flush=True)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdin is not None
    assert parent.stdout is not None
    sampler = _core.HostSampler(basic=20.0)
    sampler.watch(parent.pid)
    now = time.monotonic_ns()
    sampler.read(now)
    seconds = []
    for expected in ("spun", "reaped"):
        parent.stdin.write("go\n")
        parent.stdin.flush()
        assert parent.stdout.readline().strip() == expected
        now += 20 * SECOND
        seconds += [20 * r[3] / 100 for r in sampler.read(now) if r[1] == "proc.cpu.percent"]
    parent.kill()
    parent.communicate()
    assert seconds[0] >= 0.55
    assert seconds[1] < 0.3  # not the 0.6 again


# Starts and waits for children, two levels deep, each writing a known number of bytes.
BUSY = r"""
import os, random, sys, time
rng = random.Random(int(sys.argv[1]))
sink = os.open("/dev/null", os.O_WRONLY)
def work(rng, depth):
    total = 0
    children = []
    for _ in range(rng.randrange(2, 6)):
        size = rng.randrange(1 << 16, 1 << 20)
        os.write(sink, bytes(size)); total += size
        time.sleep(rng.random() * 0.03)
        if depth and rng.random() < 0.8:
            seed = rng.random()
            read, write = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.close(read)
                mine = work(random.Random(seed), depth - 1)
                os.write(write, b"%20d" % mine)
                os._exit(0)
            os.close(write)
            children.append((pid, read))
        if children and rng.random() < 0.5:
            pid, read = children.pop(rng.randrange(len(children)))
            total += int(os.read(read, 20)) + 20; os.close(read); os.waitpid(pid, 0)
    for pid, read in children:
        total += int(os.read(read, 20)) + 20; os.close(read); os.waitpid(pid, 0)
    return total
sys.stdin.readline()
total = sum(work(rng, 2) for _ in range(4))
print(total, flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("seed", range(3))
def test_a_busy_tree_is_counted_to_the_byte(seed: int) -> None:
    """Whatever the moments of birth, death and reading, the sum of all samples is the truth."""
    tree = subprocess.Popen(
        [sys.executable, "-c", BUSY, str(seed)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert tree.stdin is not None
    assert tree.stdout is not None
    sampler = _core.HostSampler(basic=20.0)
    sampler.watch(tree.pid)
    now = time.monotonic_ns()
    sampler.read(now)
    truth: list[int] = []
    stdin, stdout = tree.stdin, tree.stdout

    def drive() -> None:
        stdin.write("go\n")
        stdin.flush()
        truth.append(int(stdout.readline()))

    driver = threading.Thread(target=drive)
    driver.start()
    rng = random.Random(seed)
    counted = 0.0
    readings = 0
    done = False
    while not done:
        done = not driver.is_alive()  # one more reading after the end
        now += 20 * SECOND
        rows = [r for r in sampler.read(now) if r[1] == "io.syscall_write.bytes_per_s"]
        assert all(row[3] >= 0.0 for row in rows)
        counted += sum(20 * row[3] for row in rows)
        readings += 1
        time.sleep(rng.random() * 0.02)
    driver.join()
    tree.communicate("x\n")
    assert readings > 10
    assert counted == pytest.approx(truth[0], abs=2000)  # and the line with the total


def test_a_process_that_vanishes_is_reported_and_its_series_end(worker: Worker) -> None:
    pid = worker.process.pid
    worker.tick()
    worker.stop()
    for _ in range(3):
        assert worker.tick() == {}
    assert sentences(worker.sampler) == [f"process {pid} is gone"]
    assert states(worker.sampler)["process"] == "absent"
    assert f"process {pid} is gone" in reason(worker.sampler, "process")


def test_processes_that_come_and_go_under_the_reading() -> None:
    stop = threading.Event()

    def churn() -> None:
        while not stop.is_set():
            subprocess.run(["true"], check=True)

    thread = threading.Thread(target=churn)
    thread.start()
    sampler = _core.HostSampler(basic=0.01)
    sampler.watch(os.getpid())
    try:
        begin = time.monotonic()
        values = []
        # A dear source slows itself down.
        while time.monotonic() < begin + (1.5 if len(values) > 50 else 60):
            values += [row for row in sampler.read(time.monotonic_ns()) if row[0] == os.getpid()]
            time.sleep(0.001)
    finally:
        stop.set()
        thread.join()
    assert len(values) > 50
    assert all(row[3] >= 0.0 for row in values)


def test_a_pid_that_never_existed_is_reported() -> None:
    sampler = _core.HostSampler()
    gone = subprocess.Popen(["true"])
    gone.wait()
    sampler.watch(gone.pid)
    assert [r for r in sampler.read(time.monotonic_ns()) if r[0] == gone.pid] == []
    assert sentences(sampler) == [f"process {gone.pid} is gone"]


@pytest.mark.skipif(os.geteuid() != 0, reason="gives up root to be refused")
def test_io_of_another_users_process_is_denied_and_the_rest_goes_on(worker: Worker) -> None:
    sampler = _core.HostSampler()
    sampler.watch(worker.process.pid)
    os.seteuid(65534)
    try:
        now = time.monotonic_ns()
        sampler.read(now)
        metrics = {r[1] for r in sampler.read(now + SECOND) if r[0] == worker.process.pid}
    finally:
        os.seteuid(0)
    assert "proc.cpu.percent" in metrics
    assert "proc.rss.bytes" in metrics
    assert not any(metric.startswith("io.") for metric in metrics)
    assert states(sampler)["process"] == "ok"
    assert states(sampler)["process_io"] == "denied"
    assert "CAP_SYS_PTRACE" in reason(sampler, "process_io")
    [change] = sentences(sampler)
    assert "Permission denied" in change
    # With the right back there is a baseline first, and no jump.
    [row] = [r for r in sampler.sources() if r["name"] == "process_io"]
    assert sampler.read(now + 2 * SECOND)
    assert sentences(sampler) == [f"the io of process {worker.process.pid} can be read again"]
    rates = [r[3] for r in sampler.read(now + 3 * SECOND) if r[1] == "io.syscall_read.bytes_per_s"]
    assert rates == [0.0]
    assert row["mend"]
