"""Who may read whose stacks: as the kernel decides, and in one line where it refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from haiprof.common.process_life import start_time_of

pytestmark = [
    pytest.mark.skipif(
        sys.version_info >= (3, 15), reason="the layout of this Python is not known"
    ),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be somebody else"),
]

NOBODY, SOMEBODY = 65534, 65533
#: Whoever changes users in its life may be read by nobody, until it says otherwise.
BECOME = """
import ctypes, json, os, sys, time
from haiprof import _core
from haiprof.control.find import find
from haiprof.control.stacks import look_at

def become(user, readable=1):
    os.setgroups([]); os.setgid(user); os.setuid(user)
    PR_SET_DUMPABLE = 4
    assert ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, readable) == 0

"""
JOB = """
def works():
    print(_core.python_layout().hex(), flush=True)
    time.sleep(600)
"""
READ = """
pid, started, owner, layout = *map(int, sys.argv[1:4]), bytes.fromhex(sys.argv[4])
sampler = _core.StackSampler(100.0)
watched = sampler.watch(pid, started, owner, layout)
names, problem = set(), ""
until = time.monotonic() + 30
while watched and "works" not in names and not problem and time.monotonic() < until:
    time.sleep(0.02)
    names |= {node[2] for node in sampler.take(pid)[1]}
    problem = sampler.counts(pid)["problem"]
(looked,) = look_at([(found, None)])
now = sorted({frame.function for thread in looked.threads for frame in thread.frames})
print(json.dumps([watched, sorted(names), problem, now, looked.problem]))
"""
#: What a container runtime does to whoever may trace nobody: the kernel answers EPERM.
WITHOUT_PTRACE = """
import struct
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]
call = {"x86_64": 310, "aarch64": 270}[os.uname().machine]
LOAD, JUMP_IF_EQUAL, RETURN, ERRNO, ALLOW = 0x20, 0x15, 0x06, 0x50000, 0x7FFF0000
lines = ((LOAD, 0, 0, 0), (JUMP_IF_EQUAL, 0, 1, call), (RETURN, 0, 0, ERRNO | 1),
         (RETURN, 0, 0, ALLOW))
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in lines))
program = Program(4, ctypes.addressof(code))
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
libc = ctypes.CDLL(None)
assert libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
assert libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program)) == 0
"""
Job = Callable[..., "tuple[subprocess.Popen[str], str]"]


@pytest.fixture
def job() -> Iterator[Job]:
    """Start a job of a user."""
    started: list[subprocess.Popen[str]] = []

    def run(user: int, readable: int = 1) -> tuple[subprocess.Popen[str], str]:
        program = f"{BECOME}{JOB}become({user}, {readable})\nworks()"
        process = subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout is not None
        return process, process.stdout.readline().strip()

    yield run
    for process in started:
        process.kill()
        process.communicate()


def read(job: tuple[subprocess.Popen[str], str], owner: int, before: str) -> list[Any]:
    """Sample a job, and look at it, after something that limits who does it."""
    process, layout = job
    program = f"{BECOME}(found,) = find('{process.pid}')\n{textwrap.dedent(before)}{READ}"
    about = (process.pid, start_time_of(process.pid), owner)
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, about), layout],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answer: list[Any] = json.loads(done.stdout)
    return answer


def test_a_user_without_rights_reads_its_own_job(job: Job) -> None:
    watched, names, problem, now, looked = read(job(NOBODY), NOBODY, f"become({NOBODY})")
    assert (watched, problem, looked) == (True, "", "")
    assert "works" in names
    assert "works" in now


def test_another_users_job_is_refused_in_one_line(job: Job) -> None:
    watched, names, problem, now, looked = read(job(NOBODY), NOBODY, f"become({SOMEBODY})")
    assert (watched, names, now) == (True, [], [])
    assert problem == "the memory of the process may not be read"
    assert looked.startswith("its memory may not be read")
    assert "\n" not in looked
    watched, names, *_ = read(job(NOBODY), SOMEBODY, f"become({SOMEBODY})")
    assert (watched, names) == (False, [])


def test_one_that_hides_from_its_own_user_is_refused_in_one_line(job: Job) -> None:
    """As Yama refuses one that has not allowed it."""
    watched, names, problem, now, looked = read(
        job(NOBODY, readable=0), NOBODY, f"become({NOBODY})"
    )
    assert (watched, names, now) == (True, [], [])
    assert problem == "the memory of the process may not be read"
    assert looked.startswith("its memory may not be read")


def test_a_container_without_ptrace_says_so_in_one_line(job: Job) -> None:
    watched, names, problem, now, looked = read(job(0), 0, WITHOUT_PTRACE)
    assert (watched, names, now) == (True, [], [])
    assert problem == "the memory of the process may not be read"
    assert looked.startswith("its memory may not be read")
    assert "\n" not in looked
