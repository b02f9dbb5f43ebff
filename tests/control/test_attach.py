"""A job that runs is recorded for a while, whether it was prepared for it or not."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from control_jobs import DOES, TRAINS, Job, job
from injected import waits_for_ever
from recording import process_file, python, read_table, recorders, wait_for

from haiprof import Analyzer
from haiprof.common.launcher import placement
from haiprof.common.process_life import start_time_of
from haiprof.control import attach as attach_module
from haiprof.control.attach import Attached, AttachError, RecordingPlan, attach, way_to
from haiprof.control.client import ControlError
from haiprof.control.find import Found, find
from haiprof.control.inject import run_in
from haiprof.options import resolve

pytestmark = pytest.mark.jobs

#: How one is reached that was not prepared.
WAY = "remote_exec" if sys.version_info >= (3, 14) else "injector"


def found(pid: int) -> Found:
    return find(str(pid))[0]


def recorded(running: Job, plan: RecordingPlan, wanted: int = 10) -> Attached:
    """Record so many steps that are whole."""
    attached = attach(found(running.pid), plan)

    def step() -> int:
        return running.ask("status")["step"] or 0  # there is none yet

    first = step()
    wait_for(lambda: step() > first + wanted)
    attached.end()
    return attached


def steps(run_dir: Path) -> int:
    return Analyzer(run_dir).steps().height


def sampled(run_dir: Path, *ranks: int) -> bool:
    """Whether it lies on disk what each of them uses of a core, which takes two readings."""

    def has(folder: Path) -> bool:
        rows = read_table(folder, "samples").to_pylist()
        return any(row["metric"] == "proc.cpu.percent" for row in rows)

    return all(any(map(has, run_dir.glob(f"*#{rank}"))) for rank in ranks)


def private_mib(pid: int) -> float:
    """Return how much writable memory a process has mapped that is no file's and not its heap's."""
    total = 0
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        addresses, access, _, _, inode, *name = line.split(maxsplit=5)
        if access == "rw-p" and inode == "0" and not name:
            first, behind = (int(address, 16) for address in addresses.split("-"))
            total += behind - first
    return total / 2**20


def test_a_job_that_never_heard_of_haiprof_is_recorded_and_left_as_it_was(
    shm: Path, tmp_path: Path
) -> None:
    with job(TRAINS, tmp_path) as running:
        before = running.figure("Threads")
        mapped = []
        for number in range(4):
            plan = RecordingPlan(f"r{number}", tmp_path / "logs", 30)
            attached = recorded(running, plan, 25)
            assert (attached.way, attached.why) == (WAY, "")
            assert attached.run_dir == tmp_path / "logs" / f"r{number}"
            assert (attached.frozen_ns > 0) == (WAY == "injector")
            assert steps(attached.run_dir) > 20
            wait_for(lambda: running.figure("Threads") == before)
            with pytest.raises(ControlError, match="not loaded haiprof"):
                running.ask("status")
            mapped.append(private_mib(running.pid))
        wait_for(lambda: not recorders(shm))
    # The thread that trains may still hold the last ring's place, not those before.
    assert mapped[-1] - mapped[0] < 2 * resolve({})[0].ring_mib
    assert running.stderr == ""


#: Says which circles of references there are once COUNT is there, one of its own among them.
COUNTS = """
        if os.path.exists("COUNT") and not os.path.exists("COUNTED"):
            class Known: pass
            del Known
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            def origin(found):
                code = getattr(found, "__code__", None)
                kind = found if isinstance(found, type) else type(found)
                return kind.__module__ + "." + kind.__name__ if code is None else code.co_filename
            with open("COUNTED.part", "w") as file:
                file.writelines(origin(found) + chr(10) for found in gc.garbage)
            os.rename("COUNTED.part", "COUNTED")"""


def test_nothing_of_ours_is_left_for_the_jobs_garbage_collector(shm: Path, tmp_path: Path) -> None:
    with job(TRAINS, tmp_path, before="import gc", each=COUNTS) as running:
        recorded(running, RecordingPlan("r0", tmp_path / "logs", 30))
        run_in(running.pid, "import gc; gc.collect(); gc.disable()")
        for number in range(1, 3):
            recorded(running, RecordingPlan(f"r{number}", tmp_path / "logs", 30))
        (tmp_path / "COUNT").touch()
        wait_for((tmp_path / "COUNTED").exists)
    left = set((tmp_path / "COUNTED").read_text().splitlines())
    assert "__main__.Known" in left
    assert not [each for each in left if "haiprof" in each or each in ("<string>", "<stdin>")]


def test_its_phases_are_those_of_a_job_that_was_prepared(shm: Path, tmp_path: Path) -> None:
    with job(TRAINS, tmp_path) as running:
        attached = recorded(running, RecordingPlan("r", tmp_path / "logs", 30))
    phases = Analyzer(attached.run_dir).phases()
    assert set(phases["name"].cast(str)) == {"forward", "backward", "optimizer", "other"}


def test_of_a_job_that_is_recorded_the_recording_goes_on(shm: Path, tmp_path: Path) -> None:
    with job(TRAINS, tmp_path, str(tmp_path / "logs")) as running:
        attached = recorded(running, RecordingPlan("other", tmp_path / "logs", 0.5), 60)
        assert (attached.way, attached.began) == ("socket", False)
        assert attached.run_dir == tmp_path / "logs" / "r"
        status = running.ask("status")
        assert (status["state"], status["ends_in"]) == ("recording", None)
    assert not (tmp_path / "logs" / "other").exists()


def test_of_two_who_attach_at_once_the_later_end_holds(shm: Path, tmp_path: Path) -> None:
    with job(DOES, tmp_path, each="time.sleep(0.01)") as running:
        process = found(running.pid)
        plan = [
            RecordingPlan(name, tmp_path / "logs", s) for name, s in (("short", 30), ("long", 90))
        ]
        with ThreadPoolExecutor(2) as pool:
            short, long = pool.map(lambda each: attach(process, each), plan)
        assert short.began != long.began
        assert short.run_dir == long.run_dir
        assert running.ask("status")["ends_in"] > 60
        short.end()
        assert running.ask("status")["state"] == "recording"
        long.end()
        with pytest.raises(ControlError, match="not loaded haiprof"):
            running.ask("status")
    assert steps(short.run_dir) > 3
    assert [run.name for run in (tmp_path / "logs").iterdir()] == [short.run_dir.name]


def test_who_comes_later_has_the_recording_last_as_long_as_he_wants(
    shm: Path, tmp_path: Path
) -> None:
    with job(DOES, tmp_path, each="time.sleep(0.01)") as running:
        process = found(running.pid)
        first = attach(process, RecordingPlan("r", tmp_path / "logs", 30))
        second = attach(process, RecordingPlan("other", tmp_path / "logs", 90))
        third = attach(process, RecordingPlan("other", tmp_path / "logs", 5))
        assert (second.began, second.way) == (False, "socket")
        for each in (third, first):
            each.end()
            assert running.ask("status")["ends_in"] > 60
        second.end()
        with pytest.raises(ControlError, match="not loaded haiprof"):
            running.ask("status")
    assert running.stderr == ""


#: Waits for its first record, which never comes.
ARMED = """
    import os, time
    import haiprof.capture.session
    haiprof.capture.session.arm()
    print("ready", flush=True)
    while not os.path.exists("END"):
        time.sleep(0.01)
    print(0, flush=True)
