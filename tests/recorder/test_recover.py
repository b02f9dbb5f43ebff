"""What dead recorders leave: rings in shared memory, open files in run folders."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from commands import haiprof, only_line
from recording import (
    process_file,
    python,
    read_table,
    recorders,
    run_python,
    wait_for,
    wait_recorded,
)
from runs import make_run, span, write_live, write_node, write_process, write_run

from haiprof import schema
from haiprof.recorder import recover

HOST = os.uname().nodename
SPANS = 1000
#: Records on command, so that its recorder can be killed before.
JOB = f"""
    import haiprof, sys
    session = haiprof.start(sys.argv[1], run="run", hooks=False)
    print("started", flush=True)
    sys.stdin.readline()
    for _ in range({SPANS}):
        with haiprof.range("work"):
            pass
    print("recorded", flush=True)
    sys.stdin.readline()
    haiprof.stop()
"""


def start_job(tmp_path: Path, shm: Path) -> subprocess.Popen[str]:
    """Start the job and kill its recorder; return when all of its records are in the ring."""
    job = python(JOB, str(tmp_path), stdin=subprocess.PIPE)
    assert job.stdin is not None
    assert job.stdout is not None
    assert job.stdout.readline() == "started\n"
    wait_for(lambda: list((tmp_path / "run").glob("*#0/process.json")), what="the recorder's start")
    for pid in recorders(shm):
        os.kill(pid, signal.SIGKILL)
    wait_recorded(shm)
    let_record(job)
    assert job.stdout.readline() == "recorded\n"
    return job


def let_record(job: subprocess.Popen[str]) -> None:
    assert job.stdin is not None
    job.stdin.write("\n")
    job.stdin.flush()


def spans(run: Path) -> int:
    (folder,) = run.glob("*#0")
    return read_table(folder, "spans")["name"].to_pylist().count("work")


# -- rings ---------------------------------------------------------------------------------------


def test_after_the_death_of_recorder_and_job_nothing_is_lost(tmp_path: Path, shm: Path) -> None:
    job = start_job(tmp_path, shm)
    job.kill()
    job.communicate()
    done = haiprof("recover")
    assert (done.returncode, done.stderr) == (0, "")
    found = re.fullmatch(r"run: (\d+) records written, 0 lost.*", done.stdout.strip())
    assert found is not None, done.stdout
    assert int(found[1]) >= SPANS
    run = tmp_path / "run"
    assert spans(run) == SPANS
    (folder,) = run.glob("*#0")
    assert process_file(folder)["state"] == "died"
    assert process_file(run / folder.name.partition("#")[0])["state"] == "died"
    assert not list(run.glob("*/*.arrows"))
    assert not list(shm.glob("*/*"))


def test_recovering_again_finds_nothing(tmp_path: Path, shm: Path) -> None:
    job = start_job(tmp_path, shm)
    job.kill()
    job.communicate()
    haiprof("recover")
    done = haiprof("recover")
    assert done.returncode == 0
    assert done.stdout.startswith("nothing to recover")
    assert spans(tmp_path / "run") == SPANS


def test_a_job_that_still_runs_gets_a_new_recorder(tmp_path: Path, shm: Path) -> None:
    job = start_job(tmp_path, shm)
    done = haiprof("recover")
    assert done.returncode == 0
    assert "a new recorder took over" in done.stdout
    wait_for(lambda: recorders(shm), what="the new recorder")
    let_record(job)
    assert job.wait(60) == 0
    wait_recorded(shm)
    assert spans(tmp_path / "run") == SPANS
    (folder,) = (tmp_path / "run").glob("*#0")
    assert process_file(folder)["state"] == "closed"


def test_a_run_whose_recorder_lives_is_left_alone(tmp_path: Path, shm: Path) -> None:
    job = python(JOB, str(tmp_path), stdin=subprocess.PIPE)
    assert job.stdout is not None
    assert job.stdout.readline() == "started\n"
    wait_for(lambda: list((tmp_path / "run").glob("*#0/process.json")), what="the recorder's start")
    recorder = recorders(shm)
    done = haiprof("recover", tmp_path / "run")
    assert done.returncode == 0
    assert done.stdout == f"run: is being recorded; left alone ({tmp_path}/run)\n"
    assert recorders(shm) == recorder
    (folder,) = (tmp_path / "run").glob("*#0")
    assert process_file(folder)["state"] == "live"
    let_record(job)
    let_record(job)
    assert job.wait(60) == 0
    assert spans(tmp_path / "run") == SPANS


def test_records_wait_in_memory_while_their_folder_cannot_be_made(
    tmp_path: Path, shm: Path
) -> None:
    job = start_job(tmp_path, shm)
    job.kill()
    job.communicate()
    run, aside = tmp_path / "run", tmp_path / "aside"
    run.rename(aside)
    run.write_text("in the way")
    done = haiprof("recover")
    assert done.returncode == 1
    assert str(run) in done.stdout
    assert len(list(shm.glob("*/run~*/*.ring"))) == 1
    run.unlink()
    aside.rename(run)
    assert haiprof("recover").returncode == 0
    assert spans(run) == SPANS


@pytest.mark.parametrize("content", [b"", b"no ring", b"HAIRING1" + bytes(8192)])
def test_a_file_that_is_not_a_ring_is_reported_and_kept(
    tmp_path: Path, shm: Path, content: bytes
) -> None:
    folder = shm / f"haiprof-{os.getuid()}" / "run"
    folder.mkdir(parents=True, mode=0o700)
    ring = folder / "1.ring"
    ring.write_bytes(content)
    done = haiprof("recover")
    assert done.stderr == ""
    assert done.stdout.startswith("run: ")
    assert ring.exists()


def test_a_ring_that_was_never_finished_goes_after_a_while(shm: Path) -> None:
    folder = shm / f"haiprof-{os.getuid()}" / "run"
    folder.mkdir(parents=True, mode=0o700)
    ring = folder / "1.ring"
    ring.write_bytes(bytes(8192))
    os.utime(ring, (time.time() - 3600,) * 2)
    done = haiprof("recover")
    assert "1.ring was never finished and is removed" in done.stdout
    assert not ring.exists()


# -- folders -------------------------------------------------------------------------------------


def left_open(run: Path, **changes: object) -> Path:
    """Make a run whose recorder died; return the folder of its rank."""
    write_run(run)
    fields: dict[str, object] = {"state": "live", "ended_ns": None, "pid": 4194304, "start_time": 1}
    folder = write_process(run, node=HOST, **{**fields, **changes})
    write_live(folder, schema.SPANS, [[span(i, 1, "phase", "forward", i)] for i in range(5)])
    return folder


def test_open_files_of_a_dead_run_are_closed(tmp_path: Path, shm: Path) -> None:
    folder = left_open(tmp_path / "run")
    node = write_node(tmp_path / "run", node=HOST, state="live", ended_ns=None)
    done = haiprof("recover", tmp_path / "run")
    assert (done.returncode, done.stderr) == (0, "")
    assert "1 file closed" in done.stdout
    assert not list(folder.glob("*.arrows"))
    assert read_table(folder, "spans").num_rows == 5
    for process in (folder, node):
        document = process_file(process)
        assert document["state"] == "died"
        assert abs(document["ended_ns"] / 1e9 - time.time()) < 60
    assert process_file(folder)["pid"] == 4194304


def test_a_file_cut_within_a_batch_keeps_its_whole_batches(tmp_path: Path, shm: Path) -> None:
    folder = left_open(tmp_path / "run")
    (live,) = folder.glob("*.arrows")
    os.truncate(live, live.stat().st_size - 40)
    assert haiprof("recover", tmp_path / "run").returncode == 0
    assert read_table(folder, "spans").num_rows >= 4


def test_a_file_that_cannot_be_read_is_kept_aside(tmp_path: Path, shm: Path) -> None:
    folder = left_open(tmp_path / "run")
    (live,) = folder.glob("*.arrows")
    content = b"\xff" * 64 + live.read_bytes()[64:]
    live.write_bytes(content)
    (folder / "events-0.arrows").write_bytes(b"")
    assert haiprof("recover", tmp_path / "run").returncode == 0
    assert live.with_suffix(".damaged").read_bytes() == content
    assert not list(folder.glob("*.arrows"))


def test_a_ring_that_is_gone_between_two_looks_costs_nothing(
    tmp_path: Path, shm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process writes its last record, and its recorder takes it away, just then."""
    write_run(tmp_path / "run")
    rings = shm / f"haiprof-{os.getuid()}" / "run~00000000"
    rings.mkdir(parents=True, mode=0o700)
    run_python(
        """
        import os, sys
        from haiprof import _core
        _core.open_ring(sys.argv[1], bytes=_core.MIN_RING_BYTES, run="run", run_dir=sys.argv[2])
        os._exit(0)
        """,
        str(rings / "1.ring"),
        str(tmp_path / "run"),
    )

    def takes_away(pid: int, started: int) -> bool:
        (rings / "1.ring").unlink()
        return True

    monkeypatch.setattr(recover, "process_is_alive", takes_away)
    monkeypatch.setattr(recover, "start_recorder", lambda *_: 1)
    assert not recover.recover_ring_dir(rings).failed


