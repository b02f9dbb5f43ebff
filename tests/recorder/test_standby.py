"""A recorder that is asked to stay for a command, when a rank's recorder was first."""

from __future__ import annotations

import subprocess
from pathlib import Path

from recording import process_file, python, recorders, the_recorder, wait_for, wait_recorded

from haiprof.common.places import ring_dir
from haiprof.options import Options
from haiprof.recorder.launch import start_recorder


def test_it_stands_by_and_takes_over_when_the_last_ring_is_closed(
    shm: Path, tmp_path: Path
) -> None:
    command = subprocess.Popen(["sleep", "60"])
    started = Path(f"/proc/{command.pid}/stat").read_text().rpartition(")")[2].split()[19]
    program = """
    import haiprof, sys, time
    haiprof.start(sys.argv[1], run="run", hooks=False)
    haiprof.flush()
    print("ready", flush=True)
    sys.stdin.readline()
    haiprof.stop()
    """
    job = python(program, str(tmp_path), stdin=subprocess.PIPE)
    assert job.stdout is not None
    assert job.stdout.readline() == "ready\n"
    first = the_recorder(shm)
    start_recorder(
        ring_dir(tmp_path / "run"), tmp_path / "run", Options(), f"{command.pid}:{started}"
    )
    wait_for(lambda: len(recorders(shm)) == 2, what="the standby")
    job.communicate("\n")
    wait_for(lambda: first not in recorders(shm), what="the first recorder's end")
    node = next(p for p in (tmp_path / "run").iterdir() if p.is_dir() and "#" not in p.name)
    wait_for(lambda: process_file(node)["state"] == "live", what="the standby's turn")
    assert len(recorders(shm)) == 1
    command.kill()
    command.wait()
    wait_recorded(shm)
    assert process_file(node)["state"] == "closed"


def test_without_a_command_to_stay_for_the_second_leaves(shm: Path, tmp_path: Path) -> None:
    program = """
    import haiprof, sys
    from haiprof.common.places import ring_dir
    from haiprof.recorder.launch import start_recorder
    session = haiprof.start(sys.argv[1], run="run", hooks=False)
    haiprof.flush()
    print(start_recorder(ring_dir(session.run_dir), session.run_dir, session.options), flush=True)
    sys.stdin.readline()
    """
    job = python(program, str(tmp_path), stdin=subprocess.PIPE)
    assert job.stdout is not None
    second = int(job.stdout.readline())
    wait_for(lambda: second not in recorders(shm), what="the second recorder's end")
    assert len(recorders(shm)) == 1
    job.communicate("\n")
    wait_recorded(shm)
