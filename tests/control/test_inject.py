"""Code in running processes of real Pythons, whatever these are at."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from injected import FED, HEAD, LOOP, PROGRAMS, waits_for_ever
from interpreters import NAMES, interpreters
from recording import wait_for

from haiprof import _core
from haiprof.control import inject
from haiprof.control.inject import NotReachedError, run_in, why_not

ROOT = os.geteuid() == 0
#: How a process of this very Python is reached.
WAY = "remote_exec" if sys.version_info >= (3, 14) else "injector"


class Job:
    """A Python program that does one thing again and again."""

    def __init__(self, end: Path, process: subprocess.Popen[str]) -> None:
        self.end = end
        self.process = process
        self.pid = process.pid
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"

    def finish(self) -> tuple[bool, list[str]]:
        """Whether all of it came out right, and the marks that injected code left."""
        self.end.touch()
        out, err = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, err
        assert err == ""
        right, *marks = out.split()
        return right == "True", marks


@contextlib.contextmanager
def running(
    tmp_path: Path, body: str, *, python: str = sys.executable, head: str = "", **keywords: Any
) -> Iterator[Job]:
    """Run HEAD, and the body in a loop."""
    end = tmp_path / "end"
    end.unlink(missing_ok=True)
    text = HEAD + head + LOOP.format(body=body)
    command = [*keywords.pop("before", []), python, "-u", "-c", text, str(end)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **keywords
    )
    try:
        yield Job(end, process)
    finally:
        process.kill()
        process.communicate()


def pythons() -> list[Any]:
    """Other interpreters that are here, by version; a skip for each that is not."""
    found = []
    for name in NAMES:
        path = str(interpreters()[name]) if name in interpreters() else None
        mark = [] if path else [pytest.mark.skip(reason=f"no {name} here: tests/interpreters.py")]
        found.append(pytest.param(path, id=name, marks=mark))
    static = next((p for p in ("/usr/bin/python3",) if Path(p).exists() and is_static(p)), None)
    mark = [] if static else [pytest.mark.skip(reason="no Python without libpython here")]
    found.append(pytest.param(static, id="without libpython", marks=mark))
    return found


def is_static(python: str) -> bool:
    """Whether an interpreter has CPython in its own file."""
    return b"Py_AddPendingCall" in Path(python).resolve().read_bytes()


def mark(word: object) -> str:
    """Code that leaves a mark in the job."""
    return f"import sys; sys.modules['__main__'].marks.append({str(word)!r})"


@pytest.mark.parametrize("name", PROGRAMS)
def test_runs_once_whatever_the_job_is_at(tmp_path: Path, name: str) -> None:
    head = "threading.Thread(target=feed, daemon=True).start()\n" if name in FED else ""
    with running(tmp_path, PROGRAMS[name], head=head) as job:
        for i in range(5):
            ran = run_in(job.pid, mark(i))
            assert ran.way == WAY
            assert (ran.frozen_ns > 0) == (WAY == "injector")
        assert job.finish() == (True, ["0", "1", "2", "3", "4"])


def test_python_code_runs_all_the_time_beside_a_thread_that_waits(tmp_path: Path) -> None:
    """Before Python 3.13 the main thread does not notice what that thread has queued."""
    head = (
        "import ctypes; waited_for = ctypes.create_string_buffer(32)\n"
        "wait = ctypes.CDLL(None).sem_wait\n"
        "threading.Thread(target=wait, args=(waited_for,), daemon=True).start()\n"
    )
    with running(tmp_path, "n += sum(range(2000)) > 0", head=head) as job:
        for i in range(3):
            run_in(job.pid, mark(i))
        assert job.finish() == (True, ["0", "1", "2"])


@pytest.mark.skipif(WAY == "remote_exec", reason="sys.remote_exec hurries no thread")
def test_what_it_starts_meanwhile_is_scheduled_as_ever(tmp_path: Path) -> None:
    body = "p = os.fork(); p or os._exit(os.sched_getscheduler(0)); n += os.waitpid(p, 0)[1] == 0"
    with running(tmp_path, body) as job:
        for _ in range(500):
            run_in(job.pid, "pass")
        assert job.finish() == (True, [])


@pytest.mark.parametrize("name", [*sorted(FED), "sleep", "lock", "epoll with a time-out"])
def test_the_only_thread_is_in_a_system_call(tmp_path: Path, name: str) -> None:
    """What it waits in goes on as if nothing had been."""
    head = "r = 0; e = select.epoll(); e.register(r, select.EPOLLIN)\n"
    with running(tmp_path, PROGRAMS[name], head=head, stdin=subprocess.PIPE) as job:
        assert job.process.stdin is not None
        fed = job.process.stdin.fileno()
        over = threading.Event()

        def feed() -> None:
            with contextlib.suppress(BrokenPipeError):
                while not over.wait(0.15):
                    os.write(fed, b"x")

        feeder = threading.Thread(target=feed)
        feeder.start()
        try:
            assert len(list(Path(f"/proc/{job.pid}/task").iterdir())) == 1
            for i in range(5):
                run_in(job.pid, mark(i))
            job.end.touch()
            job.process.wait(timeout=60)
        finally:
            over.set()
            feeder.join()
        assert job.finish() == (True, ["0", "1", "2", "3", "4"])


@pytest.mark.parametrize("python", pythons())
@pytest.mark.parametrize("name", ["python", "sleep"])
def test_other_interpreters(tmp_path: Path, python: str, name: str) -> None:
    with running(tmp_path, PROGRAMS[name], python=python) as job:
        answer = subprocess.run(
            [python, "-c", "import sys; print(*sys.version_info[:2], sep='.', end=sys.abiflags)"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert str(inject.python_of(job.pid)) == answer
        for i in range(3):
            run_in(job.pid, mark(i))
        assert job.finish() == (True, ["0", "1", "2"])


def resident(pid: int) -> int:
    """Bytes of memory that a process has."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def scheduled(pid: int) -> dict[str, tuple[int, int]]:
    """How each thread is scheduled: its policy, and how nice it is."""
    threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208
    return {
        thread: (os.sched_getscheduler(int(thread)), os.getpriority(os.PRIO_PROCESS, int(thread)))
        for thread in threads
    }


