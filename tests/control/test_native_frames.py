"""Frames of C between those of Python: of real processes, stopped for a moment."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import haiprof
from recording import wait_for

from haiprof import _core
from haiprof.cli.stacks import NOBODY, Wanted, show_stacks
from haiprof.control import native_frames as subject
from haiprof.control.stacks import chosen, look_at

types = pytest.importorskip("pystack.types")

#: sorted() calls back into Python, which sleeps in C.
JOB = """
import time
def key(value):
    print("ready", flush=True)
    time.sleep(600)
def ranks():
    sorted([2, 1], key=key)
ranks()
"""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Sleep in C, called by Python, called by C, called by Python."""
    script = tmp_path / f"train_{time.monotonic_ns()}.py"
    script.write_text(JOB)
    process = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        wait_for(lambda: state(process.pid) == "waiting")
        yield process
    finally:
        process.kill()
        process.communicate()


def state(pid: int) -> str:
    return _core.thread_state(pid, pid)[0]


def test_c_frames_stand_between_those_of_python(job: subprocess.Popen[str]) -> None:
    stacks, problem = subject.native_frames(job.pid)
    assert problem == ""
    names = [function for function, _, _ in stacks[job.pid]]
    python = [names.index(name) for name in ("key", "ranks", "<module>")]
    assert python == sorted(python)
    assert any("sleep" in name for name in names[: python[0]])
    assert any("sort" in name for name in names[python[0] : python[1]])
    assert names[-1] == "<module>"  # what has started Python is left out
    assert not job.poll()
    wait_for(lambda: state(job.pid) == "waiting")


def test_a_stopped_process_stays_stopped(job: subprocess.Popen[str]) -> None:
    job.send_signal(signal.SIGSTOP)
    wait_for(lambda: state(job.pid) == "stopped")
    stacks, problem = subject.native_frames(job.pid)
    assert (problem, job.pid in stacks) == ("", True)
    wait_for(lambda: state(job.pid) == "stopped")
    job.send_signal(signal.SIGCONT)
    wait_for(lambda: state(job.pid) == "waiting")


def test_a_process_goes_on_when_reading_it_takes_too_long(job: subprocess.Popen[str]) -> None:
    for seconds in (0.2, 0.4, 0.6):  # before it is stopped, while it is, or after
        stacks, problem = subject.native_frames(job.pid, seconds)
        assert bool(stacks) != (problem == f"reading its native frames took more than {seconds} s")
        wait_for(lambda: state(job.pid) == "waiting")


def test_why_there_are_none() -> None:
    assert subject.native_frames(2**22 + 1)[0] == {}
    assert subject.native_frames(2**22 + 1)[1].startswith("pystack: ")


def test_threads_without_python_are_shown_too(job: subprocess.Popen[str]) -> None:
    (plain,) = look_at(chosen(str(job.pid)))
    (looked,) = look_at(chosen(str(job.pid)), native=True)
    assert looked.native_problem == ""
    assert looked.threads[0].frames[-1] == plain.threads[0].frames[-1]
    assert len(looked.threads[0].frames) > len(plain.threads[0].frames)
    assert len(looked.threads) + sum(looked.others.values()) == len(plain.threads) + sum(
        plain.others.values()
    )


def test_the_command(job: subprocess.Popen[str]) -> None:
    done = haiprof("stacks", str(job.pid), "--native")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("main thread, waiting")
    assert any(line.strip().startswith("list_sort") for line in lines)
    assert any(line.strip().startswith("ranks (") for line in lines)


def test_without_pystack_one_line_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pystack", None)
    assert show_stacks(Wanted("train.py", native=True)) == NOBODY
    said = capsys.readouterr().err
    assert said == "haiprof: native frames need pystack: pip install 'haiprof[stacks]'\n"


def _python(name: str, *, entry: bool = True, shim: bool = False) -> types.PyFrame:
    code = types.PyCodeObject("/job/train.py", name, types.LocationInfo(3, 3, 0, 9))
    return types.PyFrame(None, None, code, {}, {}, is_entry=entry, is_shim=shim)


def _native(symbol: str, path: str = "x.c") -> types.NativeFrame:
    return types.NativeFrame(0x1000, symbol, path, 7, 0, "/lib/libx.so")


def _thread(python: list[types.PyFrame], native: list[types.NativeFrame]) -> types.PyThread:
    for frame, following in itertools.pairwise(python):
        frame.next = following
    return types.PyThread(7, python[0] if python else None, native, 0, 0, (3, 11))


def test_one_call_of_the_interpreter_may_run_several_functions() -> None:
    python = [_python("main"), _python("step", entry=False), _python("key")]
    native = [
        *(_native(name) for name in ("_start", "_PyEval_EvalFrameDefault", "list_sort")),
        *(_native(name) for name in ("method_vectorcall", "_PyEval_EvalFrameDefault")),
        _native("poll", "???"),
    ]
    assert subject.merged(_thread(python, native)) == [
        ("poll", "/lib/libx.so", 0),
        ("key", "/job/train.py", 3),
        ("list_sort", "x.c", 7),
        ("step", "/job/train.py", 3),
        ("main", "/job/train.py", 3),
    ]


def test_what_does_not_fit_together_has_its_python_frames() -> None:
    thread = _thread([_python("main"), _python("shim", shim=True)], [_native("poll")])
    assert subject.merged(thread) == [("main", "/job/train.py", 3)]


def test_a_thread_without_python_has_all_its_frames() -> None:
    thread = _thread([], [_native("start_thread"), _native("poll")])
    assert [name for name, *_ in subject.merged(thread)] == ["poll", "start_thread"]
