"""Recordings that begin later or end earlier than their process."""

from __future__ import annotations

import json
import os
from pathlib import Path

from commands import haiprof
from recording import process_file, python, read_table, recorders, run_python, wait_recorded

#: Pushes a range every 50 ms, named by how long the program has run.
WORK = """
    import haiprof, os, sys, time
    from haiprof.capture.session import arm
    def work(until, goes_on=lambda: True):
        while (now := time.monotonic() - BEGIN) < until and goes_on():
            with haiprof.range(f"{now:.3f}"):
                time.sleep(0.05)
        return time.monotonic() - BEGIN
    BEGIN = time.monotonic()
"""
#: Works until the recording begins, until it ends, and further; prints when these were.
TO_ITS_END = """
    print(work(60.0, lambda: not session.recording))
    ended = work(60.0, lambda: session.recording)
    print(ended)
    work(ended + 1.0)
"""
#: How late that may be seen, s: one range later, and those may be held up.
LATE = 2.0


def times(folder: Path) -> list[float]:
    """When the ranges of a folder began, s since the program began."""
    return sorted(float(name) for name in read_table(folder, "spans")["name"].to_pylist())


def test_it_begins_after_the_warmup_and_ends_when_its_time_is_up(shm: Path, tmp_path: Path) -> None:
    program = (
        WORK
        + """
    session = haiprof.start(sys.argv[1], run="run", hooks=False, warmup=2.0, time=4.0)
    print(session.recording)
    assert haiprof.start(sys.argv[1]) is session  # also while it waits
    print(session.recording)
    """
        + TO_ITS_END
        + """
    print(session.recording)
    """
    )
    before, still, *seen, after = run_python(program, str(tmp_path)).split()
    assert (before, still, after) == ("False", "False", "False")
    began, ended = map(float, seen)
    wait_recorded(shm)
    folder = next(tmp_path.glob("run/*#0"))
    recorded = times(folder)
    assert recorded[0] < began + LATE
    assert recorded[1] >= 2.0  # only the first can have begun before the recording did
    assert ended - LATE < recorded[-1] < ended
    assert recorded[1] + 2.5 < recorded[-1] < recorded[1] + 10.0
    assert process_file(folder)["state"] == "closed"


def test_its_recorder_leaves_while_the_job_goes_on(shm: Path, tmp_path: Path) -> None:
    program = (
        WORK
        + """
    haiprof.start(sys.argv[1], run="run", hooks=False, time=0.5)
    work(1.0)
    print("worked", flush=True)
    time.sleep(60)
    """
    )
    job = python(program, str(tmp_path))
    assert job.stdout is not None
    assert job.stdout.readline() == "worked\n"
    wait_recorded(shm)
    assert job.poll() is None
    job.kill()
    job.wait()


def test_the_environment_gives_a_window_to_what_it_arms(shm: Path, tmp_path: Path) -> None:
    options = {"LOG_DIR": str(tmp_path), "RUN": "run", "WARMUP": "1", "TIME": "4", "HOOKS": "0"}
    options |= {"TASK_ID": "42", "USER_ID": "7"}
    environment = {**os.environ, **{f"HAIPROF_{name}": text for name, text in options.items()}}
    program = WORK + "    session = arm()\n" + TO_ITS_END
    began, ended = map(float, run_python(program, env=environment).split())
    wait_recorded(shm)
    recorded = times(next(tmp_path.glob("run/*#0")))
    assert recorded[0] < began + LATE
    assert recorded[1] >= 1.0
    assert ended - LATE < recorded[-1] < ended
    assert recorded[-1] < recorded[1] + 10.0
    described = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (described["task"], described["user"]) == ("42", "7")


