"""start, stop, flush, range, mark and step in the profiled process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from recording import (
    process_file,
    python,
    read_table,
    recorders,
    run_python,
    the_recorder,
    wait_recorded,
)

from haiprof.options import HOST_RECORDERS

START = """
    import haiprof, os, sys, threading, time
    session = haiprof.start(sys.argv[1], run="run", hooks=False)
"""


def test_ranges_marks_and_values_arrive_with_their_attributes(shm: Path, tmp_path: Path) -> None:
    program = (
        START
        + """
    with haiprof.range("load", shard=3):
        time.sleep(0.02)
    @haiprof.range("work")
    def work(n):
        "Doc."
        return n if n == 0 else work(n - 1)
    assert work(2) == 0 and work.__doc__ == "Doc."
    import asyncio
    @haiprof.range("later")
    async def later():
        await asyncio.sleep(0.01)
        return 5
    assert asyncio.run(later()) == 5
    try:
        with haiprof.range("failing"):
            raise ValueError
    except ValueError:
        pass
    haiprof.mark("epoch", epoch=2)
    haiprof.mark("loss", 0.25)
    haiprof.stop()
    """
    )
    run_python(program, str(tmp_path))
    wait_recorded(shm)
    folder = next(tmp_path.glob("run/*#0"))
    spans = read_table(folder, "spans").to_pylist()
    assert Counter(s["name"] for s in spans) == {
        "load": 1, "work": 3, "later": 1, "failing": 1
    }  # fmt: skip
    assert {s["category"] for s in spans} == {"user"}
    load = next(s for s in spans if s["name"] == "load")
    assert json.loads(load["attributes"]) == {"shard": 3}
    assert 20_000_000 <= load["duration"] < 10_000_000_000
    marks = [e for e in read_table(folder, "events").to_pylist() if e["kind"] == "mark"]
    assert [(m["text"], json.loads(m["attributes"])) for m in marks] == [("epoch", {"epoch": 2})]
    losses = [s for s in read_table(folder, "samples").to_pylist() if s["metric"] == "loss"]
    assert [s["value"] for s in losses] == [0.25]


def test_times_agree_with_the_wall_clock(shm: Path, tmp_path: Path) -> None:
    program = (
        START
        + """
    for _ in range(20):
        before = time.time_ns()
        with haiprof.range("x"):
            time.sleep(0.05)
        print(before, time.time_ns())
    haiprof.stop()
    """
    )
    lines = run_python(program, str(tmp_path)).splitlines()
    wait_recorded(shm)
    spans = read_table(next(tmp_path.glob("run/*#0")), "spans").to_pylist()
    assert len(spans) == 20
    for line, span in zip(lines, spans, strict=True):
        before, after = (int(t) for t in line.split())
        # 50 us: what a preempted reading of the clocks may cost on a busy machine.
        assert before - 50_000 <= span["start"]
        assert span["start"] + span["duration"] <= after + 50_000


def test_start_is_idempotent_and_stop_and_start_again_makes_a_new_folder(
    shm: Path, tmp_path: Path
) -> None:
    program = (
        START
        + """
    assert haiprof.start() is session and session.recording
    with haiprof.range("first"):
        pass
    haiprof.stop(); haiprof.stop()
    assert not session.recording
    with haiprof.range("between"):
        pass
    again = haiprof.start(sys.argv[1], run="run", hooks=False)
    assert again is not session and again.recording
    with haiprof.range("second"):
        pass
    haiprof.stop()
    """
    )
    run_python(program, str(tmp_path))
    wait_recorded(shm)
    names = Counter(
        name
        for folder in tmp_path.glob("run/*#0*")
        for name in read_table(folder, "spans")["name"].to_pylist()
    )
    assert names == {"first": 1, "second": 1}


def test_many_threads_start_and_record_at_once(shm: Path, tmp_path: Path) -> None:
    program = """
    import haiprof, sys, threading
    sessions = []
    def work():
        sessions.append(haiprof.start(sys.argv[1], run="run", hooks=False))
        for _ in range(1000):
            with haiprof.range("x"):
                pass
    threads = [threading.Thread(target=work) for _ in range(8)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert len(set(map(id, sessions))) == 1
    haiprof.stop()
    """
    run_python(program, str(tmp_path))
    wait_recorded(shm)
    folder = next(tmp_path.glob("run/*#0"))
    spans = read_table(folder, "spans")
    assert spans.num_rows + process_file(folder)["lost"]["records"] == 8000
    assert len(set(spans["thread"].to_pylist())) == 8


def test_flush_returns_files_that_hold_everything_so_far(shm: Path, tmp_path: Path) -> None:
    program = (
        START
        + """
    import pyarrow as pa
    def rows():
        count = 0
        for path in haiprof.flush():
            if path.name.startswith("spans") and path.suffix == ".arrows":
                for batch in pa.ipc.open_stream(path.read_bytes() + bytes(8)):
                    count += batch.num_rows
        return count
    assert rows() == 0
    for total in (10, 25, 70):
        with_more = total - rows()
        for _ in range(with_more):
            with haiprof.range("x"):
                pass
        assert rows() == total, total
    haiprof.stop()
    """
    )
    run_python(program, str(tmp_path))
    wait_recorded(shm)
    assert read_table(next(tmp_path.glob("run/*#0")), "spans").num_rows == 70


def test_the_end_of_the_job_needs_no_goodbye(shm: Path, tmp_path: Path) -> None:
    endings = {
        "return": "pass",
        "sys.exit": "sys.exit(0)",
        "os._exit": "os._exit(0)",
        "exception": "sys.stderr = open(os.devnull, 'w'); raise SystemExit",
        "sigterm": "import signal; os.kill(os.getpid(), signal.SIGTERM)",
    }
    for name, ending in endings.items():
        logs = tmp_path / name
        program = (
            START
            + f"""
    with haiprof.range("x"):
        pass
    {ending}
    """
        )
        python(program, str(logs)).communicate(timeout=60)
        wait_recorded(shm)
        assert read_table(next(logs.glob("run/*#0")), "spans")["name"].to_pylist() == ["x"], name


def test_an_exception_that_a_framework_has_caught_ends_a_process_that_is_killed(
    shm: Path, tmp_path: Path
) -> None:
    program = (
        START
        + """
    import signal
    from haiprof.capture.session import end_with
    with haiprof.range("x"):
        pass
    try:
        raise ValueError("planted")
    except ValueError as error:
        end_with(error)
        end_with(error)
    os.kill(os.getpid(), signal.SIGKILL)
    """
    )
    python(program, str(tmp_path)).communicate(timeout=60)
    wait_recorded(shm)
    (folder,) = tmp_path.glob("run/*#0")
    assert read_table(folder, "spans")["name"].to_pylist() == ["x"]
    raised = [e for e in read_table(folder, "events").to_pylist() if e["kind"] == "exception"]
    assert [each["text"] for each in raised] == ["ValueError: planted"]
    ended = process_file(folder)["ended"]
    assert (ended["kind"], ended["reason"]) == ("failed", "exception")
    assert ended["text"].startswith("ValueError: planted (<string>:")


def test_without_a_recording_such_an_exception_is_nobodys(shm: Path) -> None:
    run_python("from haiprof.capture.session import end_with; end_with(ValueError())")
    assert not list(shm.iterdir())


def test_a_job_of_slurm_ends_with_its_files_closed(
    shm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SLURM kills what a step leaves in its control group: what is there at its end is all."""
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    program = """
        import haiprof, sys
        from haiprof.capture.session import recording
        recording._STOP_SECONDS = 60  # a busy machine takes its time to start the recorder
        haiprof.start(sys.argv[1], run="run", hooks=False)
        haiprof.mark("here")
    """
    run_python(program, str(tmp_path))
    (folder,) = tmp_path.glob("run/*#0")
    assert process_file(folder)["state"] == "closed"


def test_one_that_begins_while_python_ends_is_recorded_and_says_nothing(
    shm: Path, tmp_path: Path
) -> None:
    """Python from 3.12 on makes no thread then: nobody can ask it any more."""
    program = """
    import atexit, haiprof, sys
    def begin():
        haiprof.start(sys.argv[1], run="run", hooks=False, time=30)
        with haiprof.range("x"):
            pass
    atexit.register(begin)
    """
    process = python(program, str(tmp_path))
    assert process.communicate(timeout=60) == ("", "")
    wait_recorded(shm)
    assert read_table(next(tmp_path.glob("run/*#0")), "spans")["name"].to_pylist() == ["x"]


def test_one_that_would_begin_after_python_has_ended_is_refused_in_one_line(
    shm: Path, tmp_path: Path
) -> None:
    program = """
        import sys
        class Last:
            def __del__(self):
                import haiprof
                session = haiprof.start(sys.argv[1], run="run")
                with haiprof.range("late"):
                    print(session.recording, session.files())
                haiprof.stop()
        last = Last()
        last.itself = last
        del last
    """
    done = python(program, str(tmp_path))
    out, err = done.communicate(timeout=60)
    assert (done.returncode, out) == (0, "False []\n")
    assert err == "haiprof: not recording: this process is already exiting\n"


def test_a_recorder_that_has_written_all_and_left_is_not_missed(shm: Path, tmp_path: Path) -> None:
    """It may have gone, with its folder, right after somebody looked whether it is there."""
    program = """
    import haiprof, shutil, sys
    from haiprof.capture.session import ring
    started = haiprof.start(sys.argv[1], run="run", hooks=False)
    haiprof.flush()
    def start_recorder(rings, *_):
        shutil.rmtree(rings)
        open(rings / "recorder.log")
    ring.recorder_running = lambda _: False
    ring.start_recorder = start_recorder
    started._ring._recorder_started = 0.0
    {stop}
    """
    process = python(program.format(stop="haiprof.stop()"), str(tmp_path / "1"))
    assert process.communicate(timeout=60)[1] == ""
    # While it records, that is a loss.
    process = python(program.format(stop="started.ensure_recorder()"), str(tmp_path / "2"))
    assert "no recorder could be started" in process.communicate(timeout=60)[1]


def test_bad_options_are_one_line_each_and_the_job_records_with_defaults(
    shm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HAIPROF_DRAIN_HZ", "often")
    program = """
    import haiprof, sys
    session = haiprof.start(sys.argv[1], sample_hz=-3, ring_mib="big", hooks=False)
    haiprof.stop()
    print(session.options.sample_hz, session.options.ring_mib, session.options.drain_hz)
    """
    process = python(program, str(tmp_path))
    out, err = process.communicate(timeout=60)
    assert out == "1.0 16 4.0\n"
    lines = err.splitlines()
    assert len(lines) == 3
    for line, field in zip(sorted(lines), ("HAIPROF_DRAIN_HZ='often'", "ring_mib='big'",
                                           "sample_hz=-3"), strict=True):  # fmt: skip
        assert line.startswith(f"haiprof: {field}")
        assert "default" in line
    wait_recorded(shm)


def test_the_environment_starts_it_without_a_change_to_the_code(
    shm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HAIPROF_ENABLED", "1")
    monkeypatch.setenv("HAIPROF_LOG_DIR", str(tmp_path))
    monkeypatch.setenv("HAIPROF_RUN", "by-environment")
    quiet = run_python("import sys; print('haiprof._core' in sys.modules)")
    assert not recorders(shm)  # nothing was recorded, so nothing was started
    assert quiet == "True\n"
    run_python("import haiprof\nwith haiprof.range('x'): pass\n")
    wait_recorded(shm)
    folder = next(tmp_path.glob("by-environment/*#0"))
    assert read_table(folder, "spans")["name"].to_pylist() == ["x"]


def test_an_interpreter_without_haiprof_enabled_imports_nothing_of_it(shm: Path) -> None:
    printed = run_python(
        "import sys; print([m for m in sys.modules if 'haiprof' in m and 'editable' not in m])"
    )
    assert printed == "[]\n"


def test_importing_haiprof_pulls_in_nothing_heavy(shm: Path) -> None:
    heavy = "torch pyarrow polars plotly numpy pandas typer rich".split()  # noqa: SIM905
    printed = run_python(
        "import sys, haiprof\nhaiprof.start, haiprof.range, haiprof.mark\n"
        f"print([m for m in {heavy!r} if m in sys.modules])"
    )
    assert printed == "[]\n"


def test_ranks_of_one_launcher_make_up_the_same_run(shm: Path, tmp_path: Path) -> None:
    program = """
    import haiprof, sys
    haiprof.start(sys.argv[1], hooks=False)
    with haiprof.range("x"):
        pass
    haiprof.stop()
    """
    processes = [
        python(program, str(tmp_path),
               env={**os.environ, "RANK": str(r), "LOCAL_RANK": str(r), "WORLD_SIZE": "2"})
        for r in (0, 1)
    ]  # fmt: skip
    for process in processes:
        assert process.wait(60) == 0
    wait_recorded(shm)
    (run,) = tmp_path.iterdir()
    ranks = sorted(p.name.partition("#")[2] for p in run.glob("*#*"))
    assert ranks == ["0", "1"]
    assert process_file(next(run.glob("*#1")))["world_size"] == 2


def test_a_python_without_its_own_path_says_so_once(shm: Path, tmp_path: Path) -> None:
    program = """
    import sys
    logs = sys.argv[1]
    sys.executable = None
    import haiprof
    haiprof.start(logs, hooks=False)
    with haiprof.range("x"):
        pass
    print("ran on")
    """
    process = python(program, str(tmp_path))
    out, err = process.communicate(timeout=60)
    assert out == "ran on\n"
    assert err.count("\n") == 1
    assert "recover" in err


@pytest.mark.skipif(sys.version_info < (3, 12), reason="needs sub-interpreters with an own GIL")
def test_a_subinterpreter_gets_a_clear_refusal_and_the_main_one_records_on(
    shm: Path, tmp_path: Path
) -> None:
    program = (
        START
        + """
    try:
        import _interpreters as subinterpreters
    except ImportError:
        import _xxsubinterpreters as subinterpreters
    other = subinterpreters.create()
    try:
        failed = subinterpreters.run_string(other, "import haiprof._core")
        print(failed.msg if failed is not None else "imported")
    except Exception as error:
        print(error)
    with haiprof.range("main"):
        pass
    haiprof.stop()
    """
    )
    printed = run_python(program, str(tmp_path))
    assert "does not support loading in subinterpreters" in printed
    wait_recorded(shm)
    spans = read_table(next(tmp_path.glob("run/*#0")), "spans")
    assert spans["name"].to_pylist() == ["main"]


def test_what_start_cannot_use_is_one_line_and_never_an_error(shm: Path, tmp_path: Path) -> None:
    program = """
    import haiprof, os, pathlib, sys
    file = pathlib.Path(sys.argv[1]) / "file"
    file.touch()
    assert not haiprof.start(file / "logs").recording
    haiprof.stop()
    class Folder:
        def __fspath__(self):
            return sys.argv[1]
    session = haiprof.start(Folder(), run="run", ring_mib=32.0, hooks=False)
    assert session.recording and session.options.ring_mib == 16
    circular = {}
    circular["itself"] = circular
    with haiprof.range(5, a=circular):
        pass
    haiprof.start(log_dir="elsewhere")
    haiprof.stop()
    """
    job = python(program, str(tmp_path))
    _, err = job.communicate(timeout=60)
    assert job.returncode == 0, err
    lines = err.splitlines()
    assert len(lines) == 3, err
    assert "file/logs: Not a directory" in lines[0]
    assert "ring_mib=32.0 must be a whole number" in lines[1]
    assert "start(log_dir='elsewhere') ignored: already recording" in lines[2]
    wait_recorded(shm)
    spans = read_table(next(tmp_path.glob("run/*#0")), "spans")
    assert spans["name"].to_pylist() == ["5"]


@pytest.mark.parametrize("off", ["0", "false", "No", " off "])
def test_what_says_no_in_the_environment_means_no(
    off: str, shm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HAIPROF_ENABLED", off)
    assert run_python("import sys; print('haiprof.capture.session' in sys.modules)") == "False\n"
    import _haiprof_boot

    _haiprof_boot.arm()
    assert not hasattr(sys, "_haiprof_armed")


def test_each_recorder_of_the_host_takes_an_interval_of_its_own(shm: Path, tmp_path: Path) -> None:
    wanted = {f"{name}_interval": 2.0 + n for n, name in enumerate(HOST_RECORDERS)}
    program = """
    import haiprof, json, sys
    haiprof.start(sys.argv[1], run="run", hooks=False, **json.loads(sys.argv[2]))
    haiprof.stop()
    """
    run_python(program, str(tmp_path), json.dumps(wanted))
    wait_recorded(shm)
    used = json.loads((tmp_path / "run/run.json").read_text())["options"]
    assert {name: used[name] for name in wanted} == wanted


def test_what_another_thread_is_importing_just_then_is_not_asked(shm: Path, tmp_path: Path) -> None:
    program = """
    import builtins, sys, threading
    import haiprof
    begun, done = threading.Event(), threading.Event()
    as_ever = builtins.__import__
    def slow(name, *others, **named):
        if name == "haiprof.capture.hooks.pauses":
            begun.set()
            done.wait(30)
        return as_ever(name, *others, **named)
    builtins.__import__ = slow
    other = threading.Thread(target=lambda: __import__("haiprof.capture.hooks"))
    other.start()
    begun.wait()
    session = haiprof.start(sys.argv[1], run="run", hooks=False, kernels="off")
    print(session.recording, hasattr(sys.modules["haiprof.capture.hooks"], "install"))
    haiprof.stop()
    done.set()
    other.join()
    """
    assert run_python(program, str(tmp_path)) == "True False\n"
    wait_recorded(shm)


LETS_READ = """
    import os, sys, time
    from haiprof import _core
    asked = []
    _core.reading_is_restricted = lambda: True  # as Yama does it
    _core.let_read = asked.append
    import haiprof
    haiprof.start(sys.argv[1], run="r")
    until = time.monotonic() + 30
    while not asked and time.monotonic() < until:
        time.sleep(0.02)
    print(*asked, flush=True)
    sys.stdin.read()
    haiprof.stop()
    print(*asked)
"""


def test_all_ranks_of_a_node_let_the_recorder_that_stays_read_them_until_they_stop(
    shm: Path, tmp_path: Path
) -> None:
    ranks = [
        python(
            LETS_READ, str(tmp_path), stdin=subprocess.PIPE, env={**os.environ, "RANK": str(rank)}
        )
        for rank in range(3)
    ]
    allowed = []
    for rank in ranks:
        assert rank.stdout is not None
        allowed.append(int(rank.stdout.readline()))
    recorder = the_recorder(shm)
    assert allowed == [recorder] * 3
    for rank in ranks:
        printed, _ = rank.communicate("", timeout=60)
        assert rank.returncode == 0
        *before, last = map(int, printed.split())
        assert set(before) == {recorder}
        assert last == 0
    wait_recorded(shm)


def test_the_right_to_be_read_needs_no_yama_and_survives_a_fork() -> None:
    printed = run_python("""
        import os
        from haiprof import _core
        _core.let_read(os.getppid())
        if (child := os.fork()) == 0:
            os._exit(0)
        print(_core.reading_is_restricted(), os.waitpid(child, 0)[1])
        _core.let_read(0)
    """)
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    restricted = scope.exists() and scope.read_text().strip() == "1"
    assert printed == f"{restricted} 0\n"