"""


def test_a_process_that_waits_for_its_first_record_records_into_its_own_run(
    shm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HAIPROF_LOG_DIR", str(tmp_path / "logs"))
    monkeypatch.setenv("HAIPROF_RUN", "its")
    with job(ARMED, tmp_path) as running:
        attached = attach(found(running.pid), RecordingPlan("other", tmp_path / "logs", 30))
        attached.end()
        assert attached.began is False
        assert attached.run_dir == tmp_path / "logs" / "its"
        assert running.ask("status")["state"] == "recording"
    assert not (tmp_path / "logs" / "other").exists()
    assert running.stderr == ""


#: Keeps imports of one module waiting until GO is there.
SLOW = """from importlib.machinery import SourceFileLoader
    execute = SourceFileLoader.exec_module
    def slowly(loader, module):
        while module.__name__ == "{module}" and not os.path.exists("GO"):
            time.sleep(0.01)
        execute(loader, module)
    SourceFileLoader.exec_module = slowly"""


def test_what_is_given_up_does_not_record_later(
    shm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("haiprof.control.attach._RECORD_SECONDS", 1.0)
    slow = SLOW.format(module="haiprof.capture.session")
    with job(DOES, tmp_path, before=slow, each="time.sleep(0.01)") as running:
        attached = attach(found(running.pid), RecordingPlan("r", tmp_path / "logs", 30))
        assert attached.way == "outside"
        assert "did not begin to record within 1 s" in attached.why
        (tmp_path / "GO").touch()
        time.sleep(2)
        with pytest.raises(ControlError, match="not loaded haiprof"):
            running.ask("status")
        attached.end()
        assert [process_file(p)["ring"] for p in attached.run_dir.glob("*#*")] == [None]
    assert running.stderr == ""


def test_a_recording_that_has_begun_is_not_given_up(
    shm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("haiprof.control.attach._RECORD_SECONDS", 10.0)
    asked = attach_module._records

    def records(pid: int, run: str) -> bool:
        answer = asked(pid, run)
        (tmp_path / "GO").touch()
        return answer

    monkeypatch.setattr("haiprof.control.attach._records", records)
    slow = SLOW.format(module="haiprof.capture.hooks.cuda")
    with job(DOES, tmp_path, before=slow, each="time.sleep(0.01)") as running:
        attached = recorded(running, RecordingPlan("r", tmp_path / "logs", 30))
        assert (attached.way, attached.why) == (WAY, "")
        with pytest.raises(ControlError, match="not loaded haiprof"):
            running.ask("status")
    assert steps(attached.run_dir) > 3


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a small disk")
def test_a_full_tmp_is_not_in_the_way(
    shm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = tmp_path / "full"
    full.mkdir()
    small = ["mount", "-t", "tmpfs", "-o", "size=64k", "haiprof-test", str(full)]
    if subprocess.run(small, capture_output=True, check=False).returncode != 0:
        pytest.skip("no file system can be mounted here")
    try:
        (full / "fill").write_bytes(bytes(64 << 10))
        folders = (str(full)[1:], "dev/shm")
        monkeypatch.setattr("haiprof.control.attach._FOLDERS", folders)
        with job(DOES, tmp_path, each="time.sleep(0.01)") as running:
            attached = recorded(running, RecordingPlan("r", tmp_path / "logs", 30))
        assert (attached.way, attached.why) == (WAY, "")
        assert [each.name for each in full.iterdir()] == ["fill"]
    finally:
        subprocess.run(["umount", "-l", str(full)], check=True)
    assert steps(attached.run_dir) > 3


def test_an_idle_process_is_asked_through_its_socket(shm: Path, tmp_path: Path) -> None:
    with job(TRAINS, tmp_path, str(tmp_path / "logs")) as running:
        running.ask("stop")
        assert way_to(found(running.pid)) == ("socket", "")
        attached = recorded(running, RecordingPlan("later", tmp_path / "logs", 30), 25)
        assert (attached.way, attached.began) == ("socket", True)
        assert running.ask("status")["state"] == "idle"
    assert steps(tmp_path / "logs" / "later") > 20


def test_a_recording_that_nobody_ends_ends_by_itself(
    shm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("haiprof.control.attach._SPARE_SECONDS", 0.5)
    with job(TRAINS, tmp_path) as running:
        attached = attach(found(running.pid), RecordingPlan("r", tmp_path / "logs", 8.0))
        wait_for(lambda: running.ask("status")["state"] == "idle")
        wait_for(lambda: not recorders(shm))
        assert steps(attached.run_dir) > 20


def test_what_runs_no_python_is_looked_at_from_outside(shm: Path, tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        started = start_time_of(sleeper.pid)
        assert started is not None
        process = Found(sleeper.pid, started, os.getuid(), ("sleep", "60"), placement({}))
        try:
            assert way_to(process)[0] == "outside"
            attached = attach(process, RecordingPlan("r", tmp_path / "logs", 30))
            assert attached.way == "outside"
            assert str(sleeper.pid) in attached.why
            wait_for(lambda: (attached.run_dir / "run.json").exists() and recorders(shm))
            wait_for(lambda: sampled(attached.run_dir, 0))
            attached.end()
            assert not [path for path in shm.rglob("*") if not path.is_dir()]
            wait_for(lambda: not recorders(shm))
        finally:
            sleeper.kill()
    (document,) = [process_file(p) for p in attached.run_dir.glob("*#0")]
    assert (document["state"], document["role"], document["pid"]) == ("closed", "rank", sleeper.pid)
    assert document["outside"] == attached.why
    run = Analyzer(attached.run_dir)
    assert run.samples("proc.*")["rank"].to_list().count(0) > 3
    assert "the job was only watched from outside: process" in run.headline()[0]


#: Ranks whose main threads never come to Python code: one uses a core, one nothing.
DEAF = """
    import ctypes, os, threading
    lock = threading.Lock()
    if os.environ["RANK"] == "0":
        threading.Thread(target=lambda: [None for _ in iter(int, 1)], daemon=True).start()
    lock.acquire()
    print("ready", flush=True)
    while not lock.acquire():
        pass
