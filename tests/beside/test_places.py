"""Jobs where system calls are refused, memory ends, clocks jump or time stands still."""

from __future__ import annotations

import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from beside_others import LOOP_PRINTS, Recorded, alone, hold, in_this_python, write_job
from recording import the_recorder, wait_for

pytestmark = pytest.mark.jobs

# -- what is refused -----------------------------------------------------------------------------

#: System calls of x86-64 that Docker's default profile lets a container without further rights not
#: make: acct to vhangup.
_REFUSED = (
    163, 248, 321, 227, 174, 176, 300, 313, 431, 432, 430, 433, 177, 239, 175, 425, 426, 427, 173,
    172, 312, 320, 246, 250, 212, 237, 256, 165, 442, 429, 279, 180, 304, 428, 298, 438, 155, 440,
    178, 179, 443, 169, 249, 238, 171, 170, 308, 164, 167, 168, 103, 156, 139, 166, 272, 134, 323,
    136, 153,
)  # fmt: skip
#: The three that it lets them make on Linux 4.8 and later only: ptrace, process_vm_readv, -writev.
_REFUSED_BEFORE_48 = (101, 310, 311)
#: Refuses them with EPERM, and clone3 as unknown, to itself and what it becomes: its arguments.
CONFINED = """
import ctypes, os, struct, sys
EPERM, ENOSYS, CLONE3 = 1, 38, 435
def instruction(code, yes, no, value):
    return struct.pack("HBBI", code, yes, no, value)
def refuse(number, error):
    return instruction(0x15, 0, 1, number) + instruction(0x06, 0, 0, 0x00050000 | error)
program = instruction(0x20, 0, 0, 0)  # the number of the system call
program += refuse(CLONE3, ENOSYS)
for number in map(int, sys.argv[1].split(",")):
    program += refuse(number, EPERM)
program += instruction(0x06, 0, 0, 0x7FFF0000)
text = ctypes.create_string_buffer(program, len(program))
given = ctypes.create_string_buffer(struct.pack("HP", len(program) // 8, ctypes.addressof(text)))
prctl = ctypes.CDLL(None, use_errno=True).prctl
if prctl(38, 1, 0, 0, 0) or prctl(22, 2, given, 0, 0):
    sys.exit("no filter may be set: " + os.strerror(ctypes.get_errno()))
os.execvp(sys.argv[2], sys.argv[2:])
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers are those of x86-64")
@pytest.mark.parametrize("more", [(), _REFUSED_BEFORE_48], ids=["now", "before 4.8"])
def test_a_seccomp_profile(shm: Path, tmp_path: Path, more: tuple[int, ...]) -> None:
    confined = tmp_path / "confined.py"
    confined.write_text(CONFINED)
    before = (sys.executable, str(confined), ",".join(map(str, _REFUSED + more)))
    possible = alone(tmp_path, *before, "true")
    if possible.code:
        pytest.skip(possible.stderr)
    job = Recorded(tmp_path, *in_this_python(write_job(tmp_path)), before=before)
    job.wait_sampled()
    assert "Seccomp:\t2" in Path(f"/proc/{job.pid}/status").read_text()
    done = job.finish()
    assert (done.code, done.stdout) == (0, LOOP_PRINTS)
    hold("Docker's seccomp profile", job, work=job.turns())


@pytest.mark.parametrize("around", ["the job", "haiprof"])
def test_a_user_namespace(shm: Path, tmp_path: Path, around: str) -> None:
    before = _unshare("--user", "--map-root-user")
    command = in_this_python(write_job(tmp_path))
    if around == "haiprof":
        job = Recorded(tmp_path, *command, before=before)
    else:
        job = Recorded(tmp_path, *before, *command)
    done = job.finish()
    assert (done.code, done.stdout) == (0, LOOP_PRINTS)
    hold("a user namespace", job, work=job.turns())


def _unshare(*words: str) -> tuple[str, ...]:
    """Return how a program is begun in namespaces of its own; skip where that is not allowed."""
    command = ("unshare", *words)
    if shutil.which("unshare") is None:
        pytest.skip("no unshare")
    done = subprocess.run([*command, "true"], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"{' '.join(command)}: {done.stderr.strip()}")
    return command


# -- what ends -----------------------------------------------------------------------------------

EATS = """
import os, time
from maybe import finish, interval, step
for turn in range(50):
    with interval("work"):
        time.sleep(0.001)
    step()
finish(50)
while not os.path.exists("END"):
    time.sleep(0.01)
print("eating", flush=True)
eaten = []
while True:
    eaten.append(bytearray(1 << 20))
