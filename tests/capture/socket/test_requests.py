"""What a training job does when it is asked, and that it is afterwards as it was before."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from control_jobs import STEPS, TRAINS, Job, job
from recording import process_file, read_table, run_python, wait_for, wait_recorded

from haiprof import schema
from haiprof.control.client import ControlError

#: What an instrumented process differs in from one that is not.
TRACES = """
    def traces():
        import gc, sys, torch
        from torch.autograd import Variable
        from torch.optim import Optimizer
        from torch.optim.optimizer import _global_optimizer_post_hooks
        from torch.utils.data import dataloader
        from haiprof.capture.hooks import status
        inner = [c for c in Optimizer.profile_hook_step.__code__.co_consts if hasattr(c, "co_code")]
        return (
            torch.nn.Module.__call__.__code__, torch.optim.SGD.step.__code__, inner,
            torch.autograd.backward.__code__, type(Variable._execution_engine),
            dataloader._BaseDataLoaderIter.__next__, dataloader.DataLoader.__iter__,
            torch.cuda._lazy_init, list(gc.callbacks), list(sys.meta_path),
            [sys.monitoring.get_tool(n) for n in range(6)] if hasattr(sys, "monitoring") else None,
            len(_global_optimizer_post_hooks),
        )
"""


def _refused(running: Job, request: str, **arguments: Any) -> str:
    with pytest.raises(ControlError) as refusal:
        running.ask(request, **arguments)
    assert refusal.value.reason == "refused"
    assert "\n" not in str(refusal.value)
    return str(refusal.value)


def _spans(folder: Path) -> int:
    return read_table(folder, "spans").num_rows


def _flushed(running: Job) -> Path:
    flushed = running.ask("flush", timeout=90, seconds=60)
    assert flushed["files"] >= 1
    return Path(flushed["folder"])


def test_status_says_who_it_is_and_what_is_recorded(shm: Path, tmp_path: Path) -> None:
    with job(TRAINS, tmp_path, "logs", warm=True) as running:
        status = wait_for(lambda: (s := running.ask("status"))["folder"] and s)
        assert status["state"] == "recording"
        assert (status["run"], status["rank"], status["pid"]) == ("r", 0, running.pid)
        assert status["run_dir"] == str(tmp_path / "logs" / "r")
        assert process_file(Path(status["folder"]))["pid"] == running.pid
        assert abs(status["since_ns"] - time.time_ns()) < 60e9
        assert status["options"]["sample_hz"] == 1.0
        assert status["options"]["log_dir"] == "logs"
        assert status["ends_in"] is None
        assert status["lost"] == 0
        assert status["trace"] is None
        assert Path(f"/proc/{status['recorder']}/cmdline").read_bytes().count(b"haiprof.recorder")
        later = wait_for(lambda: (s := running.ask("status"))["step"] > status["step"] and s)
        assert later["step"] > status["step"]
    assert running.stderr == ""


def test_flush_brings_to_disk_what_was_recorded(shm: Path, tmp_path: Path) -> None:
    with job(TRAINS, tmp_path, "logs", warm=True) as running:
        before, step = _spans(_flushed(running)), running.ask("status")["step"]
        assert before >= 3
        wait_for(lambda: running.ask("status")["step"] > step + 3)
        assert _spans(_flushed(running)) > before
        assert "seconds" in _refused(running, "flush", seconds=-1)
        assert "no argument" in _refused(running, "flush", what=1)
        assert "not recorded in windows here" in _refused(running, "kernels")
    assert running.stderr == ""


def test_stop_ends_it_at_once_and_start_begins_again(shm: Path, tmp_path: Path) -> None:
    with job(TRAINS, tmp_path, "logs", warm=True) as running:
        _flushed(running)
        stopped = running.ask("stop")
        assert stopped["stopped"] is True
        assert stopped["closed"] is True
        (folder,) = (tmp_path / "logs" / "r").glob("*#0")
        assert process_file(folder)["state"] == "closed"
        ended = _spans(folder)
        assert running.ask("status")["state"] == "idle"
        assert running.ask("stop") == {"stopped": False, "state": "idle", "pid": running.pid}
        assert "nothing is recorded" in _refused(running, "flush")
        assert "nothing is recorded" in _refused(running, "trace")
        assert "nothing is recorded" in _refused(running, "kernels")
        assert "nothing is recorded" in _refused(running, "set", time=3)
        time.sleep(0.2)
        assert _spans(folder) == ended

        answer = running.ask("start", log_dir=str(tmp_path / "logs"), run="second")
        assert answer["began"] is True
        assert answer["state"] == "recording"
        wait_for(lambda: _spans(_flushed(running)) > 10)
        running.ask("stop")
    assert running.stderr == ""
    wait_recorded(shm)


def test_a_process_that_never_recorded_is_as_it_was_after_the_stop(
    shm: Path, tmp_path: Path
) -> None:
    out = run_python(
        """
        import os, sys, threading, time
        import torch, torch.utils.data.dataloader
        import haiprof.capture.hooks
        from haiprof.capture.session import recording
        """
        + TRACES.replace("\n", "\n    ")
        + """
        import functools
        from haiprof.control import client
        from haiprof.common.places import control_socket
        ask = functools.partial(client.ask, timeout=60)
        recording._open_control_socket()
        model = torch.nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        def train(n):
            for _ in range(n):
                optimizer.zero_grad(); model(torch.ones(2, 4)).sum().backward(); optimizer.step()
        train(3)
        import torch.profiler
        before = traces()
        threads = threading.active_count()
        def during():
            path = control_socket()
            try:
                ask(path, "start", {"log_dir": sys.argv[1], "run": "r", "time": 600})
                changed.append(traces() != before)
                ask(path, "trace", {"steps": 1})
                while ask(path, "status")["trace"]["state"] not in ("done", "off"):
                    time.sleep(0.01)
                ask(path, "flush")
                ask(path, "stop")
            finally:
                over.append(1)
        changed, over = [], []
        asking = threading.Thread(target=during)
        asking.start()
        while not over:
            train(1)
        asking.join()
        until = time.monotonic() + 10
        while threading.active_count() > threads and time.monotonic() < until:
            time.sleep(0.01)
        after = traces()
        print(changed, [i for i, (a, b) in enumerate(zip(before, after)) if a != b])
        print(threading.active_count() - threads)
        print({s.partition(":")[0] for s in haiprof.capture.hooks.status().values()})
        """,
        str(tmp_path),
    )
    assert out.splitlines() == ["[True] []", "0", "{'off'}"]


@pytest.mark.jobs
def test_fifty_starts_and_stops_leave_nothing_behind(shm: Path, tmp_path: Path) -> None:
    logs = str(tmp_path / "logs")
    with job(TRAINS, tmp_path, "logs", warm=True) as running:
        running.ask("stop")

        def once() -> None:
            running.ask("start", log_dir=logs, run="again", time=3600)
            time.sleep(0.01)
            assert running.ask("stop")["stopped"] is True

        for _ in range(5):
            once()
        memory, threads = running.figure("VmRSS"), running.figure("Threads")
        descriptors = running.descriptors()
        for _ in range(50):
            once()
        wait_for(lambda: running.figure("Threads") <= threads, what="the end of every timer")
        wait_for(lambda: running.descriptors() <= descriptors, what="the end of every connection")
        assert abs(running.figure("VmRSS") - memory) < 2048
    assert running.stderr == ""
    wait_recorded(shm)
    states = [process_file(p.parent)["state"] for p in tmp_path.glob(f"logs/again/*#0*/{_FILE}")]
    assert len(states) == 55
    assert set(states) == {"closed"}


_FILE = schema.PROCESS_FILE


def test_stops_in_the_middle_of_a_step_leave_whole_steps(shm: Path, tmp_path: Path) -> None:
    # A step of some ms, so that nearly every stop comes in the middle of one.
    slow = "model[0].register_forward_hook(lambda *_: time.sleep(0.01))"
    logs = str(tmp_path / "logs")
    with job(TRAINS, tmp_path, "logs", warm=True, before=slow) as running:
        for n in range(10):
            time.sleep(0.03 + n * 0.0017)
            running.ask("stop")
            running.ask("start", log_dir=logs, run=f"part{n}")
        running.ask("stop")
        after = running.ask("status")
        assert after["state"] == "idle"
    assert running.stderr == ""
    wait_recorded(shm)
    for folder in tmp_path.glob("logs/part*/*#0"):
        rows = read_table(folder, "spans").to_pylist()
        for row in rows:
            assert row["duration"] >= 0
        names = {row["name"] for row in rows}
        assert not names - {"step", "forward", "backward", "optimizer", "dataloader", "idle"}


def test_start_can_wait_and_end_by_itself(shm: Path, tmp_path: Path) -> None:
    with job(TRAINS, tmp_path, "logs", warm=True) as running:
        running.ask("stop")
        logs = str(tmp_path / "logs")
        status = running.ask("start", log_dir=logs, run="later", warmup=3.0, time=5.0)
        assert status["state"] == "warming up"
        assert 0 < status["begins_in"] <= 3.0
        status = wait_for(lambda: (s := running.ask("status"))["state"] == "recording" and s)
        assert 0 < status["ends_in"] <= 5.0
        wait_for(lambda: running.ask("status")["state"] == "idle")
        status = running.ask("start", log_dir=logs, run="never", warmup=600)
        assert running.ask("stop")["stopped"] is True
        assert running.ask("status")["state"] == "idle"
    assert running.stderr == ""
    wait_recorded(shm)
    assert _spans(next((tmp_path / "logs" / "later").glob("*#0"))) > 3
    assert not (tmp_path / "logs" / "never").exists()


def test_start_of_what_is_recorded_says_so_and_moves_its_end(shm: Path, tmp_path: Path) -> None:
    with job(TRAINS, tmp_path, "logs", warm=True) as running:
        answer = running.ask("start", time=600, ring_mib=64, run="r")
        assert answer["began"] is False
        assert answer["ignored"] == ["ring_mib"]
        assert answer["run"] == "r"
        assert 590 < answer["ends_in"] <= 600
        assert running.ask("start", time=0)["ends_in"] is None
        assert running.ask("start", time=2)["ends_in"] <= 2
        wait_for(lambda: running.ask("status")["state"] == "idle")
    assert running.stderr == ""


def test_start_of_a_process_that_waits_for_its_first_record_begins_at_once(
    shm: Path, tmp_path: Path
) -> None:
    out = run_python(
        """
        import os, sys, time
        os.environ.update(HAIPROF_ENABLED="1", HAIPROF_WARMUP="3", HAIPROF_LOG_DIR=sys.argv[1])
        from haiprof.control.client import ask
        from haiprof.common.places import control_socket
        from haiprof.capture.session import arm
        arm()
        path = control_socket()
        states = [ask(path, "status")["state"]]
        while ask(path, "status")["state"] == "warming up":
            time.sleep(0.01)
        states.append(ask(path, "status")["state"])
        now = ask(path, "start", {"time": 3})
        states += [now["state"], now["began"], now["ignored"], 0 < now["ends_in"] <= 3]
        while ask(path, "status")["state"] == "recording":
            time.sleep(0.01)
        print(states)
        """,
        str(tmp_path),
    )
    assert out == "['warming up', 'armed', 'recording', True, [], True]\n"


def test_what_start_cannot_use_is_refused_with_the_reason(shm: Path, tmp_path: Path) -> None:
    with job(TRAINS, tmp_path, "logs", warm=True) as running:
        running.ask("stop")
        assert "sample_hz" in _refused(running, "start", sample_hz=1e9)
        assert "no argument nonsense" in _refused(running, "start", nonsense=1)
        (tmp_path / "file").touch()
        for _ in range(2):
            assert "file" in _refused(running, "start", log_dir=str(tmp_path / "file"))
        assert running.ask("status")["state"] == "idle"
        assert running.ask("start", log_dir=str(tmp_path / "logs"))["state"] == "recording"
    assert len(running.stderr.splitlines()) == 1  # the folder that could not be had


def test_trace_makes_a_deep_trace_of_the_thread_that_trains(shm: Path, tmp_path: Path) -> None:
    with job(TRAINS, tmp_path, "logs", warm=True) as running:
        assert "trace_steps" in _refused(running, "trace", steps=-1)
        answer = running.ask("trace", steps=2, warmup=1, **{"with": "shapes"})
        assert answer["began"] is True
        assert running.ask("trace", steps=2)["began"] in (True, False)
        answer = wait_for(lambda: (t := running.ask("status")["trace"])["state"] == "done" and t)
        assert Path(answer["file"]).stat().st_size > 1000
        assert Path(answer["file"]).name.endswith(".pt.trace.json.gz")
        # By the clock, where no step need end.
        running.ask("trace", seconds=0.2, **{"with": ""})
        wait_for(lambda: len(list(tmp_path.glob("logs/r/*#0/*.pt.trace.json.gz"))) >= 2)
        wait_for(lambda: running.ask("status")["trace"]["state"] == "done")
        # With the start of a recording that there is.
        assert running.ask("start", trace=True, trace_steps=1)["began"] is False
        wait_for(lambda: len(list(tmp_path.glob("logs/r/*#0/*.pt.trace.json.gz"))) >= 3)


def test_a_stop_ends_the_trace_that_is_being_made(shm: Path, tmp_path: Path) -> None:
    with job(TRAINS, tmp_path, "logs", warm=True) as running:
        running.ask("trace", seconds=600, **{"with": ""})
        wait_for(lambda: running.ask("status")["trace"]["state"] == "recording")
        assert running.ask("stop")["stopped"] is True
        status = running.ask("status")
        assert status["state"] == "idle"
        assert status["trace"]["state"] == "done"
        assert Path(status["trace"]["file"]).exists()


def test_set_changes_what_can_be_and_names_what_cannot(shm: Path, tmp_path: Path) -> None:
    with job(TRAINS, tmp_path, "logs", warm=True) as running:
        line = _refused(running, "set", ring_mib=64, time=5)
        assert "ring_mib cannot change" in line
        assert running.ask("status")["ends_in"] is None  # all or nothing
        assert running.ask("set", kernels="off", budget=0.1)["changed"] == {
            "kernels": "off",
            "budget": 0.1,
        }
        running.ask("set", time=500)
        status = running.ask("status")
        assert status["options"]["kernels"] == "off"
        assert status["options"]["budget"] == 0.1
        assert 490 < status["ends_in"] <= 500
        assert "kernels" in _refused(running, "set", kernels="some")
    assert running.stderr == ""


def test_a_lock_that_the_program_holds_is_not_waited_for(shm: Path, tmp_path: Path) -> None:
    # The main thread sleeps for long in a call that gives the interpreter free, as read() does.
    os.mkfifo(tmp_path / "HELD")
    with job(STEPS, tmp_path, "logs", each="if steps == 3: open('HELD').read()") as running:
        assert running.ask("stop")["stopped"] is True
        assert running.ask("start", log_dir=str(tmp_path / "logs"), run="b")["began"] is True
        (tmp_path / "HELD").write_text("")  # until now it was held
    assert running.stderr == ""


def test_two_who_start_and_stop_at_once_do_not_disturb_each_other(
    shm: Path, tmp_path: Path
) -> None:
    logs = str(tmp_path / "logs")
    with job(TRAINS, tmp_path, "logs", warm=True) as running:
        failed: list[BaseException] = []

        def play(run: str) -> None:
            try:
                for _ in range(5):
                    running.ask("start", log_dir=logs, run=run)
                    running.ask("status")
                    running.ask("stop")
            except BaseException as error:
                failed.append(error)

        playing = [threading.Thread(target=play, args=(name,)) for name in ("a", "b")]
        for thread in playing:
            thread.start()
        for thread in playing:
            thread.join()
        assert failed == []
        assert running.ask("status")["state"] == "idle"
    assert running.stderr == ""
    wait_recorded(shm)
    for file in tmp_path.glob(f"logs/[ab]/*#0*/{_FILE}"):
        assert json.loads(file.read_text())["lost"]["records"] == 0


def test_set_changes_how_often_the_node_is_sampled(shm: Path, tmp_path: Path) -> None:
    def sampled(rows: list[dict[str, Any]], metric: str) -> list[int]:
        return sorted({row["time"] for row in rows if row["metric"] == metric})

    def rows(table: str, *, rank: bool = False) -> list[dict[str, Any]]:
        folders = (p for p in (tmp_path / "logs" / "r").glob("*") if p.is_dir())
        found = (p for p in folders if ("#" in p.name) == rank)
        return [row for folder in found for row in read_table(folder, table).to_pylist()]

    def busy() -> list[int]:
        return sampled(rows("samples"), "cpu.util.percent")

    def watched() -> list[int]:
        return sampled(rows("samples", rank=True), "proc.rss.bytes")

    def paces() -> int:
        return sum("another pace" in row["text"] for row in rows("events"))

    def gap(times: list[int]) -> float:
        return (times[-1] - times[0]) / (len(times) - 1)

    with job(TRAINS, tmp_path, "logs", warm=True) as running:
        wait_for(lambda: len(busy()) >= 4)
        moved = time.time_ns()
        running.ask("set", sample_hz=10.0, io_interval=0.5, drain_hz=8.0)
        wait_for(lambda: paces() == 1)
        wait_for(lambda: len([t for t in busy() if t >= moved]) >= 12)
        # The rank is still watched, too.
        wait_for(lambda: len([t for t in watched() if t >= moved]) >= 8)
        running.ask("set", sample_hz=0.01)
        wait_for(lambda: paces() == 2)
        quiet = time.time_ns()
        time.sleep(1.5)
        options = running.ask("status")["options"]
        assert (options["sample_hz"], options["io_interval"], options["drain_hz"]) == (
            0.01,
            0.5,
            8.0,
        )
        running.ask("flush")
    assert running.stderr == ""
    wait_recorded(shm)
    times = busy()
    # One that comes late makes gaps that are shorter or longer than they should be.
    assert gap([t for t in times if t < moved]) > 0.66e9
    assert gap([t for t in times if moved <= t < quiet]) < 0.8e9
    assert [t for t in times if t >= quiet] == []
    texts = [row["text"] for row in rows("events")]
    (first, _) = (text for text in texts if "another pace" in text)
    assert "basic every 0.1 s" in first
    assert "io every 0.5 s" in first
    assert list(shm.glob("*/*")) == []
