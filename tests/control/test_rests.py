"""Whether a script sleeps where no loop leads back to its training."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from haiprof.control.rests import _rest, rests
from haiprof.control.stacks import Frame, Thread

TRAINS = """
import time
from time import sleep

def train(loader):
    for batch in loader:
        pass

train(range(9))
"""


def lines_of(text: str) -> list[int]:
    """Return the lines that are marked, the innermost frame's first."""
    marks = {number: line for number, line in enumerate(text.splitlines(), 1) if "#" in line}
    return sorted(marks, key=lambda number: marks[number].partition("#")[2])


def is_rest(text: str) -> bool:
    whole = TRAINS + textwrap.dedent(text)
    frames = [Frame("f", "t.py", line) for line in lines_of(whole)]
    return _rest(frames, {"t.py": whole}.get)


@pytest.mark.parametrize(
    "text",
    [
        "time.sleep(600)  # 0",
        "sleep(600)  # 0",
        "if True:\n    time.sleep(  # 0\n        600\n    )",
        "while True:\n    time.sleep(60)  # 0",
        "while 1:\n    pass\n    sleep(60)  # 0",
        "while True: time.sleep(60)  # 0",
        "def main():\n    train([])\n    time.sleep(9)  # 0\nmain()  # 1",
        'input("done? ")  # 0',
        "signal.pause()  # 0",
        "x = '''\nfor x in y:\n'''\nsleep(9)  # 0",
    ],
)
def test_what_runs_once_or_does_nothing_else_rests(text: str) -> None:
    assert is_rest(text)


@pytest.mark.parametrize(
    "text",
    [
        "for batch in range(9):\n    time.sleep(600)  # 0",
        "for batch in range(9):\n    if batch:\n        with x:\n            sleep(9)  # 0",
        "for n in range(9): sleep(9)  # 0",
        "[sleep(9) for n in range(9)]  # 0",
        "while not ready():\n    time.sleep(60)  # 0",
        "while True:\n    train([])\n    time.sleep(60)  # 0",
        "while True:\n    time.sleep(poll())  # 0",
        "async def f():\n    async for x in y:\n        sleep(1)  # 0\nf()  # 1",
        "def nap():\n    time.sleep(9)  # 0\nfor n in range(9):\n    nap()  # 1",
        "def nap():\n    time.sleep(9)  # 0\ndef run():\n    nap()  # 1\nwhile x:\n    run()  # 2",
        "for n in range(9):\n    x = '''\ny\n'''\n    sleep(9)  # 0",
        "subprocess.run(['sleep', '600'])  # 0",
        "lock.acquire()  # 0",
        "os.read(pipe, 1)  # 0",
        "(  # 0",
    ],
)
def test_what_is_repeated_or_waits_for_something_does_not(text: str) -> None:
    assert not is_rest(text)


def test_a_process_whose_script_is_beside_it(tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text("import time\nprint(flush=True)\ntime.sleep(600)\n")
    command = [sys.executable, "t.py"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE) as job:
        assert job.stdout is not None
        job.stdout.readline()
        sleeps = Thread(job.pid, "", "waiting", None, False, (Frame("<module>", "t.py", 3),))
        assert rests(job.pid, sleeps)
        whole = replace(sleeps, frames=(Frame("<module>", str(tmp_path / "t.py"), 3),))
        assert rests(job.pid, whole)
        library = Frame("fit", "/usr/lib/python3/dist-packages/lightning/fit.py", 3)
        above, below = (*sleeps.frames, library), (library, *sleeps.frames)
        assert rests(job.pid, replace(sleeps, frames=above)), "as runpy has it"
        for other in (
            replace(sleeps, state="running"),
            replace(sleeps, cut=True),
            replace(sleeps, frames=below),
            replace(sleeps, frames=(*above, *sleeps.frames)),
            replace(sleeps, frames=()),
            replace(sleeps, frames=(Frame("<module>", "t.py", 2),)),
            replace(sleeps, frames=(Frame("<module>", "gone.py", 3),)),
        ):
            assert not rests(job.pid, other), other
        job.kill()


def test_files_that_are_no_scripts_are_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "large.py").write_bytes(b"\n" * (1 << 21))
    (tmp_path / "other.py").write_bytes(b"\xff\xfe\n")
    for name in ("pipe.py", "large.py", "other.py", ".", "\0"):
        frames = (Frame("<module>", f"{tmp_path}/{name}", 1),)
        assert not rests(os.getpid(), Thread(1, "", "waiting", None, False, frames))