"""


def test_each_rank_that_is_watched_from_outside_has_its_samples(
    shm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("haiprof.control.attach._BEGIN_SECONDS", 0.5)
    ranks = [
        python(DEAF, env=os.environ | {"RANK": str(n), "LOCAL_RANK": str(n), "WORLD_SIZE": "3"})
        for n in range(3)
    ]
    try:
        for rank in ranks:
            assert rank.stdout is not None
            assert rank.stdout.readline() == "ready\n"
            wait_for(lambda pid=rank.pid: waits_for_ever(pid))
        plan = RecordingPlan("r", tmp_path / "logs", 30)
        attached = [attach(found(rank.pid), plan) for rank in ranks]
        assert [a.way for a in attached] == ["outside"] * 3
        wait_for(lambda: len(recorders(shm)) == 1)
        wait_for(lambda: sampled(plan.run_dir, 0, 1, 2))
        ranks[2].kill()
        ranks[2].wait()
        wait_for(lambda: process_file(next(plan.run_dir.glob("*#2")))["state"] == "closed")
        attached[0].end()
        assert [process_file(p)["state"] for p in sorted(plan.run_dir.glob("*#*"))] == [
            "closed", "live", "closed"
        ]  # fmt: skip
        attached[1].end()
        attached[2].end()
        assert not [path for path in shm.rglob("*") if not path.is_dir()]
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    cpu = Analyzer(plan.run_dir).samples("proc.cpu.percent")
    used = dict(cpu.group_by("rank").agg(pl.col("value").max()).iter_rows())
    assert set(used) == {0, 1, 2}
    assert used[0] > max(2, 3 * used[1])  # of a busy machine it has a share


def test_who_is_watched_from_outside_and_who_records_are_one_run(shm: Path, tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as sleeper, job(TRAINS, tmp_path) as running:
        started = start_time_of(sleeper.pid)
        assert started is not None
        place = placement({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"})
        process = Found(sleeper.pid, started, os.getuid(), ("sleep", "60"), place)
        plan = RecordingPlan("r", tmp_path / "logs", 30)
        inside, outside = attach(found(running.pid), plan), attach(process, plan)
        assert (inside.way, outside.way) == (WAY, "outside"), inside.why
        wait_for(lambda: sampled(plan.run_dir, 0, 1))
        inside.end()
        time.sleep(1.2)
        outside.end()
        sleeper.kill()
    assert steps(plan.run_dir) > 20
    assert set(Analyzer(plan.run_dir).samples("proc.cpu.percent")["rank"]) == {0, 1}
    assert len([p for p in plan.run_dir.iterdir() if p.is_dir()]) == 3


def test_from_outside_it_ends_by_itself_if_nobody_ends_it(
    shm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("haiprof.control.attach._SPARE_SECONDS", 0.5)
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        started = start_time_of(sleeper.pid)
        assert started is not None
        process = Found(sleeper.pid, started, os.getuid(), ("sleep", "60"), placement({}))
        try:
            attach(process, RecordingPlan("r", tmp_path / "logs", 2.5))
            wait_for(lambda: recorders(shm))
            wait_for(lambda: not recorders(shm), 20)
            assert sleeper.poll() is None
            assert not [path for path in shm.rglob("*") if not path.is_dir()]
        finally:
            sleeper.kill()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can ask as another user")
def test_another_users_job_is_refused_in_one_line(shm: Path, tmp_path: Path) -> None:
    with job(TRAINS, tmp_path) as running:
        process = found(running.pid)
        child = os.fork()
        if child == 0:
            status = 1
            with contextlib.suppress(BaseException):
                os.setgroups([])
                os.setresgid(65534, 65534, 65534)
                os.setresuid(65534, 65534, 65534)
                way, why = way_to(process)
                expected = "is another user's: ask as that user, or as root"
                status = 0 if way == "outside" and expected in why and "\n" not in why else 2
            os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert running.steps > 3


#: What the main thread is in when somebody attaches, most of the time.
AT = {
    "nanosleep": ("", "time.sleep(0.3)"),
    "futex": ("lock = threading.Lock(); lock.acquire()", "lock.acquire(timeout=0.3)"),
    "read": (
        "r, w = os.pipe()"
        "; feed = lambda: [os.write(w, b'x') for _ in iter(lambda: time.sleep(0.2), 1)]"
        "; threading.Thread(target=feed, daemon=True).start()",
        "os.read(r, 1)",
    ),
    "epoll_wait": (
        "r, w = os.pipe(); e = select.epoll(); e.register(r, select.EPOLLIN)",
        "e.poll(0.3)",
    ),
    "C code": ("big = bytes(range(256)) * 40000", "zlib.compress(big, 6)"),
    "C code that keeps the interpreter's lock": ("", "sum(range(10_000_000))"),
}


@pytest.mark.parametrize("at", AT)
def test_whatever_the_job_is_at(shm: Path, tmp_path: Path, at: str) -> None:
    before, each = AT[at]
    with job(DOES, tmp_path, before=before, each=each) as running:
        attached = recorded(running, RecordingPlan("r", tmp_path / "logs", 30), 1)
        assert (attached.way, attached.why) == (WAY, "")
        assert steps(attached.run_dir) >= 1
    assert running.stderr == ""


def test_our_modules_come_in_one_file_and_that_is_gone(
    shm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = tmp_path / "marker"
    code = f"""
        import sys
        def bundled(module):
            return type(getattr(module, "__loader__", None)).__name__ == "_Loader"
        ours = {{n: bundled(m) for n, m in sys.modules.items() if n.startswith("haiprof.")}}
        with open({str(marker)!r}, "w") as file:
            print(sum(ours.values()), *(n for n in ours if not ours[n]), file=file)
    """
    bundle, brought = attach_module._bundle, []

    @contextlib.contextmanager
    def noted(*given: Any) -> Iterator[str]:
        with bundle(*given) as path:
            brought.append(Path(path))
            assert brought[0].stat().st_size > 100_000
            yield path

    monkeypatch.setattr("haiprof.control.attach._bundle", noted)
    with job(DOES, tmp_path, each="time.sleep(0.01)") as running:
        recorded(running, RecordingPlan("r", tmp_path / "logs", 30))
        run_in(running.pid, textwrap.dedent(code), 10)
        wait_for(lambda: marker.exists() and marker.read_text().endswith("\n"))
        bundled, *others = marker.read_text().split()
    assert int(bundled) > 10
    # What brings the bundle, what is no Python, and what is imported when somebody asks.
    bringing = {"capture", "capture.socket", "capture.socket.entry", "capture.bundle"}
    asked = {"capture.socket.requests"}
    ground = {"_core", "capture.yielding", "common", "common.threads"}
    assert set(others) <= {f"haiprof.{name}" for name in bringing | asked | ground}
    assert len(brought) == 1
    assert not brought[0].exists()
    assert running.stderr == ""


def test_a_deadlock_is_looked_at_from_outside(
    shm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In time, with the reason; and when it is over nothing of haiprof is there."""
    monkeypatch.setattr("haiprof.control.attach._BEGIN_SECONDS", 1.0)
    before = (
        "lock = threading.Lock(); lock.acquire();"
        " signal.signal(signal.SIGUSR1, lambda *_: lock.release())"
    )
    with job(DOES, tmp_path, before=before, each="lock.acquire(); lock.release()") as running:
        wait_for(lambda: waits_for_ever(running.pid))
        begun = time.monotonic()
        attached = attach(found(running.pid), RecordingPlan("r", tmp_path / "logs", 30))
        assert time.monotonic() - begun < 14
        assert attached.way == "outside"
        assert "its main thread does not reach Python code: it waits" in attached.why
        assert "\n" not in attached.why
        wait_for(lambda: sampled(attached.run_dir, 0))
        attached.end()
        os.kill(running.pid, signal.SIGUSR1)
        time.sleep(0.3)
        with pytest.raises(ControlError, match="not loaded haiprof"):
            running.ask("status")
    assert running.stderr == ""
    assert Analyzer(attached.run_dir).samples("proc.*")["rank"].to_list().count(0) > 3


