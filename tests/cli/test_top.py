"""``haiprof top``: a running job in the terminal."""

from __future__ import annotations

import os
import select
import signal
import statistics
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import HAIPROF, haiprof, only_line, start_haiprof, the_run
from recording import recorders, wait_for, wait_recorded
from runs import SECOND, loop, make_run, write_live, write_process, write_run
from screens import Screen

from haiprof import schema
from haiprof.common.places import DOORBELL_NAME, open_rings, ring_dir, ring_root

LOOP = """
import sys, time, torch
torch.set_num_threads(1)
# Deep enough that each phase is worth a letter of the bar on any machine.
model = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(30)))
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
data = torch.utils.data.DataLoader(torch.randn(400, 16), batch_size=4)
until = time.monotonic() + float(sys.argv[1])
while time.monotonic() < until:
    for batch in data:
        optimizer.zero_grad()
        model(batch).mean().backward()
        optimizer.step()
        time.sleep(0.01)
        if time.monotonic() > until:
            break
"""


@pytest.fixture
def script() -> Path:
    path = Path("train_a_little.py").absolute()
    path.write_text(LOOP)
    return path


@pytest.fixture
def running(shm: Path, script: Path) -> Iterator[subprocess.Popen[str]]:
    """A job under ``haiprof run`` that goes on for longer than any test."""
    job = start_haiprof("run", "--log-dir", "logs", script, "120")
    yield job
    os.killpg(job.pid, signal.SIGTERM)
    job.communicate(timeout=60)
    for pid in recorders(shm):
        os.kill(pid, signal.SIGTERM)
    wait_recorded(shm)


def steps(frame: list[str]) -> bool:
    return any(line.startswith("steps") and "step " in line for line in frame)


def phases(frame: list[str]) -> bool:
    return any("forward" in line and "backward" in line for line in frame)


def number(frame: list[str]) -> int:
    """Return the number of the newest step of a frame."""
    (line,) = (line for line in frame if line.startswith("steps"))
    return int(line.split("step ")[1].split("  ")[0].replace(" ", ""))


def top(*words: str | Path, columns: int = 80, rows: int = 24, **environment: str) -> Screen:
    return Screen([*HAIPROF, "top", *map(str, words)], columns, rows, **environment)


@pytest.mark.jobs
def test_a_running_job_in_both_sizes(running: subprocess.Popen[str], shm: Path) -> None:
    wait_for(lambda: Path("logs").is_dir() and list(Path("logs").glob("*/*#0/spans-*")), 60)
    with top("--hz", "4") as screen:
        frame = screen.wait(lambda f: steps(f) and phases(f))
        assert len(frame) == 24
        assert all(len(line) <= 80 for line in frame)
        name = the_run(Path("logs")).name
        assert frame[0].startswith(name)
        assert "recording" in frame[0]
        assert "1 rank on 1 node" in frame[1]
        assert {line.split(" ")[0] for line in frame} >= {"steps", "phases", "rank", "node"}
        first = number(frame)
        later = screen.wait(lambda f: steps(f) and number(f) > first)
        assert any("memory" in line and "cpu" in line for line in later)
        screen.resize(200, 50)
        wide = screen.wait(lambda f: len(f) == 50)
        assert any(len(line) > 80 for line in wide)
        assert "trend (5 min)" in "\n".join(wide)
        if sys.version_info < (3, 15):  # of later ones no stacks are sampled
            screen.press("s")
            screen.wait(lambda f: any("train_a_little.py:" in line for line in f))
        screen.press("q")
        assert screen.end() == 0
        assert screen.restored
    # Found by its pid, its launcher's, its name and its script; --once prints a frame.
    (rank,) = (int(p.stem) for p in shm.rglob("*.ring"))
    for word in (str(rank), str(running.pid), name, "train_a_little.py", "logs"):
        done = haiprof("top", word, "--once")
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(name)
        assert "\x1b" not in done.stdout
        assert max(map(len, done.stdout.splitlines())) <= 80


