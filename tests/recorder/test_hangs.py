"""A job that hangs says so by itself, whoever started its recording, and shows it meanwhile."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from commands import haiprof, start_haiprof
from hanging import Job, hanging
from recording import read_table, recorders, wait_for

from haiprof.common.hang_files import Hang, hang_of
from haiprof.common.owned_files import Folder
from haiprof.recorder.hangs import _report

FOUND: dict[str, Any] = {
    "kind": "rank_never_arrived", "problem": "Rank 1 never came", "advice": "look", "ranks": [1],
    "waiting": [0], "lasts_s": 64.0, "culprits": [],
}  # fmt: skip

#: Rank 1 does nothing until the file END is there.
HANGS = """
joined()
trained()
def naps():
    hangs()
    while not os.path.exists("END"):
        time.sleep(0.1)
if RANK == 1:
    naps()
else:
    hangs()
sum_up()
"""


def files(run: Path) -> list[Path]:
    return list(run.glob("hang-*.json"))


def rows(run: Path) -> list[dict[str, Any]]:
    """Return the events of hangs of the only node."""
    (node,) = (path.parent for path in run.glob("*/process.json") if "#" not in path.parent.name)
    events = read_table(node, "events").to_pylist()
    return [event for event in events if event["kind"] == "hang"]


def check_it_says_so_once(job: Job, run: Path) -> None:
    """Check a hang, while it lasts and afterwards."""
    (file,) = wait_for(lambda: files(run), seconds=120, what="the report of the hang")
    hang = json.loads(file.read_text())["hang"]
    assert (hang["kind"], hang["ranks"], hang["waiting"]) == ("rank_never_arrived", [1], [0])
    wait_for(lambda: rows(run), what="its event")
    listed = haiprof("ps").stdout.splitlines()
    assert sum(" hangs " in line and str(run) in line for line in listed) == 2
    assert sum(line.startswith(f"{run.name} hangs since ") for line in listed) == 1
    first = haiprof("top", run, "--once").stdout.splitlines()[0]
    assert "hangs (waits for rank 1, at naps (" in first
    (job.folder / "END").touch()
    begins, over = wait_for(lambda: len(found := rows(run)) > 1 and found, what="its end")
    assert begins["text"] == f"the job hangs. {hang['problem']}"
    assert json.loads(begins["attributes"])["ranks"] == [1]
    assert over["text"].startswith(("the job goes on after ", "the ranks that waited have ended"))
    said = (job.folder / "0.txt").read_text().splitlines()
    (line,) = (line for line in said if "hangs" in line)
    assert line == f"haiprof: the job hangs. {hang['problem']}; to do: {hang['advice']}"
    assert "hangs" not in (job.folder / "1.txt").read_text()
    assert len(files(run)) == 1


@pytest.mark.jobs
def test_a_job_that_begins_to_record_itself(shm: Path, tmp_path: Path) -> None:
    program = f"import haiprof; haiprof.start(hang_after=2)\n{HANGS}\ntime.sleep(30)"
    with hanging(tmp_path, program, 2, enabled=0) as job:
        check_it_says_so_once(job, tmp_path / "logs" / tmp_path.name)


@pytest.mark.jobs
def test_a_job_that_was_attached_to(shm: Path, tmp_path: Path) -> None:
    program = f"""
joined()
trained()
hangs()
while not os.path.exists("logs/r/GO"):
    sum_up()
    time.sleep(0.01)
    stop = torch.tensor(float(os.path.exists("GO")))
    dist.all_reduce(stop)
    if stop:
        break
{HANGS.replace("joined()", "")}
time.sleep(30)
"""
    with hanging(tmp_path, program, 2, enabled=0) as job:
        words = ("--time", "600", "--hang-after", "2", "--log-dir", "logs", "--name", "r")
        attaching = start_haiprof("attach", job.script, *words, cwd=tmp_path)
        try:
            run = tmp_path / "logs/r"
            wait_for(lambda: len(list(run.glob("*#*/spans-*"))) == 2, what="both ranks' records")
            (tmp_path / "GO").touch()
            check_it_says_so_once(job, run)
        finally:
            attaching.terminate()
            attaching.communicate(timeout=120)


@pytest.mark.jobs
def test_ranks_whose_numbers_no_launcher_gave_them(shm: Path, tmp_path: Path) -> None:
    program = """
def rank(number):
    os.environ.update(RANK=str(number), LOCAL_RANK=str(number), WORLD_SIZE="2")
    import haiprof
    haiprof.start(hang_after=2)
    joined()
    trained()
    if number == 1:
        hangs()
        time.sleep(600)
    sum_up()
if __name__ == "__main__":
    torch.multiprocessing.spawn(rank, nprocs=2)
"""
    run = tmp_path / "logs" / tmp_path.name
    with hanging(tmp_path, program, 1, enabled=0):
        (file,) = wait_for(lambda: files(run), seconds=120, what="the report of the hang")
    hang = json.loads(file.read_text())["hang"]
    assert (hang["ranks"], hang["waiting"]) == ([1], [0])


@pytest.mark.jobs
def test_a_recorder_that_takes_over_does_not_say_it_again(shm: Path, tmp_path: Path) -> None:
    program = f"{HANGS}\ntime.sleep(60)"
    run = tmp_path / "logs" / tmp_path.name
    with hanging(tmp_path, program, 2, hang_after=2) as job:
        wait_for(lambda: files(run) and rows(run), seconds=120, what="the report of the hang")
        (recorder,) = recorders(shm)
        os.kill(recorder, 9)
        assert haiprof("recover").returncode == 0
        wait_for(lambda: len(rows(run)) == 3, what="its successor's look")
        (job.folder / "END").touch()
        wait_for(lambda: len(rows(run)) == 4, what="the end of the hang")
        over = [json.loads(row["attributes"])["over"] for row in rows(run)]
        assert over == [False, True, False, True]
        assert len(files(run)) == 1
        assert (job.folder / "0.txt").read_text().count("the job hangs") == 1


def hang(seen_s: float, **changes: Any) -> Hang:
    return hang_of({**FOUND, **changes}, int(seen_s * 1e9))


def test_a_hang_is_kept_once_and_each_has_a_file(tmp_path: Path) -> None:
    run = Folder.at(tmp_path)

    def kept(one: Hang, since_s: float) -> bool:
        return _report(run, one, FOUND, int(since_s * 1e9))

    assert kept(hang(1000), 940)
    assert not kept(hang(1010), 940)
    assert kept(hang(1010, ranks=[2]), 940)
    assert kept(hang(1100), 1040), "it had gone on meanwhile"
    (tmp_path / "hang-x.json").write_text("{")
    assert kept(hang(1200), 1140)
    assert len(files(tmp_path)) == 5