def test_its_time_passes_from_when_the_job_works(shm: Path, tmp_path: Path) -> None:
    program = (
        WORK
        + """
    session = arm()
    import torch.distributed as dist
    from haiprof import _core
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    print(_core.ring_open())
    time.sleep(2.0)
    print(time.monotonic() - BEGIN)
    ended = work(60.0, lambda: session.recording)
    print(ended)
    work(ended + 1.0)
    """
    )
    options = {"LOG_DIR": str(tmp_path), "RUN": "run", "TIME": "4"}
    environment = {**os.environ, **{f"HAIPROF_{name}": text for name, text in options.items()}}
    opened, *seen = run_python(program, env=environment).split()
    assert opened == "True"
    begins, ended = map(float, seen)
    wait_recorded(shm)
    folder = next(tmp_path.glob("run/*#0"))
    assert "group" in read_table(folder, "events")["kind"].to_pylist()
    recorded = times(folder)
    assert recorded[0] > begins - 0.01
    assert ended - LATE < recorded[-1] < ended
    assert recorded[0] + 2.5 < recorded[-1] < recorded[0] + 10.0


def test_a_stop_in_the_warmup_is_the_end_of_it(shm: Path, tmp_path: Path) -> None:
    program = (
        WORK
        + """
    haiprof.start(sys.argv[1], run="run", hooks=False, warmup=0.3)
    haiprof.stop()
    work(0.6)
    """
    )
    run_python(program, str(tmp_path))
    assert not recorders(shm)
    assert not list(tmp_path.glob("run/*#0"))


def test_forks_keep_to_the_window(shm: Path, tmp_path: Path) -> None:
    program = (
        WORK
        + """
    haiprof.start(sys.argv[1], run="run", hooks=False, warmup=1.0, time=3.0)
    def fork(until):
        pid = os.fork()
        if pid == 0:
            work(until)
            haiprof.stop()
            os._exit(0)
        return pid
    early = fork(8.0)
    work(2.0)
    late = fork(8.0)
    work(8.0)
    for pid in (early, late):
        assert os.waitpid(pid, 0)[1] == 0
    print(early, late)
    """
    )
    early, late = run_python(program, str(tmp_path)).split()
    wait_recorded(shm)
    recorded = {pid: times(next(tmp_path.glob(f"run/*#0.{pid}"))) for pid in (early, late)}
    recorded["parent"] = times(next(p for p in tmp_path.glob("run/*#0") if p.is_dir()))
    for began_after, who in ((1.0, "parent"), (1.0, early), (2.0, late)):
        assert recorded[who][1] >= began_after, who
        assert recorded[who][-1] < 6.5, who


def test_a_rank_under_run_ends_by_itself_and_the_command_does_not(
    shm: Path, tmp_path: Path
) -> None:
    script = tmp_path / "job.py"
    script.write_text(
        "import haiprof, time\n"
        "def work():\n"
        "    with haiprof.range('work'): time.sleep(0.02)\n"
        "session = haiprof.start()\n"
        "end, n = time.monotonic() + 60, 0\n"
        "while session.recording and time.monotonic() < end:\n"
        "    work()\n"
        "    n += 1\n"
        "for _ in range(50): work()\n"
        "print('done', n)\n"
    )
    done = haiprof("run", "--log-dir", str(tmp_path), "--run", "run", "--time", "2", str(script))
    assert done.returncode == 0
    meanwhile = int(done.stdout.partition("done ")[2].split()[0])
    wait_recorded(shm)
    spans = read_table(next(tmp_path.glob("run/*#0")), "spans")
    assert 0 < spans.num_rows <= meanwhile


def test_a_warmup_that_ends_while_torch_is_imported_loses_nothing(
    shm: Path, tmp_path: Path
) -> None:
    (tmp_path / "torch.py").write_text("import time\ntime.sleep(3)\nready = True\n")
    program = """
    import sys
    sys.path.insert(0, sys.argv[1])
    import haiprof, time
    from haiprof.common.launcher import placement
    from haiprof.options import resolve
    from haiprof.capture import after_import
    found = []
    def begin(session):
        found.append(after_import.imported("torch") is not None)
    session = haiprof.Session(resolve({"warmup": 1.0})[0], placement())
    session.wait_for_beginning(begin)
    import torch
    until = time.monotonic() + 30
    while not found and time.monotonic() < until:
        time.sleep(0.01)
    print(found)
    """
    assert run_python(program, str(tmp_path)) == "[True]\n"
