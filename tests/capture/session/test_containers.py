"""Containers: the job as the first process, shared memory that is shared or small."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path

import pytest
from recording import process_file, python, read_table, recorders, wait_for, wait_recorded

JOB = """
    import haiprof, os, sys, time
    from haiprof.capture.session import recording
    recording._STOP_SECONDS = 60  # a busy machine takes its time to start the recorder
    session = haiprof.start(sys.argv[1], run="run", hooks=False)
    for _ in range(100):
        with haiprof.range(sys.argv[2]):
            pass
    if sys.argv[3:]:
        print("ready", flush=True)
        sys.stdin.readline()
"""


def in_pid_namespace(*arguments: str) -> subprocess.Popen[str]:
    """Start the job as the first process of a pid namespace."""
    prefix = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*prefix, "true"], capture_output=True).returncode != 0:
        prefix = ["unshare", "--pid", "--fork", "--mount-proc"]
        if os.getuid() != 0:
            pytest.skip("needs user namespaces or root for a pid namespace")
    return subprocess.Popen(
        [*prefix, sys.executable, "-c", textwrap.dedent(JOB), *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_the_first_process_of_a_container_ends_with_all_its_files_closed(
    shm: Path, tmp_path: Path
) -> None:
    job = in_pid_namespace(str(tmp_path), "work")
    _, err = job.communicate(timeout=120)
    assert job.returncode == 0, err
    # The kernel has ended the recorder together with its namespace: what is there now is all.
    assert not recorders(shm)
    (folder,) = tmp_path.glob("run/*#0")
    assert process_file(folder)["state"] == "closed"
    assert Counter(read_table(folder, "spans")["name"].to_pylist()) == {"work": 100}
    assert not list(shm.glob("*/*/*.ring"))


def test_two_containers_with_one_shared_memory_and_one_run_have_a_recorder_each(
    shm: Path, tmp_path: Path
) -> None:
    inside = in_pid_namespace(str(tmp_path), "inside", "wait")
    outside = python(JOB, str(tmp_path), "outside", "wait", stdin=-1)
    for job in (inside, outside):
        assert job.stdout is not None
        assert job.stdout.readline() == "ready\n"
    wait_for(lambda: len(recorders(shm)) == 2, what="a recorder in each")
    for job in (inside, outside):
        _, err = job.communicate("\n", timeout=120)
        assert job.returncode == 0, err
    wait_recorded(shm)
    folders = list(tmp_path.glob("run/*#0*"))
    names = Counter(name for f in folders for name in read_table(f, "spans")["name"].to_pylist())
    assert names == {"inside": 100, "outside": 100}
    assert {process_file(folder)["state"] for folder in folders} == {"closed"}


def test_a_flush_returns_the_files_of_this_process_and_of_no_namesake(
    shm: Path, tmp_path: Path
) -> None:
    program = """
    import haiprof, json, os, pathlib, sys
    haiprof.start(sys.argv[1], run="run", hooks=False)
    with haiprof.range("x"):
        pass
    own = haiprof.flush()[0].parent
    about = json.loads((own / "process.json").read_text())
    namesakes = (("0-other-node#0", {"host": "other"}), (own.name + "-1", {"start_time": 1}))
    for name, change in namesakes:
        other = own.parent / name
        other.mkdir()
        (other / "process.json").write_text(json.dumps({**about, **change}))
        (other / "spans-0.arrow").write_text("")
    assert {f.parent for f in haiprof.flush()} == {own}, haiprof.flush()
    haiprof.stop()
    """
    job = python(program, str(tmp_path))
    _, err = job.communicate(timeout=60)
    assert job.returncode == 0, err


def test_the_recorder_is_not_bound_to_the_cores_of_the_rank_that_started_it(
    shm: Path, tmp_path: Path
) -> None:
    allowed = os.sched_getaffinity(0)
    if len(allowed) < 2:
        pytest.skip("needs two cores")
    program = "import os\nos.sched_setaffinity(0, {" + str(min(allowed)) + "})\n"
    job = python(program + textwrap.dedent(JOB), str(tmp_path), "x", "wait", stdin=-1)
    assert job.stdout is not None
    assert job.stdout.readline() == "ready\n"
    (recorder,) = wait_for(lambda: recorders(shm))
    wait_for(lambda: os.sched_getaffinity(recorder) == allowed, what="all cores")
    job.communicate("\n", timeout=60)
    wait_recorded(shm)
