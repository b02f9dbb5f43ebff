"""What ``haiprof run`` says of a command that failed; of one that did not it says nothing."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from commands import haiprof, start_haiprof, the_run
from recording import process_file, read_table, wait_for

from haiprof.analyzer import Analyzer

pytestmark = pytest.mark.usefixtures("shm")

PATIENCE = 120.0
#: Three ranks, of which one may end; then the others are ended as launchers do it.
LAUNCHER = """
import json, os, pathlib, signal, subprocess, sys, time
if sys.argv[1] == "handles SIGTERM":
    signal.signal(signal.SIGTERM, lambda *about: sys.exit(1))
ranks = []
for rank in range(3):
    place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "3"}
    words = [sys.executable, "rank.py", *sys.argv[1:]]
    ranks.append(subprocess.Popen(words, env=os.environ | place))
def over(rank):  # without taking its status, which only one can have
    return os.waitid(os.P_PID, rank.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
def noted():
    files = pathlib.Path().glob("logs/*/*#*/process.json")
    return sum(json.loads(file.read_text())["state"] != "live" for file in files) == 3
try:
    while not any(map(over, ranks)):
        time.sleep(0.01)
finally:
    for rank in ranks:
        os.kill(rank.pid, signal.SIGTERM)  # terminate() would take the status
    # As torchrun, which looks now and then; here until the recorder has looked.
    until = time.monotonic() + 60
    while not (all(map(over, ranks)) and noted()) and time.monotonic() < until:
        time.sleep(0.01)
    codes = [rank.wait() for rank in ranks]
sys.exit(any(codes))
"""
RANK = """
import os, pathlib, sys, time
import haiprof
haiprof.start(hooks=False, ring_mib=4)
me = os.environ["RANK"]
for n in range(1_000_000):
    haiprof.step()
    if n == 10:
        haiprof.flush(100)  # the recorder has seen it alive
        pathlib.Path(f"ready-{me}").touch()
    if me == "1" and len(list(pathlib.Path().glob("ready-*"))) == 3:
        exec(sys.argv[1])
    time.sleep(0.01)
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A folder with a launcher and its rank."""
    (tmp_path / "launch.py").write_text(LAUNCHER)
    (tmp_path / "rank.py").write_text(RANK)
    return tmp_path


def exits(folder: Path) -> list[str]:
    events = read_table(folder, "events").to_pylist()
    return [event["text"] for event in events if event["kind"] == "exit"]


@pytest.mark.parametrize(
    ("ends", "ending"),
    [
        (
            "raise RuntimeError('no \\x1b[2J more')",
            "RuntimeError: no \ufffd[2J more (rank.py:12), exit code 1",
        ),
        ("os.kill(os.getpid(), 9)", "killed by SIGKILL (kill -9, or the kernel's"),
        ("os._exit(5)", "exit code 5"),
    ],
)  # fmt: skip
def test_the_rank_that_failed_first_is_named_and_the_others_as_its_consequence(
    job: Path, ends: str, ending: str
) -> None:
    done = haiprof("run", "--log-dir", "logs", "launch.py", ends, cwd=job)
    assert done.returncode == 1
    line = next(x for x in done.stderr.splitlines() if "failed first" in x)
    assert line.startswith("haiprof:   Rank 1 on ")
    assert f": {ending}" in line
    assert " steps: " in line
    assert line.endswith("; 2 others were then terminated")
    run = the_run(job / "logs")
    analyzer = Analyzer(run)
    assert line.removeprefix("haiprof:   ") == analyzer.headline()[0]
    rows = analyzer.processes().filter(analyzer.processes()["role"] == "rank").sort("rank")
    assert rows["end"].to_list()[::2] == ["interrupted", "interrupted"]
    (node,) = (p for p in run.iterdir() if p.is_dir() and "#" not in p.name)
    assert process_file(node)["ended"]["text"] == "exit code 1"
    (event,) = exits(node)
    assert event.endswith(" ended: exit code 1")


@pytest.mark.parametrize(("number", "how"), [(signal.SIGINT, "group"), (signal.SIGTERM, "one")])
def test_a_job_that_is_asked_to_end_was_interrupted_and_did_not_fail(
    job: Path, number: signal.Signals, how: str
) -> None:
    words = ["run", "--log-dir", "logs", "launch.py"]
    words.append("handles SIGTERM" if how == "one" else "pass")
    (job / "rank.py").write_text(RANK.replace("exec(sys.argv[1])", "pass"))
    running = start_haiprof(*words, cwd=job)
    try:
        wait_for(lambda: len(list(job.glob("ready-*"))) == 3, PATIENCE, "three ranks")
        if how == "group":
            os.killpg(running.pid, number)
        else:
            os.kill(running.pid, number)
        _, err = running.communicate(timeout=PATIENCE)
    finally:
        running.kill()
    lines = [line for line in err.splitlines() if line.startswith("haiprof:   ")]
    assert lines[0].startswith("haiprof:   The job was interrupted, at ")
    assert "failed" not in lines[0]
    (node,) = (p for p in the_run(job / "logs").iterdir() if p.is_dir() and "#" not in p.name)
    ended = process_file(node)["ended"]
    assert ended["kind"] == "interrupted"
    if how == "one":
        assert ended["text"] == "exit code 1, after SIGTERM"


def test_a_command_in_order_is_silent(job: Path) -> None:
    done = haiprof("run", "--log-dir", "logs", sys.executable, "-c", "pass", cwd=job)
    assert done.returncode == 0
    lines = done.stderr.splitlines()
    assert len(lines) == 5
    assert "No step was recorded" in lines[1]
    (node,) = (p for p in the_run(job / "logs").iterdir() if p.is_dir())
    assert process_file(node)["ended"]["exit_code"] == 0
    assert not exits(node)


def test_an_exception_before_anything_was_recorded_is_known(job: Path) -> None:
    (job / "early.py").write_text("import no_such_model\n")
    done = haiprof("run", "--log-dir", "logs", "early.py", cwd=job)
    assert done.returncode == 1
    assert (
        "ModuleNotFoundError: No module named 'no_such_model' (early.py:1), exit code 1"
        in (done.stderr.splitlines()[-5])
    )


def test_a_starter_that_fails_after_its_children_is_no_rank(job: Path) -> None:
    starter = """
import subprocess, sys
trains = "import haiprof; haiprof.start(hooks=False, ring_mib=4); haiprof.mark('began'); "
trains += "haiprof.flush(100); haiprof.stop()"
subprocess.run([sys.executable, "-c", trains], check=True)
raise RuntimeError("a child said no")
"""
    done = haiprof("run", "--log-dir", "logs", sys.executable, "-c", starter, cwd=job)
    assert done.returncode == 1
    assert len(list((job / "logs").glob("*/*#*"))) == 1


def test_a_launcher_that_passes_a_failure_on_is_no_process_of_the_job(job: Path) -> None:
    launcher = "import subprocess; subprocess.run(['false'], check=True)"
    done = haiprof("run", "--log-dir", "logs", sys.executable, "-c", launcher, cwd=job)
    assert done.returncode == 1
    assert any(
        line.startswith("haiprof:   The command failed, at ") and line.endswith(": exit code 1")
        for line in done.stderr.splitlines()
    )
    assert not list((job / "logs").glob("*/*#*"))


def test_where_nothing_is_recorded_the_command_s_own_end_is_shown(job: Path) -> None:
    words = ["--log-dir", "logs", "--time", "5", sys.executable, "-c"]
    done = haiprof("run", *words, "import os; os.kill(os.getpid(), 15)", cwd=job)
    assert done.returncode == -signal.SIGTERM
    assert "haiprof:   The command was interrupted: ended by SIGTERM" in done.stderr