def test_every_run_of_a_log_directory_is_looked_at(tmp_path: Path, shm: Path) -> None:
    left_open(tmp_path / "a")
    left_open(tmp_path / "b")
    make_run(tmp_path / "whole")
    done = haiprof("recover", tmp_path)
    assert [line.partition(":")[0] for line in done.stdout.splitlines()] == ["a", "b", "whole"]
    assert "whole: nothing was left to do" in done.stdout
    assert not list(tmp_path.glob("*/*/*.arrows"))


def test_a_process_that_still_runs_is_left_alone(tmp_path: Path, shm: Path) -> None:
    start_time = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    folder = left_open(tmp_path / "run", pid=os.getpid(), start_time=start_time)
    done = haiprof("recover", tmp_path / "run")
    assert f"process {os.getpid()} of it still runs" in done.stdout
    assert process_file(folder)["state"] == "live"
    assert list(folder.glob("*.arrows"))


def test_what_another_machine_writes_to_is_left_alone(tmp_path: Path, shm: Path) -> None:
    folder = left_open(tmp_path / "run", host="elsewhere")
    done = haiprof("recover", tmp_path / "run")
    assert "elsewhere wrote to" in done.stdout
    assert process_file(folder)["state"] == "live"
    for file in folder.iterdir():
        os.utime(file, (time.time() - 7200,) * 2)
    assert haiprof("recover", tmp_path / "run").returncode == 0
    assert process_file(folder)["state"] == "died"


def test_a_path_that_is_no_run_is_one_line(tmp_path: Path, shm: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        done = haiprof("recover", path)
        assert done.returncode == 1
        assert str(path) in only_line(done)
