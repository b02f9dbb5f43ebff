"""Whether jobs that run can be attached to, and their stacks read: tried on a process of our own.

Tests: tests/cli/test_doctor_container.py.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Final

from haiprof.cli.doctor import given, rights
from haiprof.cli.doctor.finding import ABSENT, BROKEN, DENIED, OK, Finding
from haiprof.common.places import in_container

_WHAT: Final = "attach"
_STACKS: Final = "stacks"
#: How long the code may take to run, s.
_SECONDS: Final = 10.0
_PROGRAM: Final = "import time\nprint(flush=True)\nwhile True: time.sleep(0.01)"


def attach() -> Iterator[Finding]:
    """Run code in a Python process, as ``haiprof attach`` does."""
    from haiprof.control.inject import NotReachedError, run_in

    try:
        with _target() as pid:
            ran = run_in(pid, "pass", _SECONDS)
    except NotReachedError as error:
        reason, _, fix = str(error).partition(": ")[2].partition("; ")
        denied = error.reason in ("permission", "seccomp")
        yield Finding(_WHAT, DENIED if denied else BROKEN, reason, fix or "haiprof run")
        return
    everybodys = "SYS_PTRACE" in rights.effective()
    scope = rights.yama()
    if scope > 0 and not everybodys:
        fix = str(given.PTRACE) if in_container() else "attach as root, or set it to 0"
        found = f"kernel.yama.ptrace_scope is {scope}: only who started a job may attach to it"
        yield Finding(_WHAT, DENIED, found, f"{fix}; a job under haiprof run needs neither")
        return
    how = "sys.remote_exec" if ran.way == "remote_exec" else "ptrace"
    whose = "of all users" if everybodys else "of this user; another's need root"
    yield Finding(_WHAT, OK, f"code can be run in running Python processes {whose} ({how})")


def stacks() -> Iterator[Finding]:
    """Read the Python stacks of a process, as the recorder and ``haiprof stacks`` do."""
    from haiprof import _core

    try:
        _core.python_layout()
        with _target() as pid:
            _core.PythonStacks(pid, _core.layout_of(pid)).take()
    except PermissionError as error:
        yield Finding(_STACKS, DENIED, str(error), str(given.PTRACE))
    except (RuntimeError, OSError, ValueError) as error:
        fix = "CPython 3.10 to 3.14 with the GIL"
        yield Finding(_STACKS, ABSENT, f"Python stacks are not sampled: {error}", fix)
    else:
        yield Finding(_STACKS, OK, "Python stacks of running processes can be read")


@contextlib.contextmanager
def _target() -> Iterator[int]:
    """Start a Python process that loops; yield its pid."""
    with subprocess.Popen(
        [sys.executable, "-S", "-E", "-c", _PROGRAM],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as target:
        try:
            assert target.stdout is not None
            target.stdout.readline()
            yield target.pid
        finally:
            target.kill()