"""


def _small_group(mib: int) -> Path:
    """Make a control group with so much memory; skip where that is not allowed."""
    for root, most, swap, swapped in (
        (
            "/sys/fs/cgroup/memory",
            "memory.limit_in_bytes",
            "memory.memsw.limit_in_bytes",
            mib << 20,
        ),
        ("/sys/fs/cgroup", "memory.max", "memory.swap.max", 0),
    ):
        group = Path(root) / f"haiprof-test-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / most).write_text(str(mib << 20))
            if (group / swap).exists():
                (group / swap).write_text(str(swapped))
        except OSError:
            group.rmdir()
            continue
        return group
    pytest.skip("no control group with a limit of memory can be made here")


def test_the_out_of_memory_killer(shm: Path, tmp_path: Path) -> None:
    group = _small_group(400)
    members = group / "cgroup.procs"
    try:
        shell = ("sh", "-c", 'echo $$ > "$0"; exec "$@"', str(members))
        command = in_this_python(write_job(tmp_path, EATS))
        without = alone(tmp_path, *shell, *command)
        job = Recorded(tmp_path, *command, before=shell)
        done = job.finish()
    finally:
        wait_for(lambda: not members.read_text(), 60)
        group.rmdir()
    assert (without.code, without.stdout) == (-signal.SIGKILL, "eating\n")
    assert (done.code, done.stdout) == (without.code, without.stdout)
    assert "The job failed" in done.stderr
    hold("the OOM killer of a control group", job, work=50)


# -- clocks --------------------------------------------------------------------------------------

#: Moves CLOCK_REALTIME by SECONDS once there is a file STEP.
CLOCK = """
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t clock, struct timespec *now) {
  const int failed = (int)syscall(SYS_clock_gettime, clock, now);
  if (!failed && clock == CLOCK_REALTIME && access(getenv("STEP"), F_OK) == 0)
    now->tv_sec += atol(getenv("SECONDS"));
  return failed;
}
int gettimeofday(struct timeval *now, void *zone) {
  struct timespec exact;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &exact);
  now->tv_sec = exact.tv_sec;
  now->tv_usec = exact.tv_nsec / 1000;
  return 0;
}
time_t time(time_t *now) {
  struct timespec exact;
  clock_gettime(CLOCK_REALTIME, &exact);
  if (now) *now = exact.tv_sec;
  return exact.tv_sec;
}
"""
#: Has its clock set in the middle, and says by how many hours that was.
SET = """
import os, time
from maybe import finish, interval, step
def apart():
    return time.time() - time.monotonic()
before = apart()
turn = 0
while turn < 50 or not os.path.exists("END"):
    with interval("work"):
        time.sleep(0.001)
    step()
    turn += 1
    if turn == 25:
        open(os.environ["STEP"], "w").close()
finish(turn)
print(round((apart() - before) / 3600))
"""


@pytest.mark.parametrize("hours", [1, -1])
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_a_wall_clock_that_is_set(shm: Path, tmp_path: Path, hours: int) -> None:
    source, library = tmp_path / "clock.c", tmp_path / "clock.so"
    source.write_text(CLOCK)
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
    begun = time.time_ns()
    variables = (f"LD_PRELOAD={library}", f"STEP={tmp_path / 'STEP'}", f"SECONDS={hours * 3600}")
    job = Recorded(tmp_path, *in_this_python(write_job(tmp_path, SET)), before=("env", *variables))
    done = job.finish()
    assert (done.code, done.stdout) == (0, f"{hours}\n")
    hold("a wall clock that is set", job, work=job.turns())
    # Both clocks of ours, the job's and the recorder's, go on evenly.
    starts = [span["start"] for span in job.spans()]
    times = [row["time"] for row in job.samples()]
    assert begun < min(starts + times)
    assert max(starts + times) < time.time_ns()


@pytest.mark.parametrize("around", ["the job", "haiprof"])
def test_a_time_namespace(shm: Path, tmp_path: Path, around: str) -> None:
    words = ("--fork", "--kill-child", "--time", "--monotonic", "100000", "--boottime", "500000")
    before = _unshare(*words)
    command = in_this_python(write_job(tmp_path))
    begun = time.time_ns()
    if around == "haiprof":
        job = Recorded(tmp_path, *command, before=before)
    else:
        job = Recorded(tmp_path, *before, *command)
    done = job.finish()
    assert (done.code, done.stdout) == (0, LOOP_PRINTS)
    assert "died" not in done.stderr
    hold("a time namespace", job, work=job.turns())
    assert all(begun < span["start"] < time.time_ns() for span in job.spans())


@pytest.mark.parametrize("who", ["the job", "the job and the recorder"])
def test_a_suspension(shm: Path, tmp_path: Path, who: str) -> None:
    job = Recorded(tmp_path, *in_this_python(write_job(tmp_path)))
    job.wait_sampled()
    stopped = [job.pid, *([the_recorder(shm)] if "recorder" in who else [])]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(2)  # the gap itself
    going_on = time.time_ns()
    for pid in reversed(stopped):
        os.kill(pid, signal.SIGCONT)
    job.wait_sampled(after=going_on)
    done = job.finish()
    assert (done.code, done.stdout) == (0, LOOP_PRINTS)
    hold("a job that is suspended", job, work=job.turns())
    # The gap is in one step, and hides in no other.
    amid = going_on - 10**9
    steps = [span for span in job.spans() if span["category"] == "step"]
    (step,) = (s for s in steps if s["start"] < amid < s["start"] + s["duration"])
    assert step["duration"] > 1.9e9