def test_fifty_leave_nothing_behind(tmp_path: Path) -> None:
    with running(tmp_path, "time.sleep(0.001); n += 1") as job:
        run_in(job.pid, mark("first"))
        memory = resident(job.pid)
        maps = Path(f"/proc/{job.pid}/maps").read_text().count("\n")
        descriptors = len(list(Path(f"/proc/{job.pid}/fd").iterdir()))
        before = scheduled(job.pid)
        frozen = sorted(run_in(job.pid, mark(i)).frozen_ns for i in range(50))
        assert abs(resident(job.pid) - memory) < 2 << 20
        assert abs(Path(f"/proc/{job.pid}/maps").read_text().count("\n") - maps) <= 2
        assert len(list(Path(f"/proc/{job.pid}/fd").iterdir())) == descriptors
        assert scheduled(job.pid) == before
        # A machine with more to do than processors adds its own waits to the longest ones.
        assert frozen[len(frozen) // 4] < 5_000_000
        assert job.finish() == (True, ["first", *map(str, range(50))])


def test_the_code_has_names_of_its_own(tmp_path: Path) -> None:
    with running(tmp_path, "n += 'leaked' not in globals(); time.sleep(0.01)") as job:
        run_in(job.pid, "leaked = 1\nimport sys\n" + mark("é\u2028'\"\\"))
        names = "sorted(set(vars(sys.modules['__main__'])) - {'marks'})"
        run_in(job.pid, f"import sys\nbefore = {names}\n" + mark("x"))
        right, marks = job.finish()
        assert right
        assert marks[-1] == "x"


@pytest.mark.parametrize(
    ("code", "printed"),
    [
        ("1 / 0", "haiprof: ZeroDivisionError in injected code: division by zero"),
        ("raise SystemExit(3)", "haiprof: SystemExit in injected code: 3"),
        ("x =", "haiprof: SyntaxError in injected code: "),
    ],
)
def test_what_the_code_raises_is_reported_and_goes_no_further(
    tmp_path: Path, code: str, printed: str
) -> None:
    with running(tmp_path, "n += 1; time.sleep(0.01)") as job:
        run_in(job.pid, code)
        run_in(job.pid, mark("on"))
        job.end.touch()
        out, err = job.process.communicate(timeout=60)
        assert out.split() == ["True", "on"]
        assert err.startswith(printed)
        assert err.count("\n") == 1


def test_a_ctrl_c_in_the_code_is_the_jobs(tmp_path: Path) -> None:
    with running(tmp_path, "n += 1; time.sleep(0.01)") as job:
        run_in(job.pid, "raise KeyboardInterrupt")
        _, err = job.process.communicate(timeout=60)
        assert err.rstrip().endswith("KeyboardInterrupt")
        assert "SystemError" not in err


def test_a_full_queue_of_pending_calls_is_waited_for(tmp_path: Path) -> None:
    head = (
        "import ctypes\n"
        "add = ctypes.CDLL(None).Py_AddPendingCall\n"
        "call = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(lambda _: 0)\n"
        "def fill():\n"
        "    while not add(call, None): pass\n"
    )
    # By the injector it is itself a pending call: while it runs, none of the others does.
    full, go = tmp_path / "full", tmp_path / "go"
    filler = (
        "import os, sys, time\nsys.modules['__main__'].fill()\n"
        f"open({str(full)!r}, 'w').close()\n"
        f"while not os.path.exists({str(go)!r}): time.sleep(0.01)\n" + mark("full")
    )
    with running(tmp_path, "n += 1; time.sleep(0.01)", head=head) as job:
        until = time.monotonic() + 30
        first = threading.Thread(target=inject._by_injector, args=(job.pid, filler, until))
        first.start()
        wait_for(full.exists)
        injection = _core.Injection(job.pid, "never = 1")
        assert injection.queue() == "full"
        assert not injection.close()
        threading.Timer(0.5, go.touch).start()
        inject._by_injector(job.pid, mark("after"), until)
        first.join()
        assert job.finish() == (True, ["full", "after"])


def test_a_deadlock_is_reported_and_the_code_never_runs(tmp_path: Path) -> None:
    head = (
        "go = threading.Lock(); go.acquire()\n"
        "signal.signal(signal.SIGUSR1, lambda *_: go.release())\n"
    )
    body = "go.acquire(); n += 1; go.release(); time.sleep(0.05)"
    with running(tmp_path, body, head=head) as job:
        wait_for(lambda: waits_for_ever(job.pid))
        begun = time.monotonic()
        with pytest.raises(NotReachedError, match="does not reach Python code") as error:
            run_in(job.pid, mark("never"), timeout=0.5)
        assert time.monotonic() - begun < 5
        assert error.value.reason == "late"
        os.kill(job.pid, signal.SIGUSR1)
        run_in(job.pid, mark("later"))
        assert job.finish() == (True, ["later"])


def test_a_process_that_is_just_starting(tmp_path: Path) -> None:
    """At any moment of its start the code runs once or is refused in a line, and it goes on."""
    ran = 0
    refused: list[NotReachedError] = []
    for delay_ms in range(0, 90, 3):
        mark = tmp_path / str(delay_ms)
        end = tmp_path / f"end{delay_ms}"
        text = (
            "import os, sys, time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.01)\n"
            "print(sum(range(10)))"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", text, end],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        time.sleep(delay_ms / 1000)
        done = False
        try:
            # json is not there before site is.
            run_in(process.pid, f"import json; open({str(mark)!r}, 'a').write('x')", timeout=20)
            done = True
        except NotReachedError as error:
            refused.append(error)
        end.touch()
        out, _ = process.communicate(timeout=60)
        assert (process.returncode, out) == (0, "45\n")
        assert (mark.read_text() if mark.exists() else "") == ("x" if done else "")
        ran += done
    assert ran >= 20
    assert all("\n" not in str(error) for error in refused)
    assert {error.reason for error in refused} <= {"starting", "gone", "zombie", "late"}


def test_a_process_that_is_just_ending() -> None:
    refused: list[NotReachedError] = []
    for delay_ms in range(0, 40, 4):
        text = "import json, decimal, threading; print('ready', flush=True)"
        process = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(delay_ms / 1000)
        try:
            run_in(process.pid, "pass", timeout=0.3)
        except NotReachedError as error:
            refused.append(error)
        assert process.wait(timeout=60) == 0
    assert all("\n" not in str(error) for error in refused)
    reasons = {error.reason for error in refused}
    assert reasons <= {"starting", "gone", "zombie", "late", "not_python", "busy"}


@pytest.mark.parametrize(
    "kept", ["last.itself = last; del last", "builtins.last = last"], ids=["before", "while"]
)
def test_code_that_a_process_comes_to_when_its_modules_go_does_not_run(
    tmp_path: Path, kept: str
) -> None:
    """What was queued just before is taken then; to load libraries and start threads may end it."""
    program = (
        "import builtins, sys\n"
        "class Last:\n"
        "    def __del__(self, run=exec, text=sys.stdin.readline(), late=sys.is_finalizing):\n"
        "        run(text, {})\n"
        "        print('late' if late() else 'early', flush=True)\n"
        f"last = Last(); {kept}\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as process:  # fmt: skip
        ran = tmp_path / "ran"
        code = f"open({str(ran)!r}, 'w').close()"
        around = inject._around(process.pid, code, "name", time.monotonic() + 60)
        said = process.communicate(inject._alone(around), timeout=60)[0]
    assert (process.returncode, said, ran.exists()) == (0, "late\n", False)


def test_refusals_are_one_line_with_the_fix(tmp_path: Path) -> None:
    with running(tmp_path, "n += 1; time.sleep(0.01)") as job:
        assert why_not(job.pid) is None
        os.kill(job.pid, signal.SIGSTOP)
        while "T (stopped)" not in Path(f"/proc/{job.pid}/status").read_text():
            time.sleep(0.01)
        reason = why_not(job.pid)
        assert reason is not None
        assert reason.endswith(f"it is stopped; resume it: kill -CONT {job.pid}")
        with pytest.raises(NotReachedError) as refused:
            run_in(job.pid, mark("never"))
        assert refused.value.reason == "stopped"
        os.kill(job.pid, signal.SIGCONT)
        assert job.finish() == (True, [])


@pytest.mark.skipif(WAY == "remote_exec", reason="sys.remote_exec maps no memory")
def test_a_process_that_may_not_make_memory_executable(tmp_path: Path) -> None:
    denied = "import ctypes; denied = ctypes.CDLL(None).prctl(65, 1, 0, 0, 0) == 0  # PR_SET_MDWE\n"
    with running(tmp_path, "n += 1; time.sleep(0.01)", head=denied) as job:
        if ctypes.CDLL(None).prctl(66, 0, 0, 0, 0) < 0:  # PR_GET_MDWE
            pytest.skip("the kernel is older than 6.3")
        maps = Path(f"/proc/{job.pid}/maps").read_text()
        with pytest.raises(NotReachedError, match="may not make memory executable") as refused:
            run_in(job.pid, mark("never"))
        assert refused.value.reason == "memory"
        assert str(refused.value).endswith("; start it with haiprof run")
        assert Path(f"/proc/{job.pid}/maps").read_text() == maps
        assert job.finish() == (True, [])


def test_what_is_no_python() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        time.sleep(0.1)
        reason = why_not(process.pid)
        process.kill()
    assert reason is not None
    assert "(sleep): there is no CPython in its memory; name the process" in reason


def test_a_process_that_is_not_there_or_has_ended() -> None:
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert "it has ended" in str(why_not(process.pid))
    assert "there is no such process" in str(why_not(process.pid))


@pytest.mark.skipif(shutil.which("gdb") is None, reason="no gdb")
def test_a_process_that_is_traced(tmp_path: Path) -> None:
    with running(tmp_path, "n += 1; time.sleep(0.01)") as job:
        debugger = subprocess.Popen(
            ["gdb", "-q", "-nx", "-p", str(job.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        while "TracerPid:\t0" in Path(f"/proc/{job.pid}/status").read_text():
            time.sleep(0.01)
        line = why_not(job.pid)
        debugger.kill()
        debugger.wait()
        os.kill(job.pid, signal.SIGCONT)  # killed while it attached it leaves the job stopped
        assert line is not None
        assert f"process {debugger.pid} (gdb) is tracing it; end that first" in line
        assert job.finish() == (True, [])


AS_NOBODY = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]


@pytest.mark.skipif(not ROOT or shutil.which("setpriv") is None, reason="needs root and setpriv")
def test_another_users_process(tmp_path: Path) -> None:
    """Run as nobody against a process of root: what it may not do, and who may."""
    with running(tmp_path, "n += 1; time.sleep(0.01)") as job:
        process = os.fork()
        if process == 0:
            status = 1
            with contextlib.suppress(BaseException):
                os.setgroups([])
                os.setresgid(65534, 65534, 65534)
                os.setresuid(65534, 65534, 65534)
                line = why_not(job.pid) or ""
                status = 0 if "it belongs to user root: do this as root" in line else 2
            os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
        assert job.finish() == (True, [])


@pytest.mark.skipif(not ROOT or shutil.which("setpriv") is None, reason="needs root and setpriv")
def test_root_reaches_a_process_of_nobody(tmp_path: Path) -> None:
    with subprocess.Popen(
        [*AS_NOBODY, "/usr/bin/python3", "-uc", "import time\nwhile True: time.sleep(0.1)"],
        stdout=subprocess.DEVNULL,
    ) as process:
        try:
            code = "open('/proc/self/comm', 'w').write('reached')"
            run_in(process.pid, code)
            assert Path(f"/proc/{process.pid}/comm").read_text() == "reached\n"
        finally:
            process.kill()


@pytest.mark.skipif(not ROOT or shutil.which("unshare") is None, reason="needs root and unshare")
def test_in_a_pid_and_mount_namespace_of_its_own(tmp_path: Path) -> None:
    before = ["unshare", "--pid", "--mount", "--fork", "--mount-proc"]
    with running(tmp_path, "n += os.getpid() == 1; time.sleep(0.01)", before=before) as job:
        children = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
        inner = int(children[0])
        for i in range(3):
            run_in(inner, mark(i))
        assert job.finish() == (True, ["0", "1", "2"])


def test_a_child_that_is_forked_meanwhile_does_not_run_it(tmp_path: Path) -> None:
    """What is queued is queued in it too."""
    body = (
        "p = os.fork()\n"
        "    if p == 0:\n"
        "        for _ in range(1000): pass\n"
        "        os._exit(str(os.getpid()) in marks)\n"
        "    n += os.waitstatus_to_exitcode(os.waitpid(p, 0)[1]) == 0"
    )
    code = "import os, sys; sys.modules['__main__'].marks.append(str(os.getpid()))"
    with running(tmp_path, body) as job:
        for _ in range(30):
            run_in(job.pid, code)
        assert job.finish() == (True, [str(job.pid)] * 30)


def test_many_at_once(tmp_path: Path) -> None:
    """They take turns: each comes through, and the job has each once."""
    refused: list[NotReachedError] = []

    def some(name: int) -> None:
        for i in range(10):
            try:
                run_in(job.pid, mark(f"{name}.{i}"), timeout=60)
            except NotReachedError as error:
                refused.append(error)

    with running(tmp_path, "n += 1; time.sleep(0.001)") as job:
        threads = [threading.Thread(target=some, args=(k,)) for k in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert refused == []
        right, found = job.finish()
        assert right
        assert sorted(found) == sorted(f"{name}.{i}" for name in range(4) for i in range(10))


def test_the_injector_is_killed(tmp_path: Path) -> None:
    """Wherever it is between its stops, the job goes on; what was queued runs once at most."""
    code = (
        "import sys; from haiprof import _core; pid = int(sys.argv[1])\n"
        "injection = _core.Injection(pid, sys.argv[2])\n"
        "print(injection.queue(), flush=True)\n"
        "import time; time.sleep(60)\n"
    )
    with running(tmp_path, "n += 1; time.sleep(0.001)") as job:
        for i in range(5):
            injector = subprocess.Popen(
                [sys.executable, "-c", code, str(job.pid), mark(i)], stdout=subprocess.PIPE
            )
            assert injector.stdout is not None
            injector.stdout.readline()
            injector.kill()
            injector.communicate()
        run_in(job.pid, mark("last"))
        assert job.finish() == (True, ["0", "1", "2", "3", "4", "last"])


def test_the_injector_is_killed_at_any_moment(tmp_path: Path) -> None:
    """Also while a thread of the job stands or makes a system call for it."""
    code = (
        "import sys, time; from haiprof import _core; pid = int(sys.argv[1])\n"
        "print('go', flush=True)\n"
        "while True:\n"
        "    injection = _core.Injection(pid, 'pass')\n"
        "    injection.queue()\n"
        "    while not injection.ran(): time.sleep(0.0005)\n"
        "    injection.close()\n"
    )
    moments = random.Random(6)
    with running(tmp_path, PROGRAMS["hash"]) as job:
        for _ in range(15):
            injector = subprocess.Popen(
                [sys.executable, "-c", code, str(job.pid)],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            assert injector.stdout is not None
            assert injector.stdout.readline() == b"go\n"
            time.sleep(moments.uniform(0, 0.03))
            injector.kill()
            injector.communicate()
        while "TracerPid:\t0" not in Path(f"/proc/{job.pid}/status").read_text():
            time.sleep(0.001)
        run_in(job.pid, mark("last"))
        assert job.finish() == (True, ["last"])


def test_close_without_queue_leaves_the_process_alone(tmp_path: Path) -> None:
    with running(tmp_path, "n += 1; time.sleep(0.01)") as job:
        injection = _core.Injection(job.pid, mark("never"))
        assert not injection.ran()
        assert not injection.close()
        assert injection.frozen_ns == 0
        assert job.finish() == (True, [])
