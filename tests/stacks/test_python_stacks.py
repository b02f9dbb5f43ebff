"""Python stacks of another process, against what that process says of itself."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import types

import pytest
from recording import wait_for
from stack_jobs import check, still_job

from haiprof import _core

pytestmark = pytest.mark.skipif(
    sys.version_info >= (3, 15), reason="the layout of this Python is not known"
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


def test_code_objects_that_are_freed_are_counted() -> None:
    # The last field of the layout is the address of their number.
    address = int.from_bytes(_core.python_layout()[-8:], sys.byteorder)
    freed = ctypes.c_uint64.from_address(address)
    code = compile("def made(): return [n for n in range(3)]", "made", "exec")
    inner = sum(isinstance(each, types.CodeType) for each in code.co_consts)
    gc.collect()
    before = freed.value
    del code
    assert freed.value >= before + 1 + inner


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


WITHIN = """
import sys, threading, time
from haiprof import _core
try:
    import _xxsubinterpreters as interpreters
except ImportError:
    import _interpreters as interpreters
print(_core.python_layout().hex(), flush=True)
inner = '''
import os, time
def in_another_interpreter():
    os.write(1, b"ready\\\\n")
    time.sleep(600)
in_another_interpreter()
'''
run = getattr(interpreters, "run_string", None) or interpreters.exec
interpreter = interpreters.create()
threading.Thread(target=lambda: run(interpreter, inner), daemon=True).start()
time.sleep(600)
"""


def test_threads_of_all_interpreters_are_read() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", WITHIN], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        layout = bytes.fromhex(process.stdout.readline())
        if process.stdout.readline() != "ready\n":
            process.kill()
            pytest.skip(f"no other interpreter here: {process.communicate()[1][-200:]}")
        reader = _core.PythonStacks(process.pid, layout)
        functions = wait_for(
            lambda: [f for *_, frames in reader.take() for f, _, _ in frames if "another" in f]
        )
        assert functions == ["in_another_interpreter"]
    finally:
        process.kill()
        process.communicate()
