"""Stacks of running processes, whether haiprof is loaded there or not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from containers import container
from recording import wait_for

from haiprof import _core
from haiprof.control.find import Found, find
from haiprof.control.stacks import Frame, Looked, Thread, chosen, grouped, look_at

pytestmark = pytest.mark.skipif(
    sys.version_info >= (3, 15), reason="the layout of this Python is not known"
)

#: No other process of the machine runs it.
SCRIPT = f"train_{time.monotonic_ns()}.py"
#: Never heard of haiprof.
JOB = """
import ctypes, os, sys, threading, time
works, begins = os.pipe()
libc = ctypes.PyDLL(None)
def waits():
    os.write(begins, b"x")
    time.sleep(600)

def holds():
    for _ in sys.argv:  # the helper, and the worker if there is one
        os.read(works, 1)
    print("ready", flush=True)
    libc.sleep(600)

if "worker" in sys.argv:
    if os.fork() == 0:
        waits()
threading.Thread(target=waits, name="helper", daemon=True).start()
holds()
"""
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start the job, in a process group of its own."""
    script = tmp_path / SCRIPT
    script.write_text(JOB)
    started: list[subprocess.Popen[str]] = []

    def run(*words: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, script, *words], stdout=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield run
    for process in started:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def functions(thread: Thread) -> list[str]:
    return [frame.function for frame in thread.frames]


def test_a_process_that_never_heard_of_us_and_holds_the_gil(start: Start) -> None:
    process = start()
    wait_for(lambda: _core.thread_state(process.pid, process.pid)[0] == "waiting")
    (looked,) = look_at(chosen(str(process.pid)))
    assert (looked.pid, looked.problem, looked.forked_by) == (process.pid, "", None)
    main, helper = looked.threads
    assert functions(main) == ["holds", "<module>"]
    assert [frame.line for frame in main.frames] == [13, 19]
    assert (main.thread, main.state, main.gil) == (process.pid, "waiting", True)
    assert main.waits_in is not None
    assert functions(helper)[0] == "waits"
    assert (helper.state, helper.gil) == ("waiting", False)
    assert Looked.from_json(looked.as_json()) == looked


def test_workers_are_looked_at_with_their_parent(start: Start) -> None:
    process = start("worker")
    parent, worker = look_at(chosen(SCRIPT))
    assert (parent.pid, worker.forked_by) == (process.pid, process.pid)
    assert functions(worker.threads[0]) == ["waits", "<module>"]
    assert f"worker of pid {process.pid}" in worker.label


def test_a_stopped_process_answers_and_stays_stopped(start: Start) -> None:
    process = start()
    process.send_signal(signal.SIGSTOP)
    wait_for(lambda: _core.thread_state(process.pid, process.pid)[0] == "stopped")
    (looked,) = look_at(chosen(str(process.pid)))
    assert [thread.state for thread in looked.threads] == ["stopped", "stopped"]
    assert functions(looked.threads[0]) == ["holds", "<module>"]
    assert _core.thread_state(process.pid, process.pid)[0] == "stopped"


def test_why_a_process_is_not_read_is_said(start: Start) -> None:
    process = start()
    (found,) = find(str(process.pid))
    (looked,) = look_at([(found._replace(start_time=1), None)])
    assert looked.problem == "it has ended"
    with subprocess.Popen(["sleep", "600"]) as other:
        try:
            command = Path(f"/proc/{other.pid}/cmdline")
            wait_for(lambda: command.read_bytes().startswith(b"sleep"))
            (looked,) = look_at([(_found(other.pid), None)])
        finally:
            other.kill()
    assert looked.problem == "there is no CPython in its memory"


def _found(pid: int) -> Found:
    (found,) = find(str(pid))
    return found


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be somebody else")
def test_another_users_process_is_refused_in_one_line(start: Start) -> None:
    process = start()
    program = f"""
        import os
        from haiprof.control.find import find
        from haiprof.control.stacks import look_at
        (found,) = find("{process.pid}")
        os.setgroups([]); os.setgid(65534); os.setuid(65534)
        (looked,) = look_at([(found, None)])
        assert not looked.threads
        print(looked.problem)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True
    )
    assert done.stdout.startswith("its memory may not be read"), done.stderr


@pytest.mark.jobs
def test_threads_of_a_container_have_our_numbers(shm: Path, tmp_path: Path) -> None:
    program = """
        import os, threading, time
        def waits():
            while not os.path.exists("/END"):
                time.sleep(0.1)
        threading.Thread(target=waits).start()
        print("ready", flush=True)
        waits()
    """
    with container(tmp_path, program) as job:
        (looked,) = look_at([(_found(job.pid), None)])
        assert looked.problem == ""
        assert functions(looked.threads[0])[-1] == "<module>"
        assert looked.threads[0].thread == job.pid
        assert {functions(thread)[0] for thread in looked.threads} == {"waits"}
        numbers = {int(p.name) for p in Path(f"/proc/{job.pid}/task").iterdir()}
        assert {thread.thread for thread in looked.threads} == numbers
        job.finish()


def test_a_read_that_does_not_end_is_given_up(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck = threading.Event()

    class Stuck:
        def __init__(self, *given: object) -> None:
            stuck.wait()

        def take(self) -> list[object]:
            return []

    process = start()
    monkeypatch.setattr(_core, "PythonStacks", Stuck)
    (looked,) = look_at(chosen(str(process.pid)), 0.2)
    stuck.set()
    assert looked.problem == "reading its memory took more than 0.2 s"
    assert looked.threads == []


def test_memory_of_a_process_in_uninterruptible_sleep_is_not_read(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = start()
    asleep = "uninterruptible", "nfs_wait_bit_killable"
    monkeypatch.setattr(_core, "thread_state", lambda pid, thread: asleep)
    monkeypatch.setattr(_core, "PythonStacks", None)
    (looked,) = look_at(chosen(str(process.pid)))
    assert looked.problem == (
        f"not read: thread {process.pid} is in uninterruptible sleep, in nfs_wait_bit_killable"
    )


def _made(pid: int, *threads: tuple[int, str], worker: bool = False) -> Looked:
    looked = Looked(pid, f"rank {pid}, pid {pid}", pid, ("python",), 1 if worker else None)
    looked.threads = [
        Thread(number, "other", "running", None, False, (Frame(name, "f.py", 1),))
        for number, name in threads
    ]
    return looked


def test_equal_stacks_are_together_and_the_fewest_come_first() -> None:
    looked = [_made(n, (n, "all_reduce"), (n + 100, "idle")) for n in range(1, 16)]
    looked.append(_made(16, (16, "load"), (116, "idle")))
    groups = grouped(looked)
    assert [(g.frames[0].function, len(g.members), g.of, g.main) for g in groups] == [
        ("load", 1, 16, True),
        ("all_reduce", 15, 16, True),
        ("idle", 16, 16, False),
    ]
    assert groups[0].members[0][0].pid == 16