@pytest.mark.jobs
def test_the_job_ends_while_it_is_watched(shm: Path, script: Path) -> None:
    job = start_haiprof("run", "--log-dir", "logs", script, "6")
    wait_for(lambda: Path("logs").is_dir() and list(Path("logs").glob("*/run.json")), 60)
    with top("logs", "--hz", "4") as screen:
        # The command has only been started.
        screen.wait(lambda frame: "waiting" in frame[0] or steps(frame), 60)
        frame = screen.wait(steps, 60)
        ended = screen.wait(lambda f: "ended" in f[0] and "ranks" not in f[0], 60)
        assert number(ended) >= number(frame)
        screen.press("q")
        assert screen.end() == 0
    job.communicate(timeout=60)
    done = haiprof("top")
    assert only_line(done).startswith("haiprof: nothing is recorded here now")
    os.environ["HAIPROF_LOG_DIR"] = "logs"
    try:
        assert "ended" in haiprof("top").stdout.splitlines()[0]
    finally:
        del os.environ["HAIPROF_LOG_DIR"]


@pytest.mark.jobs
def test_the_recorder_is_killed_while_it_is_watched(
    running: subprocess.Popen[str], shm: Path
) -> None:
    wait_for(lambda: Path("logs").is_dir() and list(Path("logs").glob("*/*#0/spans-*")), 60)
    with top("--hz", "4") as screen:
        screen.wait(steps)
        (recorder,) = recorders(shm)
        os.kill(recorder, signal.SIGKILL)
        frame = screen.wait_for("recorder gone", 30)
        assert "haiprof recover" in frame[0]
        assert steps(frame)
        screen.press("q")
        assert screen.end() == 0


@pytest.mark.parametrize("way", ["q", "ctrl-c", "sigterm", "terminal"])
def test_it_leaves_at_once_and_gives_the_terminal_back(tmp_path: Path, way: str) -> None:
    run = make_run(tmp_path / "run")
    with top(run, "--hz", "0.1") as screen:
        before = screen.modes()
        assert before & termios.ECHO
        screen.wait_for("ended")
        assert not screen.modes() & termios.ECHO
        begun = time.monotonic()
        if way in ("q", "ctrl-c"):
            screen.press("q" if way == "q" else "\x03")
        else:
            os.kill(screen.pid, signal.SIGTERM if way == "sigterm" else signal.SIGHUP)
        assert screen.end(60) == 0
        assert time.monotonic() - begun < 8  # the next frame comes after 10 s
        assert screen.restored
        assert screen.modes() == before
        assert "interrupted" not in screen.output


def test_ctrl_z_gives_the_terminal_back_and_fg_takes_it_again(tmp_path: Path) -> None:
    words = " ".join([*HAIPROF, "top", str(make_run(tmp_path / "run"))])
    go = tmp_path / "go"
    # Only what has a shell above it can be stopped.
    shell = f"{words}; echo stopped; until [ -e {go} ]; do sleep 0.1; done; fg; echo over"
    with Screen(["bash", "-mc", shell]) as screen:
        screen.wait_for("ended")
        screen.press("\x1a")
        wait_for(lambda: screen.read(0.05) and "stopped" in screen.output)
        assert screen.restored
        assert screen.modes() & termios.ECHO
        go.touch()
        seen = len(screen.frames)
        screen.wait(lambda _: len(screen.frames) > seen)
        assert not screen.restored
        screen.press("q")
        wait_for(lambda: not screen.read(0.05) or "over" in screen.output)
        assert screen.restored


