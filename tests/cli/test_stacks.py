"""haiprof stacks, as people type it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import haiprof, only_line

from haiprof.cli.stacks import lines
from haiprof.control.stacks import Frame, Looked, Thread

needs_layout = pytest.mark.skipif(
    sys.version_info >= (3, 15), reason="the layout of this Python is not known"
)

RANKS = """
import os, sys, time
def all_reduce():
    time.sleep(600)
def load():
    time.sleep(600)
if "rank" in sys.argv:
    os.write(1, b"ready\\n")
    load() if os.environ["RANK"] == "2" else all_reduce()
for rank in range(4):
    if os.fork() == 0:
        os.execve(sys.executable, [sys.executable, __file__, "rank"],
                  {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "4"})
time.sleep(600)
"""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[str]:
    """Four ranks, of which one is elsewhere; yields their script's name."""
    script = tmp_path / f"train_{time.monotonic_ns()}.py"
    script.write_text(RANKS)
    with subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None
            for _ in range(4):
                assert process.stdout.readline() == "ready\n"
            yield script.name
        finally:
            os.killpg(process.pid, signal.SIGKILL)


@needs_layout
def test_who_is_elsewhere_comes_first(job: str) -> None:
    done = haiprof("stacks", job)
    assert done.returncode == 0, done.stderr
    first, *rest = done.stdout.split("\n\n")
    assert first.splitlines()[0].startswith("1 of 5 main threads")
    texts = {block.splitlines()[1].strip().partition(" ")[0]: block for block in (first, *rest)}
    assert {"load", "all_reduce", "<module>"} == set(texts)
    assert "3 of 5 main threads" in texts["all_reduce"]
    assert texts["all_reduce"].splitlines()[0].endswith("ranks 0-1, 3")
    assert f"{job}:6)" in texts["load"]


@needs_layout
def test_other_tools_read_it(job: str) -> None:
    found = json.loads(haiprof("stacks", job, "--json").stdout)
    assert sorted(process["rank"] or 0 for process in found) == [0, 0, 1, 2, 3]
    for process in found:
        assert process["threads"][0]["frames"][0]["line"] > 0
    folded = haiprof("stacks", job, "--folded").stdout.splitlines()
    assert len(folded) == 5
    assert all(line.endswith(" 1") for line in folded)
    document = json.loads(haiprof("stacks", job, "--speedscope").stdout)
    assert len(document["profiles"]) == 5


def test_nobody_is_one_line(shm: Path) -> None:
    done = haiprof("stacks", "no_such_script.py")
    assert done.returncode == 2
    assert only_line(done).startswith("haiprof: no_such_script.py: no Python process on this node")
    done = haiprof("stacks", "x.py", "--json", "--folded")
    assert done.returncode == 2
    assert "choose one of them" in only_line(done)


def test_nothing_recorded_says_what_to_type(shm: Path) -> None:
    done = haiprof("stacks", env={**os.environ, "HAIPROF_SHM_DIR": str(shm)})
    assert done.returncode in (0, 2)  # somebody may record something on this machine
    if done.returncode == 2:
        assert "haiprof stacks JOB" in only_line(done)


def _looked(pid: int, **changes: object) -> Looked:
    return Looked(**{"pid": pid, "label": f"pid {pid}", "rank": None, "command": (), **changes})  # type: ignore[arg-type]


def test_refusals_are_counted_with_their_reason() -> None:
    those = [_looked(n, problem="it has ended") for n in range(12)]
    (line,) = lines(those)
    assert line.startswith("12 of 12 processes: it has ended: pid 0; pid 1; ")
    assert line.endswith("pid 7 and 4 more")


def test_states_gil_and_depth_are_in_words() -> None:
    frames = tuple(Frame(f"f{n}", "m.py", n) for n in range(100))
    thread = Thread(7, "python", "waiting", "futex", True, frames, cut=True)
    found = lines([_looked(7, threads=[thread], others={"waiting in poll": 3})])
    assert found[0] == "main thread, waiting in futex with the GIL: pid 7"
    assert "    … 40 more frames …" in found
    assert "    … and more, deeper than what is read" in found
    assert found[-1] == "3 threads that run no Python: 3 waiting in poll"


def test_names_cannot_control_the_terminal(job: str) -> None:
    assert "\x1b" not in haiprof("stacks", job).stdout
