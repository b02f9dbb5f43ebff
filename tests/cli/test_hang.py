"""Jobs that hang in many ways: which rank is to blame, and why."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from commands import haiprof, only_line
from hanging import Job, hanging
from recording import wait_for

pytestmark = pytest.mark.jobs


def verdict(job: Job) -> dict[str, Any]:
    """Return why a job hangs, as soon as it has hung for long enough."""

    def found() -> dict[str, Any] | None:
        done = haiprof("hang", job.script, "--seconds", "1", "--json")
        assert done.returncode in (0, 3, 4), done.stderr
        (only,) = json.loads(done.stdout)["jobs"]
        hang: dict[str, Any] | None = only["hang"]
        assert (hang is not None) == (done.returncode == 4)
        return hang

    seen: dict[str, Any] = wait_for(found, seconds=90, what="a verdict")
    return seen


NEVER = """
joined()
trained()
def naps():
    hangs()
    time.sleep(600)
if RANK == 1:
    naps()
else:
    hangs()
    sum_up()
"""


def test_a_rank_that_never_comes_is_named_with_what_it_does(shm: Path, tmp_path: Path) -> None:
    with hanging(tmp_path, NEVER, 3) as job:
        hang = verdict(job)
        text = haiprof("hang", job.script, "--seconds", "1").stdout
        native = haiprof("hang", job.script, "--seconds", "1", "--native").stdout
    assert (hang["kind"], hang["ranks"], hang["waiting"]) == ("rank_never_arrived", [1], [0, 2])
    assert hang["culprits"][0]["native"] == []
    assert "innermost first:\n    naps (" in text
    below = native[native.index("innermost first:") :].splitlines()[1:]
    assert "nanosleep" in below[0]
    assert any(line.startswith("    naps (") for line in below[1:])
    assert hang["culprits"][0]["line"].startswith("naps (")
    assert "rank 1 never came to all_reduce number" in hang["problem"].lower()
    assert text.splitlines()[0] == hang["problem"] or "never came" in text.splitlines()[0]
    assert "naps" in text


def test_ranks_that_wait_in_ddp_s_backward_wait_for_the_one_that_does_not(
    shm: Path, tmp_path: Path
) -> None:
    program = """
joined()
trained()
if RANK == 1:
    hangs()
    time.sleep(600)
threading.Timer(0.5, hangs).start()
trained()
"""
    with hanging(tmp_path, program, 2) as job:
        hang = verdict(job)
    assert (hang["kind"], hang["ranks"], hang["waiting"]) == ("rank_never_arrived", [1], [0])


def test_a_rank_in_its_loader_and_one_that_is_stopped(shm: Path, tmp_path: Path) -> None:
    program = """
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        hangs()
        time.sleep(600)
if __name__ == "__main__":
    joined()
    trained()
    if RANK == 0:
        next(iter(torch.utils.data.DataLoader(Data(), num_workers=1)))
    else:
        hangs()
        sum_up()
"""
    with hanging(tmp_path, program, 2) as job:
        hang = verdict(job)
        assert (hang["kind"], hang["ranks"]) == ("rank_never_arrived", [0])
        assert "waits for its DataLoader, whose worker (pid " in hang["problem"]
        assert hang["culprits"][0]["line"].startswith("Data.__getitem__ (")
        text = haiprof("hang", job.script, "--seconds", "1").stdout
        assert "its DataLoader's worker, innermost first:\n    Data.__getitem__ (" in text
        done = haiprof("hang", job.script, "--seconds", "1", "--native", "--json")
        (culprit,) = json.loads(done.stdout)["jobs"][0]["hang"]["culprits"]
        assert "nanosleep" in culprit["native"][0]
        assert any("__getitem__ (" in frame for frame in culprit["native"])
        os.kill(job.ranks[0].pid, signal.SIGSTOP)
        stopped = wait_for(
            lambda: found if (found := verdict(job))["kind"] == "stopped" else None, seconds=60
        )
    assert stopped["ranks"] == [0]


def test_a_script_that_sleeps_after_its_training_says_where(shm: Path, tmp_path: Path) -> None:
    program = """
model = nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(9):
    optimizer.zero_grad()
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
hangs()
time.sleep(600)
"""
    with hanging(tmp_path, program, 1, hang_after=2) as job:

        def said() -> str:
            done = haiprof("hang", job.script, "--seconds", "1")
            assert done.returncode == 0, done.stdout
            return done.stdout

        wait_for(lambda: ", in no loop of its training" in said(), what="its sleep")
        assert said().startswith("Nothing hangs: The job has got no further for ")
        assert ", at <module> (" in said()
    assert not list((tmp_path / "logs" / tmp_path.name).glob("hang-*"))


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        ("sum_up()", "dist.broadcast(torch.ones(4), 0)", "asked for broadcast of 4 elements"),
        ("sum_up()", "dist.barrier()", "asked for barrier"),
    ],
    ids=["broadcast", "barrier"],
)
def test_ranks_that_disagree(shm: Path, tmp_path: Path, one: str, other: str, words: str) -> None:
    program = f"""
