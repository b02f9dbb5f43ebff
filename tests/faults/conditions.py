"""What the machine is like while a program runs: neighbours, limits, links, signals.

A condition is a dictionary with ``what`` and its parameters. It may put words before the command of
a job, change its environment, and do something beside it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

Condition = dict[str, Any]
#: A program that does nothing with a core but use it.
BUSY = "while True: sum(range(10_000))"
CPU = Path("/sys/fs/cgroup/cpu")
BLOCKS = Path("/sys/fs/cgroup/blkio")


@dataclasses.dataclass
class Surroundings:
    """Of one run.

    Attributes:
        folder: where the run may write.
        words: what stands before the command.
        environment: what is added to the environment.
        options: of ``haiprof run``.
        started: has the pid of the first process, once it runs.
        measured: what was measured from outside.
    """

    folder: Path
    words: list[str] = dataclasses.field(default_factory=list)
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    options: list[str] = dataclasses.field(default_factory=list)
    started: Future[int] = dataclasses.field(default_factory=Future)
    measured: dict[str, float] = dataclasses.field(default_factory=dict)


def _own_group(root: Path) -> Path:
    """Return this process's group in a hierarchy of cgroup v1."""
    for line in Path("/proc/self/cgroup").read_text("ascii").splitlines():
        _, names, path = line.split(":", 2)
        if root.name in names.split(","):
            return root / path.lstrip("/")
    raise FileNotFoundError(f"no group in {root}")


@contextlib.contextmanager
def _group(root: Path, around: Surroundings, limits: dict[str, str]) -> Iterator[Path]:
    """Have the job in a group of its own with these limits."""
    group = _own_group(root) / f"haiprof-{os.getpid()}"
    group.mkdir()
    try:
        for name, value in limits.items():
            (group / name).write_text(value)
        around.words += ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"]
        yield group
    finally:
        for _ in range(200):
            with contextlib.suppress(OSError):
                group.rmdir()
                break
            time.sleep(0.1)


@contextlib.contextmanager
def hogs(condition: Condition, around: Surroundings) -> Iterator[None]:
    """Have ``count`` busy programs beside the job, ``after`` seconds; on a ``core`` if given."""
    processes: list[subprocess.Popen[bytes]] = []
    over = threading.Event()

    def later() -> None:
        if over.wait(condition.get("after", 0.0)):
            return
        words = ["taskset", "-c", str(condition["core"])] if "core" in condition else []
        words += ["nice", "-n", str(condition["nice"])] if "nice" in condition else []
        for _ in range(condition["count"]):
            processes.append(subprocess.Popen([*words, sys.executable, "-c", BUSY]))

    thread = threading.Thread(target=later)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        for process in processes:
            process.kill()
            process.wait()


@contextlib.contextmanager
def quota(condition: Condition, around: Surroundings) -> Iterator[None]:
    """Let the job have so many ``cores`` of CPU time."""
    limits = {"cpu.cfs_quota_us": str(int(condition["cores"] * 100_000))}
    with _group(CPU, around, limits) as group:
        yield
        stat = dict(line.split() for line in (group / "cpu.stat").read_text().splitlines())
        around.measured["throttled_ns"] = float(stat["throttled_time"])


@contextlib.contextmanager
def reading(condition: Condition, around: Surroundings) -> Iterator[None]:
    """Let the job read so many ``mb`` a second from the disk."""
    device = around.folder.stat().st_dev
    limit = f"{os.major(device)}:{os.minor(device)} {int(condition['mb'] * 1e6)}"
    with _group(BLOCKS, around, {"blkio.throttle.read_bps_device": limit}):
        yield


@contextlib.contextmanager
def cores(condition: Condition, around: Surroundings) -> Iterator[None]:
    """Bind the job to these cores."""
    around.words += ["taskset", "-c", condition["which"]]
    yield


@contextlib.contextmanager
def environment(condition: Condition, around: Surroundings) -> Iterator[None]:
    """Change the environment."""
    around.environment.update(condition["given"])
    yield


@contextlib.contextmanager
def link(condition: Condition, around: Surroundings) -> Iterator[None]:
    """Give the job a network of its own, in which a queueing discipline has its ``way``."""
    orders = f"ip link set lo up && tc qdisc add dev lo root {condition['way']}"
    around.words += ["unshare", "-n", "sh", "-c", f'{orders} && exec "$@"', "sh"]
    yield


@contextlib.contextmanager
def small_disk(condition: Condition, around: Surroundings) -> Iterator[None]:
    """Mount a disk of so many ``mb`` for the job alone, at ``disk`` in its folder."""
    disk = around.folder / "disk"
    disk.mkdir()
    orders = f"mount -t tmpfs -o size={condition['mb']}m none {disk}"
    around.words += ["unshare", "-m", "sh", "-c", f'{orders} && exec "$@"', "sh"]
    yield


