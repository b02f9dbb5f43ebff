"""Files that somebody else has put where rings and runs lie."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from pathlib import Path

import pytest
from commands import haiprof
from recording import process_file, python, read_table, recorders, run_python, wait_for
from runs import span, write_json, write_live, write_process, write_run

from haiprof import schema
from haiprof.capture.session.helpers import join_process_above
from haiprof.collect.destination import Destination
from haiprof.common.control_folder import remove_dead
from haiprof.common.places import ring_dir
from haiprof.options import Options
from haiprof.recorder.launch import ring_doorbell, start_recorder
from haiprof.recorder.outside import read_note
from haiprof.recorder.run_folder import open_run_folder, why_not

OTHER = 12345
VICTIM = "a file of this user\n"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
#: Leaves a ring that says that its records go to a folder, as whoever shares the memory can.
FORGES = """
    import os, sys
    from pathlib import Path
    from haiprof import _core
    from haiprof.common.places import make_private
    rings, run_dir = Path(sys.argv[1]), sys.argv[2]
    make_private(rings.parent)
    make_private(rings)
    _core.open_ring(str(rings / f"{os.getpid()}.ring"), bytes=_core.MIN_RING_BYTES, rank=0,
                    run="evil", run_dir=run_dir, host=os.uname().nodename, node="n")
    _core.event("mark", "forged")
    os._exit(0)
"""


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    file = tmp_path / "victim"
    file.write_text(VICTIM)
    return file


def forged(shm: Path, run_dir: Path, name: str = "evil") -> Path:
    rings = shm / f"haiprof-{os.getuid()}" / name
    run_python(FORGES, str(rings), str(run_dir))
    return rings


def hands_over(folder: Path) -> None:
    """Make a folder, with what is in it, another user's."""
    for path in (folder, *folder.rglob("*")):
        os.chown(path, OTHER, OTHER, follow_symlinks=False)


# -- rings ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["recorder.log", "recorder.lock"])
@pytest.mark.parametrize("link", ["symbolic", "hard"])
def test_no_link_beside_rings_is_written_through(
    shm: Path, tmp_path: Path, victim: Path, name: str, link: str
) -> None:
    write_run(tmp_path / "run")
    rings = forged(shm, tmp_path / "run")
    (rings / name).unlink(missing_ok=True)
    if link == "hard":
        victim_here = shm / "victim"  # on the same file system
        victim_here.write_text(VICTIM)
        (rings / name).hardlink_to(victim_here)
        victim = victim_here
    else:
        (rings / name).symlink_to(victim)
    haiprof("recover")
    assert victim.read_text() == VICTIM
    assert VICTIM not in "".join(p.read_text() for p in tmp_path.glob("run/*.log"))


