"""A job whose threads stay where they are, and what it says of them."""

from __future__ import annotations

import ast
import contextlib
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from haiprof import _core

#: Threads that stay where they are: asleep, in a generator, deep down, and in code with long lines.
JOB = """
import asyncio, sys, threading, time, traceback
from haiprof import _core
ready = threading.Barrier(5)

def asleep():
    ready.wait()
    (lambda:
        time.sleep(3600))()

def numbers():
    yield 1
    ready.wait()
    time.sleep(
        3600
    )
    yield 2

def generator():
    for _ in numbers():
        pass

def deep(left):
    if left:
        return deep(left - 1)
    ready.wait()
    time.sleep(3600)

async def inner():
    ready.wait()
    time.sleep(3600)

async def outer():
    await inner()

text = "\\n" * 5000 + "def late(call):\\n" + "    pass\\n" * 300 + "    call()"
exec(compile(text, "<l\\u00e4te>", "exec"))

def generated():
    late(lambda: (ready.wait(), time.sleep(3600)))

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


class Said(NamedTuple):
    """What a job says of itself.

    Attributes:
        pid: its process.
        layout: where its Python keeps frames.
        stacks: by thread, each frame's file, line and function, the innermost first.
    """

    pid: int
    layout: bytes
    stacks: dict[int, list[tuple[str, int, str]]]


@contextlib.contextmanager
def still_job(python: str | Path, environment: Mapping[str, str] | None = None) -> Iterator[Said]:
    """Run it in a Python that has haiprof."""
    process = subprocess.Popen(
        [python, "-c", JOB], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=environment,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        layout = bytes.fromhex(process.stdout.readline())
        stacks = {}
        while line := process.stdout.readline().strip():
            thread, frames = ast.literal_eval(line)
            stacks[thread] = frames
        yield Said(process.pid, layout, stacks)
    finally:
        process.kill()
        process.communicate()


def check(said: Said) -> None:
    """See that every frame and line is read as the process says it."""
    reader = _core.PythonStacks(said.pid, said.layout)
    for _ in range(3):  # known threads and functions, too
        found = {thread: (cut, frames) for thread, _, cut, frames in reader.take()}
        assert set(said.stacks) <= set(found)
        assert said.pid in found
        for thread, frames in said.stacks.items():
            cut, ours = found[thread]
            assert not cut
            assert [(file, line) for _, file, line in ours] == [f[:2] for f in frames]
            names = [name.rpartition(".")[2] for name, _, _ in ours]
            assert names == [f[2] for f in frames]
    assert len(said.stacks) == 5
    assert max(len(frames) for frames in said.stacks.values()) > 350
    assert reader.torn == 0