@contextlib.contextmanager
def signalled(condition: Condition, around: Surroundings) -> Iterator[None]:
    """Send a ``signal`` to a rank after a step; a stopped one goes on after so many ``seconds``."""

    def later(over: threading.Event) -> None:
        pid = _pid_after_step(condition, around, over)
        if pid is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.Signals[condition["signal"]])
            if "seconds" in condition:
                begun = time.perf_counter_ns()
                over.wait(condition["seconds"])
                os.kill(pid, signal.SIGCONT)
                around.measured["stopped_ns"] = float(time.perf_counter_ns() - begun)

    with _beside(later):
        yield


@contextlib.contextmanager
def cut(condition: Condition, around: Surroundings) -> Iterator[None]:
    """Give the job a network of its own, which carries nothing any more after a ``step``."""
    around.words += ["unshare", "-n", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]

    def later(over: threading.Event) -> None:
        pid = _pid_after_step(condition, around, over)
        if pid is not None:
            theirs, ours = (Path(f"/proc/{who}/ns/net").readlink() for who in (pid, "self"))
            assert theirs != ours
            down = ["nsenter", "-t", str(pid), "-n", "ip", "link", "set", "lo", "down"]
            subprocess.run(down, check=True)

    with _beside(later):
        yield


@contextlib.contextmanager
def ended_when_reported(condition: Condition, around: Surroundings) -> Iterator[None]:
    """End the job by a ``signal`` once a hang ``after`` so many seconds was reported.

    One that nobody reports is ended after ``patience`` seconds in which nothing was noted.
    """
    around.options += ["--hang-after", str(condition["after"])]
    run = around.folder.parent / "logs" / "run"

    def idle() -> float:
        noted = [path.stat().st_mtime for path in around.folder.glob("notes-*.jsonl")]
        return time.time() - max(noted) if noted else 0.0

    def later(over: threading.Event) -> None:
        while not (list(run.glob("hang-*.json")) or idle() > condition["patience"]):
            if over.wait(0.2):
                return
        with contextlib.suppress(ProcessLookupError):
            os.kill(around.started.result(), signal.Signals[condition["signal"]])
            # torchrun kills its ranks after half a minute, unless it waits for a network itself.
            if not over.wait(60):
                for notes in around.folder.glob("notes-*.jsonl"):
                    first = json.loads(notes.read_text().splitlines()[0])
                    os.kill(int(first["pid"]), signal.SIGKILL)
                os.killpg(around.started.result(), signal.SIGKILL)

    with _beside(later):
        yield
    around.measured["stopped_ns"] = idle() * 1e9


@contextlib.contextmanager
def _beside(work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Do something in a thread, which is to end when its event is set."""
    over = threading.Event()
    thread = threading.Thread(target=work, args=(over,))
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _pid_after_step(
    condition: Condition, around: Surroundings, over: threading.Event
) -> int | None:
    """Return the pid of a ``rank`` once it has done a ``step``; None: the job is over."""
    notes = around.folder / f"notes-{condition.get('rank', 0)}.jsonl"
    while not over.wait(0.05):
        lines = notes.read_text().splitlines() if notes.exists() else []
        if len(lines) > condition["step"]:
            return int(json.loads(lines[0])["pid"])
    return None


Way = Callable[[Condition, Surroundings], contextlib.AbstractContextManager[None]]
CONDITIONS: dict[str, Way] = {
    "hogs": hogs, "quota": quota, "reading": reading, "cores": cores, "environment": environment,
    "link": link, "small_disk": small_disk, "signalled": signalled, "cut": cut,
    "ended_when_reported": ended_when_reported,
}  # fmt: skip


def missing(condition: Condition) -> str | None:
    """Return why a condition cannot be had here, if so."""
    what = condition["what"]
    if what in ("quota", "reading"):
        return _missing_group(CPU if what == "quota" else BLOCKS)
    if what == "cores":
        wanted = max(int(core) for core in condition["which"].split(","))
        return None if shutil.which("taskset") and wanted in os.sched_getaffinity(0) else "no core"
    if what == "link":
        words = ["unshare", "-n", "sh", "-c", "ip link set lo up && tc qdisc add dev lo root "]
        words[-1] += condition["way"]
        return _missing_way(words, "no network namespace with this discipline")
    if what == "cut":
        into = "nsenter -n/proc/self/ns/net ip link set lo down"
        words = ["unshare", "-n", *into.split()]
        return _missing_way(words, "no network namespace to enter")
    if what == "small_disk":
        words = ["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"]
        return _missing_way(words, "nothing can be mounted")
    return None


def _missing_group(root: Path) -> str | None:
    try:
        made = _own_group(root) / f"haiprof-try-{os.getpid()}"
        made.mkdir()
        made.rmdir()
    except OSError as error:
        return f"no cgroup of one's own in {root.name} ({error.strerror or error})"
    return None


def _missing_way(words: list[str], reason: str) -> str | None:
    try:
        done = subprocess.run(words, capture_output=True, check=False, timeout=30)
    except OSError:
        return reason
    return reason if done.returncode else None