#: Processes that are there only just: the one when it starts, the other at its end.
BRIEF = {
    "just starting": "import os, sys, time\n"
    "while not os.path.exists(sys.argv[1]): time.sleep(0.01)\n"
    "print('right')",
    "just ending": "import json, threading; print('right')",
}


@pytest.mark.parametrize("when", BRIEF)
def test_a_process_that_is(
    shm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """It is recorded, or one line says why not; and it ends as it would have."""
    monkeypatch.setattr("haiprof.control.attach._BEGIN_SECONDS", 2.0)
    refused = []
    for delay_ms in range(0, 60, 6):
        plan = RecordingPlan(f"r{delay_ms}", tmp_path / "logs", 30)
        end = tmp_path / f"end{delay_ms}"
        with subprocess.Popen(
            [sys.executable, "-c", BRIEF[when], end],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            time.sleep(delay_ms / 1000)
            for each in find(str(process.pid)):
                try:
                    attached = attach(each, plan)
                except AttachError as error:
                    refused.append(str(error))
                else:
                    refused += [attached.why] if attached.way == "outside" else []
                    attached.end()
            end.touch()
            out = process.communicate(timeout=60)[0]
            assert (process.returncode, out) == (0, "right\n")
    assert all(line and "\n" not in line and "Traceback" not in line for line in refused)
    if when == "just starting":
        assert len(refused) <= 5
    wait_for(lambda: not recorders(shm))
