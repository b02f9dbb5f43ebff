"""A job in a container is recorded from outside of it; its files are not ours."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from commands import start_haiprof
from containers import USER, Container, container, processes_only
from control_jobs import TRAINS
from recording import process_file, read_table, wait_for

from haiprof import Analyzer
from haiprof.control.attach import Attached, RecordingPlan, attach, bring
from haiprof.control.container_folder import ContainerFolder
from haiprof.control.find import find

pytestmark = pytest.mark.jobs

#: Bytes that may be copied into a container.
MOST_GIVEN = 15_000_000

LOOPS = """
    import os, sys, time
    print("ready", flush=True)
    while not os.path.exists("/END"):
        time.sleep(0.005)
    print("ended as it should")
"""
#: Says so when five steps have been traced.
TRACED = """
        traced += torch.autograd._profiler_enabled()
        if traced == 5:
            open("/TRACED", "w").close()
"""
#: Two ranks, which their parent waits for.
RANKS = """
    import os, sys, time
    for rank in range(2):
        if os.fork() == 0:
            os.execve(sys.executable, [sys.executable, "-c",
                "import os, time\\nwhile not os.path.exists('/END'): time.sleep(0.005)"],
                {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"})
    time.sleep(0.5)
    print("ready", flush=True)
    for _ in range(2):
        assert os.wait()[1] == 0
    print("ended as it should")
"""


def one(job: Container, plan: RecordingPlan, seconds: float = 1.5) -> Attached:
    attached = attach(find(str(job.pid))[0], plan)
    time.sleep(seconds)
    attached.end()
    return attached


def our_folders(job: Container) -> list[Path]:
    return [p for name in ("tmp", "dev/shm") for p in (job.files / name).glob("haiprof-attach-*")]


def test_a_container_that_knows_nothing_of_us_is_given_what_it_needs(
    shm: Path, tmp_path: Path
) -> None:
    with container(tmp_path, LOOPS) as job:
        for number in range(3):
            plan = RecordingPlan(f"r{number}", tmp_path / "logs", 30)
            attached = one(job, plan)
            assert attached.way == "injector", attached.why
            (ours,) = our_folders(job)
            # It is read there, too, so it is there whole: not more than a container has room for.
            given = [p for p in (ours / "package").rglob("*") if p.is_file()]
            assert sum(p.stat().st_size for p in given) < MOST_GIVEN
            assert {p.name for p in (ours / "package").iterdir()} == {"haiprof"}
            assert not plan.run_dir.exists()
            assert bring([attached]) == []
            assert not our_folders(job)
            folders = {p.name: process_file(p) for p in plan.run_dir.iterdir() if p.is_dir()}
            assert {p["state"] for p in folders.values()} == {"closed"}
            assert {p["role"] for p in folders.values()} == {"node", "rank"}
            assert not list(plan.run_dir.glob("*/*.arrows"))
            samples = Analyzer(plan.run_dir).samples("proc.*")
            assert samples.height > 0
            # What is brought belongs to who asked for it, and to nobody else.
            assert {p.stat().st_mode & 0o77 for p in plan.run_dir.rglob("*")} == {0}
        assert job.finish() == "ended as it should\n"
        assert job.stderr == ""


def test_steps_and_a_trace_of_a_job_in_a_container_come_home(shm: Path, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    packages = str(Path(torch.__file__).parents[1])
    program = TRAINS.format(before="traced = 0", each=TRACED)
    with container(tmp_path, program, packages=packages, without="haiprof pyarrow") as job:
        logs = str(tmp_path / "logs")
        attaching = start_haiprof(
            "attach", str(job.pid), "--trace", "--time", "300", "--name", "r", "--log-dir", logs
        )
        wait_for((job.files / "TRACED").exists, 300)
        attaching.send_signal(signal.SIGINT)
        said = attaching.communicate(timeout=60)[1]
        assert attaching.returncode == 130, said
        assert "steps, median" in said
        assert f"run {logs}/r\n" in said
        assert not our_folders(job)
        job.finish()
        assert "Traceback" not in job.stderr
    run = tmp_path / "logs" / "r"
    assert Analyzer(run).steps().height > 3
    (trace,) = run.glob("*/*.pt.trace.json.gz")
    assert "aten::addmm" in Analyzer(trace).operators()["name"].cast(str).to_list()


def test_ranks_of_one_container_are_one_run(shm: Path, tmp_path: Path) -> None:
    with container(tmp_path, RANKS) as job:
        plan = RecordingPlan("r", tmp_path / "logs", 30)
        attached = [attach(find(str(pid))[0], plan) for pid in job.children()]
        assert [a.way for a in attached] == ["injector"] * 2, [a.why for a in attached]
        time.sleep(1.5)
        for each in attached:
            each.end()
        assert bring(attached) == []
        assert not our_folders(job)
        job.finish()
    processes = [process_file(p) for p in plan.run_dir.iterdir() if p.is_dir()]
    assert sorted(p["rank"] for p in processes if p["role"] == "rank") == [0, 1]
    assert [p["state"] for p in processes] == ["closed"] * 3


def test_a_container_with_users_of_its_own(shm: Path, tmp_path: Path) -> None:
    version = f"python3.{sys.version_info[1]}"
    if not Path(f"/usr/bin/{version}").exists():
        pytest.skip(f"no {version} that every user may run")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        with container(Path(folder), LOOPS, prefix="/usr", users=True) as job:
            for number in range(2):
                attached = one(job, RecordingPlan(f"r{number}", tmp_path / "logs", 30))
                assert attached.way == "injector", attached.why
                (ours,) = our_folders(job)
                assert ours.name == f"haiprof-attach-{USER}"
                assert {p.lstat().st_uid for p in ours.rglob("*")} == {USER}
                assert bring([attached]) == []
                assert not our_folders(job)
                assert Analyzer(attached.run_dir).samples("proc.*").height > 0
                assert {p.stat().st_uid for p in attached.run_dir.rglob("*")} == {os.getuid()}
            assert job.finish() == "ended as it should\n"
            assert job.stderr == ""


def test_a_volume_that_both_have_takes_the_run_at_once(shm: Path, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    with container(tmp_path, LOOPS, volume=str(logs)) as job:
        attached = one(job, RecordingPlan("r", logs, 30))
        assert attached.way == "injector", attached.why
        assert (logs / "r/run.json").exists()
        assert bring([attached]) == []
        assert not our_folders(job)
        job.finish()
    assert Analyzer(logs / "r").samples("proc.*").height > 0


def sampled(job: Container, run: str) -> bool:
    folders = (job.files / "tmp/haiprof-attach-0/logs" / run).glob("*#*")
    rows = [row for folder in folders for row in read_table(folder, "samples").to_pylist()]
    # Those of the job's ring come first.
    return any(row["metric"].startswith("proc.") for row in rows)


def test_a_recording_that_goes_on_is_found_where_it_is(shm: Path, tmp_path: Path) -> None:
    with container(tmp_path, LOOPS) as job:
        first = attach(find(str(job.pid))[0], RecordingPlan("first", tmp_path / "logs", 30))
        wait_for(lambda: sampled(job, "first"))
        second = one(job, RecordingPlan("second", tmp_path / "logs", 30), 0.5)
        assert (second.way, second.began, second.container) == ("socket", False, None)
        assert second.run_dir == job.files / "tmp/haiprof-attach-0/logs/first"
        assert Analyzer(second.run_dir).samples("proc.*").height > 0
        first.end()
        assert bring([first]) == []
        assert first.run_dir == tmp_path / "logs/first"
    assert Analyzer(first.run_dir).samples("proc.*").height > 0


def elsewhere(job: Container) -> None:
    """See that our folder is made in another place than it mostly is."""
    folder = ContainerFolder(job.pid, "run")
    assert folder.log_dir == "/dev/shm/haiprof-attach-0/logs"
    folder.leave()
    assert not list((job.files / "dev/shm").glob("haiprof-attach-*"))


def test_no_link_in_a_container_leads_out_of_it(shm: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir(mode=0o755)
    (secret / "text").write_text("secret")
    with container(tmp_path, LOOPS) as job:
        room = job.files / "tmp/haiprof-attach-0"
        room.symlink_to(secret)  # as we would follow it
        elsewhere(job)
        room.unlink()
        room.mkdir()
        os.chown(room, 12345, 12345)
        elsewhere(job)
        os.chown(room, 0, 0)
        (room / "logs").symlink_to(secret)
        with pytest.raises(OSError, match="Not a directory"):
            ContainerFolder(job.pid, "run")
        (room / "logs").unlink()
        room.rmdir()

        run = room / "logs/run"
        folder = ContainerFolder(job.pid, "run")
        (run / "node").mkdir()
        (run / "node/events-0.arrow").write_text("events")
        (run / "node/link").symlink_to(secret / "text")
        (run / "folder").symlink_to(secret)
        (run / "process.json").symlink_to(secret / "text")
        os.mkfifo(run / "node/process.json")
        (tmp_path / "to/node").mkdir(parents=True)
        folder.bring(tmp_path / "to", 1.0)
        folder.leave()
        assert not room.exists()
        assert job.finish() == "ended as it should\n"
    brought = {str(p.relative_to(tmp_path / "to")) for p in (tmp_path / "to").rglob("*")}
    assert brought == {"node", "node.2", "node.2/events-0.arrow"}
    assert [p.name for p in secret.iterdir()] == ["text"]
    assert (secret / "text").read_text() == "secret"


def test_what_is_written_while_a_run_is_brought_is_brought_too(shm: Path, tmp_path: Path) -> None:
    written = 0
    with container(tmp_path, LOOPS) as job:
        folder = ContainerFolder(job.pid, "run")
        run = job.files / "tmp/haiprof-attach-0/logs/run"
        (run / "node").mkdir()
        (run / "node/process.json").write_text('{"state": "closed"}')
        writing = threading.Event()

        def write() -> None:
            nonlocal written
            until = time.monotonic() + 0.5
            with contextlib.suppress(FileNotFoundError):  # it was brought between two
                while time.monotonic() < until:
                    os.close(os.open(run / f"late-{written}", os.O_CREAT | os.O_EXCL))
                    written += 1
                    writing.set()

        writer = threading.Thread(target=write)
        writer.start()
        assert writing.wait(10)
        folder.bring(tmp_path / "to", 10.0)
        writer.join()
        folder.leave()
        assert not our_folders(job)
    brought = {p.name for p in (tmp_path / "to").iterdir()}
    assert brought == {"node", *(f"late-{n}" for n in range(written))}


def test_a_run_that_nobody_has_begun_to_write_is_waited_for(shm: Path, tmp_path: Path) -> None:
    with container(tmp_path, LOOPS) as job:
        folder = ContainerFolder(job.pid, "run")
        run = job.files / "tmp/haiprof-attach-0/logs/run"
        (run / "run.json").write_text("{}")

        def begin() -> None:
            (run / "node").mkdir()
            (run / "node/events-0.arrow").write_text("events")
            (run / "node/process.json").write_text('{"state": "closed"}')

        late = threading.Timer(0.5, begin)
        late.start()
        folder.bring(tmp_path / "to", 10.0)
        late.join()
        folder.leave()
        assert not our_folders(job)
    assert (tmp_path / "to/node/events-0.arrow").read_text() == "events"


def test_what_was_recorded_until_the_container_was_killed_is_brought(
    shm: Path, tmp_path: Path
) -> None:
    with container(tmp_path, LOOPS) as job:
        plan = RecordingPlan("r", tmp_path / "logs", 30)
        attached = attach(find(str(job.pid))[0], plan)
        wait_for(lambda: sampled(job, "r"))
        job.kill()
        attached.end()
        assert bring([attached]) == []
    assert Analyzer(plan.run_dir).samples("proc.*").height > 0


def test_a_container_that_sees_our_files_needs_nothing(shm: Path, tmp_path: Path) -> None:
    """Only its processes and its shared memory are its own: the run is written where it belongs."""
    with processes_only(LOOPS.replace("/END", f"{tmp_path}/END")) as job:
        plan = RecordingPlan("r", tmp_path / "logs", 30)
        attached = one(job, plan)
        assert (attached.way, attached.container) == ("injector", None), attached.why
        job.finish(str(tmp_path / "END").lstrip("/"))
    assert Analyzer(plan.run_dir).samples("proc.*").height > 0


def other_python() -> str:
    """Return the prefix of a Python that our core is not built for."""
    ours = f"3.{sys.version_info[1]}."
    found = [
        path
        for path in sorted(Path.home().glob(".pyenv/versions/3.1[0-9].*"))
        if not path.name.startswith(ours) and (path / "bin/python3").exists()
    ]
    if not found:
        pytest.skip("no other Python in ~/.pyenv")
    return str(found[-1])


@pytest.mark.parametrize(
    ("other", "before", "why"),
    [
        (True, "", "its container has no haiprof, and this one is for Python 3."),
        (False, "mount -o remount,ro /; mount -o remount,ro /dev/shm", "be copied there: /"),
        (
            False,
            "rmdir tmp; ln -s /dev/shm tmp; mount -o remount,noexec /dev/shm",
            "copied there: /",
        ),
    ],
)
def test_what_is_in_the_way_is_one_line_and_the_job_is_unharmed(
    shm: Path, tmp_path: Path, other: bool, before: str, why: str
) -> None:
    prefix = other_python() if other else sys.base_prefix
    with container(tmp_path, LOOPS, prefix=prefix, before=before) as job:
        plan = RecordingPlan("r", tmp_path / "logs", 30)
        attached = one(job, plan, 2.5)
        assert attached.way == "outside"
        assert why in attached.why
        assert "\n" not in attached.why
        assert bring([attached]) == []
        assert not our_folders(job)
        if not before.startswith("mount"):
            assert job.finish() == "ended as it should\n"
            assert job.stderr == ""
    assert Analyzer(plan.run_dir).samples("proc.*").height > 0
