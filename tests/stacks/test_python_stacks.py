"""Python stacks of another process, against what that process says of itself."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from stack_jobs import check, still_job

from haiprof import _core

pytestmark = pytest.mark.skipif(
    sys.version_info >= (3, 14), reason="the layout of this Python is not known"
)


def test_every_frame_and_line_is_what_the_process_says() -> None:
    with still_job(sys.executable) as said:
        check(said)


def test_this_process_reads_itself_and_has_the_gil_not_while_it_reads() -> None:
    stacks = _core.PythonStacks(os.getpid(), _core.python_layout()).take()
    [own] = [stack for stack in stacks if stack[0] == os.getpid()]
    function = sys._getframe().f_code.co_name
    assert own[3][0][0].endswith(function)
    assert not own[1]


def test_what_cannot_be_read_is_refused() -> None:
    layout = _core.python_layout()
    with pytest.raises(ValueError, match="not a layout"):
        _core.PythonStacks(os.getpid(), layout[:-1])
    with pytest.raises(ValueError, match="no Python"):
        _core.PythonStacks(os.getpid(), bytes(len(layout)))
    other = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"],
                             stdin=subprocess.PIPE)  # fmt: skip
    try:
        with pytest.raises(ValueError, match="not of the Python"):
            _core.PythonStacks(other.pid, layout).take()
    finally:
        other.kill()
        other.wait()
    with pytest.raises(ProcessLookupError):
        _core.PythonStacks(other.pid, layout).take()
