"""Python stacks of another process, against what that process says of itself."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from haiprof import _core

pytestmark = pytest.mark.skipif(
    sys.version_info >= (3, 14), reason="the layout of this Python is not known"
)

#: Threads that stay where they are: asleep, in a generator, deep down, and in code with long lines.
JOB = """
import asyncio, sys, threading, time, traceback
from haiprof import _core
ready = threading.Barrier(5)

def asleep():
    ready.wait()
    (lambda:
        time.sleep(60))()

def numbers():
    yield 1
    ready.wait()
    time.sleep(
        60
    )
    yield 2

def generator():
    for _ in numbers():
        pass

def deep(left):
    if left:
        return deep(left - 1)
    ready.wait()
    time.sleep(60)

async def inner():
    ready.wait()
    time.sleep(60)

async def outer():
    await inner()

text = "\\n" * 5000 + "def late(call):\\n" + "    pass\\n" * 300 + "    call()"
exec(compile(text, "<l\\u00e4te>", "exec"))

def generated():
    late(lambda: (ready.wait(), time.sleep(60)))

def down(left):
    return deep(300) if left == 0 else down(left - 1)

for target in (asleep, generator, lambda: down(50), lambda: asyncio.run(outer()), generated):
    threading.Thread(target=target, daemon=True).start()
def places():
    found = sys._current_frames()
    return {t: (f.f_code, f.f_lasti) for t, f in found.items() if t != threading.get_ident()}

same, last = 0, None
while same < 5:  # until nobody moves any more
    time.sleep(0.1)
    same, last = (same + 1 if len(last or ()) == 5 and places() == last else 0), places()
print(_core.python_layout().hex())
for thread in threading.enumerate():
    if thread is threading.main_thread():
        continue
    frame = sys._current_frames()[thread.ident]
    print(repr((thread.native_id, [(f.f_code.co_filename, line, f.f_code.co_name)
                                   for f, line in traceback.walk_stack(frame)])))
print(flush=True)
sys.stdin.read()
"""


@pytest.fixture
def job() -> Iterator[tuple[int, bytes, dict[int, list[tuple[str, int, str]]]]]:
    process = subprocess.Popen(
        [sys.executable, "-c", JOB], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    layout = bytes.fromhex(process.stdout.readline())
    stacks = {}
    while line := process.stdout.readline().strip():
        thread, frames = ast.literal_eval(line)
        stacks[thread] = frames
    yield process.pid, layout, stacks
    process.kill()
    process.wait()


def test_every_frame_and_line_is_what_the_process_says(
    job: tuple[int, bytes, dict[int, list[tuple[str, int, str]]]],
) -> None:
    pid, layout, wanted = job
    reader = _core.PythonStacks(pid, layout)
    for _ in range(3):  # known threads and functions, too
        found = {thread: (cut, frames) for thread, _, cut, frames in reader.take()}
        assert set(wanted) <= set(found)
        assert pid in found
        for thread, frames in wanted.items():
            cut, ours = found[thread]
            assert not cut
            assert [(file, line) for _, file, line in ours] == [f[:2] for f in frames]
            names = [name.rpartition(".")[2] for name, _, _ in ours]
            assert names == [f[2] for f in frames]
    assert len(wanted) == 5
    assert max(len(frames) for frames in wanted.values()) > 350
    assert reader.torn == 0


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
