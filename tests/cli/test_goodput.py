"""ETTR of a real job that is killed and started again twice, against what the job noted itself."""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path

import pytest
from commands import haiprof
from phases import interrupted_share
from recording import process_file, wait_for, wait_recorded

from haiprof import Analyzer

pytestmark = pytest.mark.usefixtures("shm")

STEP, EVERY = 0.1, 8
#: After so many steps an attempt is killed; the last one ends by itself.
KILLED = (21, 27, None)

PROGRAM = f"""
import os, time

def started():  # as the kernel tells it
    ticks = int(open("/proc/self/stat").read().rpartition(")")[2].split()[19])
    since = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - ticks * 10**9 // os.sysconf("SC_CLK_TCK")
    return time.time_ns() - since

import json, signal, sys
notes = open(sys.argv[1], "a", buffering=1)
note = lambda what, at=None: print(json.dumps([what, at or time.time_ns()]), file=notes)
note("start", started())
import torch, haiprof
checkpoint, ends = sys.argv[2], int(sys.argv[3])
done = torch.load(checkpoint) if os.path.exists(checkpoint) else 0
haiprof.step()
note("step")
while done < {2 * EVERY + 30} and ends:
    time.sleep({STEP})
    done, ends = done + 1, ends - 1
    if done % {EVERY} == 0:
        note("save")
        torch.save(done, checkpoint + ".new")
        note("saved")
        os.replace(checkpoint + ".new", checkpoint)
    haiprof.step()
    note("step")
time.sleep({STEP / 2})
if not ends:
    note("end")
    os.kill(os.getpid(), signal.SIGKILL)
note("end")
"""


def truth(notes: Path) -> tuple[float, float]:
    """Return the kept training time and the wall-clock time, s, from what the job noted."""
    attempts: list[list[tuple[str, int]]] = []
    for line in notes.read_text().splitlines():
        what, at = json.loads(line)
        if what == "start":
            attempts.append([])
        attempts[-1].append((what, at))
    productive = 0
    for number, noted in enumerate(attempts):
        until = noted[-1][1]
        if number + 1 < len(attempts):  # killed: what came after the last save was lost
            until = max((at for what, at in noted if what == "save"), default=0)
        begun: int | None = None
        for what, at in noted:
            if what in ("step", "save") and begun is not None and at <= until:
                productive += at - begun
            if what in ("step", "save", "saved"):
                begun = None if what == "save" else at
    return productive / 1e9, (attempts[-1][-1][1] - attempts[0][0][1]) / 1e9


def last_saves(notes: Path) -> list[int]:
    """Return when each attempt had last saved, ns."""
    found: list[int] = []
    for line in notes.read_text().splitlines():
        what, at = json.loads(line)
        if what == "start":
            found.append(0)
        if what == "saved":
            found[-1] = at
    return found


@pytest.mark.jobs
def test_ettr_of_a_job_killed_and_restarted_twice_is_what_the_job_noted(
    tmp_path: Path, shm: Path
) -> None:
    script, notes = tmp_path / "train.py", tmp_path / "notes"
    script.write_text(textwrap.dedent(PROGRAM))
    interrupted = [interrupted_share()]
    for ends in KILLED:
        words = (sys.executable, script, notes, tmp_path / "checkpoint.pt", str(ends or 1000))
        done = haiprof("run", "--run", "mine", "--log-dir", tmp_path, *words)
        assert (done.returncode == 0) == (ends is None), done.stderr
        wait_recorded(shm)
        interrupted.append(interrupted_share())
    run = wait_for(lambda: Analyzer(tmp_path / "mine"))
    productive, wall = truth(notes)
    # Where a machine takes the CPU between the job's reading of the clock and ours, it shows here.
    within = 0.01 if max(interrupted) < 0.02 else 0.05
    found = run.goodput()
    row = found.summary.row(0, named=True)
    assert (row["attempts"], row["died"]) == (3, 2)
    assert row["productive_ns"] / 1e9 == pytest.approx(productive, rel=within)
    assert row["wall_ns"] / 1e9 == pytest.approx(wall, rel=within)
    assert row["ettr"] == pytest.approx(productive / wall, rel=within)
    assert found.parts["duration"].sum() == row["wall_ns"]
    durations = dict(found.parts.select("part", "duration").iter_rows())
    assert durations["down"] > 0
    assert durations["load"] > 0
    # 21 = 2 · 8 + 5 steps and a half, then 27 steps from the 16th on: 3 after the 40th; and until
    # the recorder noticed each death.
    lives = sorted(map(process_file, (tmp_path / "mine").glob("*#0*")), key=lambda p: p["attempt"])
    killed = zip(lives[:-1], last_saves(notes), strict=False)
    most = sum(life["ended_ns"] - saved for life, saved in killed)
    assert (5.5 + 3.5) * STEP < durations["lost"] / 1e9 < 1.01 * most / 1e9