def test_colours_unless_they_are_not_wanted(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    colour = "\x1b[37;44m"  # forward
    with top(run, TERM="xterm-16color") as screen:
        screen.wait_for("fffff")  # what the first frame had no time to read comes with the next
        assert colour in screen.output
    with top(run, TERM="xterm-16color", NO_COLOR="1") as screen:
        screen.wait_for("fffff")
        assert colour not in screen.output


def test_where_there_is_only_ascii(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", ranks=2)
    done = haiprof("top", run, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0
    assert done.stdout.isascii()
    assert "\\u" not in done.stdout
    assert ". other 8 %" in done.stdout


def test_one_frame_where_there_is_no_terminal(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", ranks=30)
    size = {"COLUMNS": "200", "LINES": "50"}
    for words, environment in (([], {}), (["--once"], size), ([], {"TERM": "dumb", **size})):
        done = haiprof("top", run, *words, env={**os.environ, **environment})
        lines = done.stdout.splitlines()
        assert done.returncode == 0
        assert done.stderr == ""
        assert len(lines) <= int(environment.get("LINES", 24))
        assert max(map(len, lines)) <= int(environment.get("COLUMNS", 80))
        shown = sum(line.lstrip()[:2].strip().isdigit() for line in lines)
        more = [int(line.split()[1]) for line in lines if line.startswith("…")]
        assert shown >= 5
        assert shown + sum(more) == 30
        assert bool(more) != bool(environment)


def test_of_several_runs_the_newest_and_which_others_there_are(tmp_path: Path) -> None:
    for number in range(3):
        run = make_run(tmp_path / f"run{number}")
        write_run(run, created_ns=(10 - abs(number - 1)) * SECOND)
    lines = haiprof("top", tmp_path).stdout.splitlines()
    assert lines[0].startswith("run1 ")
    (others,) = (line for line in lines if line.startswith("others"))
    assert "2 runs: " in others
    assert "run0" in others
    assert "run2" in others


def test_it_asks_the_recorder_to_write(shm: Path, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    write_run(run)
    rings = open_rings(ring_root() / ring_dir(run).name, make=True)
    rings.make_pipe(DOORBELL_NAME)
    doorbell = rings.open_pipe(DOORBELL_NAME, os.O_RDWR)
    try:
        with top(run, "--hz", "4") as screen:
            for _ in range(2):
                wait_for(lambda: select.select([doorbell], [], [], 0.1)[0])
                os.read(doorbell, 4096)
            screen.press("q")
            assert screen.end() == 0
    finally:
        os.close(doorbell)


def test_where_there_is_no_run(shm: Path, tmp_path: Path) -> None:
    for words, message in (
        ([], "nothing is recorded here now, and no run lies in haiprof-logs"),
        ([str(tmp_path)], f"{tmp_path}: no run lies in it"),
        (["train.py"], "train.py: no run has this name, script or pid"),
        ([str(os.getpid())], "no run has this name, script or pid"),
        (["--hz", "9"], "--hz"),
    ):
        done = haiprof("top", *words)
        assert done.returncode == (2 if "--hz" in words else 1)
        assert message in only_line(done)
        assert done.stdout == ""


def test_a_run_of_another_version_is_one_line(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    write_run(run, version="9.0")
    done = haiprof("top", run)
    assert done.returncode == 1
    assert "field 'version' is 9.0" in only_line(done)


def test_nothing_is_written_and_the_lock_is_left_alone(
    running: subprocess.Popen[str], shm: Path
) -> None:
    wait_for(lambda: Path("logs").is_dir() and list(Path("logs").glob("*/*#0/spans-*")), 60)

    def files() -> set[Path]:
        mine = {".partial", schema.LIVE_SUFFIX, schema.CLOSED_SUFFIX}  # the recorder's
        return {path for path in Path("logs").rglob("*") if path.suffix not in mine}

    before = files()
    with top("--hz", "4") as screen:
        screen.wait(steps)
        first = number(screen.frames[-1])
        screen.wait(lambda frame: steps(frame) and number(frame) > first + 20)
        screen.press("q")
        assert screen.end() == 0
    assert files() == before
    assert len(recorders(shm)) == 1


def test_what_it_costs(tmp_path: Path) -> None:
    """Eight ranks at 1 Hz: the second of CPU time in which frames are drawn is nearly empty."""
    run = write_run(tmp_path / "run", created_ns=time.time_ns())
    folders = [write_process(run, n, state="live", started_ns=time.time_ns()) for n in range(8)]
    with top(run) as screen:
        screen.wait_for("recording")
        for folder in folders:
            write_live(folder, schema.SPANS, [loop(50)])
        screen.wait(steps)
        begun, spent, seen = time.monotonic(), _cpu(screen.pid), len(screen.frames)
        costs: list[float] = []
        while len(costs) < 5:
            assert time.monotonic() - begun < 60
            assert screen.read(0.2)
            if drawn := len(screen.frames) - seen:
                now = _cpu(screen.pid)
                costs += [(now - spent) / drawn] * drawn
                spent, seen = now, seen + drawn
        assert len(costs) <= time.monotonic() - begun + 2
        # 2 % of a core on an idle machine; this one may be anything but idle.
        assert statistics.median(costs) < 0.06


def _cpu(pid: int) -> float:
    files = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(file.read_text().split()[0]) for file in files) / 1e9