joined()
trained()
hangs()
if RANK == 2:
    {other}
else:
    {one}
time.sleep(600)
"""
    with hanging(tmp_path, program, 3) as job:
        hang = verdict(job)
    assert (hang["kind"], hang["ranks"]) == ("collective_mismatch", [2])
    assert words in hang["problem"]


def test_two_groups_in_opposite_order(shm: Path, tmp_path: Path) -> None:
    program = """
joined()
trained()
groups = [dist.new_group([0, 1]) for _ in range(2)]
hangs()
for group in groups if RANK == 0 else groups[::-1]:
    sum_up(group)
"""
    with hanging(tmp_path, program, 2) as job:
        hang = verdict(job)
    assert (hang["kind"], hang["ranks"]) == ("crossed_collectives", [0, 1])


def test_a_receive_that_nobody_sends_for(shm: Path, tmp_path: Path) -> None:
    program = """
joined()
trained()
hangs()
dist.recv(torch.ones(4), src=1 - RANK)
"""
    with hanging(tmp_path, program, 2) as job:
        hang = verdict(job)
    assert (hang["kind"], hang["ranks"]) == ("unmatched_send", [0, 1])


def test_a_rank_with_fewer_batches(shm: Path, tmp_path: Path) -> None:
    program = """
joined()
trained()
hangs()
if RANK != 1:
    sum_up()
dist.destroy_process_group()
time.sleep(600)
"""
    with hanging(tmp_path, program, 2) as job:
        hang = verdict(job)
    assert hang["ranks"] == [1]
    assert hang["kind"] in ("uneven_inputs", "rank_never_arrived")


def test_a_rank_that_never_starts(shm: Path, tmp_path: Path) -> None:
    program = "threading.Timer(1, hangs).start()\njoined()"
    with hanging(tmp_path, program, 3, started=2) as job:
        hang = verdict(job)
    assert (hang["kind"], hang["ranks"], hang["waiting"]) == ("rendezvous", [2], [0, 1])
    assert "no process of rank 2 was found" in hang["problem"]


def test_a_rank_at_a_breakpoint_keeps_the_others_and_none_hangs(shm: Path, tmp_path: Path) -> None:
    program = """
joined()
trained()
def looks():
    hangs()
    import pdb
    pdb.Pdb(stdin=open(os.pipe()[0]), stdout=open(os.devnull, "w")).set_trace()
if RANK == 1:
    looks()
hangs()
sum_up()
"""
    with hanging(tmp_path, program, 2) as job:

        def found() -> Any:
            done = haiprof("hang", job.script, "--seconds", "1")
            return done if done.stdout.startswith("Nothing hangs: Rank 1 ") else None

        done = wait_for(found, seconds=90, what="that rank 0 waits")
    assert done.returncode == 0
    assert "; rank 1 is at a breakpoint, at looks (" in done.stdout.splitlines()[0]


def test_what_goes_on_does_not_hang(shm: Path, tmp_path: Path) -> None:
    program = """
joined()
trained()
hangs()
while True:
    time.sleep(0.2 if RANK == 1 else 0)  # late, and no hang
    sum_up()
"""
    with hanging(tmp_path, program, 2) as job:
        done = haiprof("hang", job.script)
    assert done.returncode == 0, done.stdout
    assert done.stdout.startswith("Nothing hangs: ")


def test_each_job_of_a_node_has_a_verdict_of_its_own(shm: Path, tmp_path: Path) -> None:
    goes_on = """
joined()
trained()
hangs()
while True:
    sum_up()
    time.sleep(0.05)
"""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    with hanging(tmp_path / "a", NEVER, 2), hanging(tmp_path / "b", goes_on, 2):

        def found() -> list[Any] | None:
            done = haiprof("hang", "--seconds", "1", "--json")
            jobs: list[Any] = json.loads(done.stdout)["jobs"]
            return jobs if done.returncode == 4 else None

        jobs = wait_for(found, seconds=60, what="a verdict")
        text = haiprof("hang", "--seconds", "1").stdout
    hangs = {job["run"]: job["hang"] for job in jobs}
    assert hangs["b"] is None
    assert hangs["a"]["ranks"] == [1]
    assert {"a:", "b:"} <= set(text.splitlines())


def test_there_is_no_such_job(shm: Path) -> None:
    done = haiprof("hang", "no-such-job.py")
    assert done.returncode == 2
    assert "no-such-job.py: no Python process on this node runs it" in only_line(done)