def test_a_ring_does_not_choose_a_folder_that_is_no_run(shm: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    rings = forged(shm, tmp_path / "elsewhere")
    (rings / "recorder.log").write_text("chosen by whoever forged it")
    done = haiprof("recover")
    assert done.returncode == 1
    assert str(tmp_path / "elsewhere" / "run.json") in done.stdout
    assert not list((tmp_path / "elsewhere").iterdir())
    forged(shm, tmp_path / "nowhere", "other")
    assert haiprof("recover").returncode == 1
    assert not (tmp_path / "nowhere").exists()


def test_a_folder_of_rings_that_is_a_link_is_left_alone(shm: Path, tmp_path: Path) -> None:
    away = tmp_path / "away"
    away.mkdir()
    for name in ("recorder.log", "doorbell", "pace.json", "1.ring"):
        (away / name).write_text("")
        os.utime(away / name, (0, 0))
    os.utime(away, (0, 0))
    root = shm / f"haiprof-{os.getuid()}"
    root.mkdir(mode=0o700)
    (root / "run").symlink_to(away)
    done = haiprof("recover")
    assert "left alone" in done.stdout
    assert len(list(away.iterdir())) == 4


def test_the_doorbell_is_a_pipe_or_not_rung(tmp_path: Path, victim: Path) -> None:
    (tmp_path / "doorbell").symlink_to(victim)
    ring_doorbell(tmp_path)
    (tmp_path / "doorbell").unlink()
    (tmp_path / "doorbell").hardlink_to(victim)
    ring_doorbell(tmp_path)
    assert victim.read_text() == VICTIM


def test_the_log_of_a_recorder_is_not_another_file(shm: Path, tmp_path: Path, victim: Path) -> None:
    rings = ring_dir(tmp_path / "run")
    rings.mkdir(mode=0o700, parents=True)
    (rings / "recorder.log").symlink_to(victim)
    with pytest.raises(OSError, match=r"recorder\.log"):
        start_recorder(rings, tmp_path / "run", Options())
    assert victim.read_text() == VICTIM


def test_a_note_that_is_a_pipe_holds_nobody_up(tmp_path: Path) -> None:
    """Whoever lists the processes of this machine reads the notes of all users."""
    os.mkfifo(tmp_path / "1.outside")
    refused = []

    def read() -> None:
        try:
            read_note(tmp_path / "1.outside")
        except (OSError, ValueError) as error:
            refused.append(error)

    reading = threading.Thread(target=read, daemon=True)
    reading.start()
    reading.join(10)
    assert refused


# -- folders of runs -----------------------------------------------------------------------------


def left_open(run: Path) -> Path:
    write_run(run)
    dead = {"state": "live", "ended_ns": None, "pid": 4194304, "start_time": 1}
    folder = write_process(run, node=os.uname().nodename, **dead)
    write_live(folder, schema.SPANS, [[span(i, 1, "phase", "forward", i)] for i in range(5)])
    return folder


@needs_root
def test_a_folder_that_everybody_may_write_is_not_a_run(
    shm: Path, tmp_path: Path, victim: Path
) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    mine = left_open(logs / "mine")
    write_json(logs / "run.json", {"format": schema.RUN_FORMAT, "run": "logs"})
    dead = {"state": "live", "pid": 4194304, "start_time": 1, "host": os.uname().nodename}
    write_json(logs / "n#0" / "process.json", dead)
    (logs / "n#0" / "process.partial").symlink_to(victim)
    hands_over(logs / "n#0")
    os.chown(logs / "run.json", OTHER, OTHER)
    logs.chmod(0o1777)
    done = haiprof("recover", logs)
    assert victim.read_text() == VICTIM
    assert (done.returncode, done.stderr) == (0, "")
    assert process_file(mine)["state"] == "died"


@needs_root
def test_the_run_of_another_user_is_left_alone(shm: Path, tmp_path: Path, victim: Path) -> None:
    folder = left_open(tmp_path / "theirs")
    (folder / "process.partial").symlink_to(victim)
    hands_over(tmp_path / "theirs")
    done = haiprof("recover", tmp_path)
    assert "belongs to user 12345" in done.stdout
    assert victim.read_text() == VICTIM
    assert process_file(folder)["state"] == "live"


@pytest.mark.parametrize("name", ["process.partial", "spans-0.partial", "spans-0.arrow"])
def test_no_link_in_a_run_is_written_through(
    shm: Path, tmp_path: Path, victim: Path, name: str
) -> None:
    """A container that shares the run, and runs as this user, can put one there."""
    folder = left_open(tmp_path / "run")
    (folder / name).symlink_to(victim)
    done = haiprof("recover", tmp_path / "run")
    assert done.returncode == 0, done.stdout
    assert victim.read_text() == VICTIM
    assert process_file(folder)["state"] == "died"
    assert read_table(folder, "spans").num_rows == 5


@needs_root
def test_a_run_folder_that_somebody_else_made_is_not_used(shm: Path, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    (logs / "run").mkdir(parents=True)
    os.chown(logs / "run", OTHER, OTHER)
    logs.chmod(0o1777)
    with pytest.raises(PermissionError) as raised:
        open_run_folder(logs / "run", ["x"], Options())
    line = why_not(raised.value)
    assert f"{logs}/run: belongs to user {OTHER}" in line
    assert "another name" in line
    assert not list((logs / "run").iterdir())


@needs_root
def test_a_link_that_somebody_else_made_is_not_a_run_folder(shm: Path, tmp_path: Path) -> None:
    (tmp_path / "away").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "away")
    os.chown(tmp_path / "run", OTHER, OTHER, follow_symlinks=False)
    with pytest.raises(OSError, match="link is not followed"):
        open_run_folder(tmp_path / "run", ["x"], Options())
    assert not list((tmp_path / "away").iterdir())


@needs_root
def test_root_that_a_file_server_does_not_know_has_its_runs(
    shm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that root makes there belong to another user: all of them, so that these are its."""
    open_run_folder(tmp_path / "run", ["x"], Options())
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    open_run_folder(tmp_path / "run", ["x"], Options())
    os.chown(tmp_path / "run", OTHER, OTHER)
    with pytest.raises(PermissionError, match="belongs to"):
        open_run_folder(tmp_path / "run", ["x"], Options())


def test_links_of_the_user_are_followed(shm: Path, tmp_path: Path) -> None:
    """To another disk: of the log folder, and of one run in it."""
    (tmp_path / "disk/logs/real").mkdir(parents=True)
    (tmp_path / "logs").symlink_to(tmp_path / "disk/logs")
    (tmp_path / "disk/logs/run").symlink_to("real")
    open_run_folder(tmp_path / "logs/run", ["x"], Options())
    assert (tmp_path / "disk/logs/real/run.json").exists()
    left_open(tmp_path / "disk/logs/real")
    done = haiprof("recover", tmp_path / "logs")
    assert done.returncode == 0
    assert not list((tmp_path / "disk/logs/real").glob("*/*.arrows"))


# -- two runs of one name ------------------------------------------------------------------------

RECORDS = """
    import haiprof, sys
    session = haiprof.start(sys.argv[1], run="run", hooks=False)
    with haiprof.range(sys.argv[2]):
        pass
    print("ready", flush=True)
    sys.stdin.readline()
    haiprof.stop()
"""


def names(log_dir: Path) -> set[str]:
    return {
        name
        for folder in log_dir.glob("run/*#0")
        for name in read_table(folder, "spans")["name"].to_pylist()
    }


def test_runs_of_one_name_stay_apart_even_if_a_recorder_hangs(shm: Path, tmp_path: Path) -> None:
    jobs: list[subprocess.Popen[str]] = []
    hung: list[int] = []
    run_dir = tmp_path / "first" / "run"
    try:
        for name in ("first", "second"):
            job = python(RECORDS, str(tmp_path / name), name, stdin=subprocess.PIPE)
            jobs.append(job)
            assert job.stdout is not None
            assert job.stdout.readline() == "ready\n"
            if not hung:
                wait_for(
                    lambda: list(run_dir.glob("*#0/process.json")), what="the recorder's start"
                )
                hung += recorders(shm)
                os.kill(hung[0], signal.SIGSTOP)
        jobs[1].communicate("\n", timeout=60)
        wait_for(lambda: names(tmp_path / "second") == {"second"}, what="the second's records")
    finally:
        for pid in hung:
            os.kill(pid, signal.SIGCONT)
        for job in jobs:
            if job.poll() is None:
                job.communicate("\n", timeout=60)
    wait_for(lambda: not recorders(shm))
    assert names(tmp_path / "first") == {"first"}


def test_all_files_of_a_run_are_private(shm: Path, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        job = python(RECORDS, str(tmp_path), "work", stdin=subprocess.PIPE)
        assert job.stdout is not None
        assert job.stdout.readline() == "ready\n"
        wait_for(lambda: list(tmp_path.glob("run/*#0/process.json")))
        ring = next(shm.glob("*/*/*.ring")).parent
        (ring / "recorder.log").write_text("something happened\n")
        modes = {p.name: p.stat().st_mode & 0o777 for p in ring.iterdir()}
        job.communicate("\n", timeout=60)
        wait_for(lambda: not recorders(shm))
    finally:
        os.umask(before)
    assert set(modes.values()) == {0o600}, modes
    assert (tmp_path / "run/recorder.log").exists()
    found = {p: p.stat().st_mode & 0o777 for p in (tmp_path / "run").rglob("*")}
    assert {mode for path, mode in found.items() if path.is_file()} == {0o600}, found
    assert {mode for path, mode in found.items() if path.is_dir()} == {0o700}, found


# -- what else reads or writes there -------------------------------------------------------------


def test_sockets_are_only_removed_from_a_folder_of_ours(shm: Path, tmp_path: Path) -> None:
    (tmp_path / "away").mkdir()
    (tmp_path / "away/data.partial").write_text("")
    os.utime(tmp_path / "away/data.partial", (0, 0))
    root = shm / f"haiprof-{os.getuid()}"
    root.mkdir(mode=0o700)
    (root / ".control").symlink_to(tmp_path / "away")
    remove_dead(root / ".control")
    assert (tmp_path / "away/data.partial").exists()


@needs_root
def test_a_helper_counts_in_no_ring_of_another_user(
    shm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who owns the file can cut it while it is mapped."""
    root = shm / f"haiprof-{os.getuid()}"
    (root / "run~00000000").mkdir(parents=True, mode=0o700)
    ring = f"{os.getppid()}.ring"
    (root / "run~00000000" / ring).write_text("")
    joined: list[str] = []

    def join(path: str, *_: object) -> bool:
        joined.append(Path(path).name)
        return True

    monkeypatch.setattr("haiprof.capture.session.helpers._core.join_counters", join)
    join_process_above()
    assert joined == [ring]
    hands_over(root)
    join_process_above()
    assert joined == [ring]


@needs_root
def test_nothing_is_collected_into_what_another_user_prepared(tmp_path: Path) -> None:
    with Destination(tmp_path) as destination:
        (tmp_path / "run").mkdir()
        os.chown(tmp_path / "run", OTHER, OTHER)
        with pytest.raises(PermissionError, match="belongs to user"):
            destination.open_run("run", b"{}")
        (unfinished,) = (p for p in tmp_path.iterdir() if p.name.startswith("."))
    unfinished.mkdir()
    os.chown(unfinished, OTHER, OTHER)
    with pytest.raises(PermissionError, match="belongs to user"):
        Destination(tmp_path)
