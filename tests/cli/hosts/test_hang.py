"""``haiprof hang --nodes``: ranks of two hosts are one job."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import haiprof
from control_jobs import STEPS
from emulated_hosts import Cluster, emulated

from haiprof.cli.hang import _look_there
from haiprof.common.wait_graph import Group, Rank, Wait
from haiprof.control.doing import Doing
from haiprof.control.hang import Hang, Looked, Seen, verdict
from haiprof.control.native_culprits import add_native

pytestmark = pytest.mark.skipif(
    sys.version_info >= (3, 15), reason="the layout of this Python is not known"
)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A rank on each host."""
    (tmp_path / "train.py").write_text(textwrap.dedent(STEPS.format(before="", each="")))
    with emulated(tmp_path, "train.py", "logs") as cluster:
        yield cluster


def test_ranks_of_all_hosts_are_looked_at_together(cluster: Cluster) -> None:
    done = haiprof("hang", "train.py", "--nodes", "n1,n2")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Nothing hangs: ")
    assert "ranks 0, 1: each " in done.stdout or (
        "rank 0: " in done.stdout and "rank 1: " in done.stdout
    )


def test_a_host_that_does_not_answer_leaves_the_answer_open(cluster: Cluster) -> None:
    done = haiprof("hang", "train.py", "--nodes", "n1,n9")
    assert done.returncode == 3
    assert "n9" in done.stderr
    assert "Nothing hangs" in done.stdout


def test_native_frames_come_from_the_host_of_the_culprit(cluster: Cluster) -> None:
    stacks = haiprof("stacks", "train.py", "--nodes", "n2", "--json")
    (pid,) = (each["pid"] for each in json.loads(stacks.stdout))
    culprit = Doing(1, pid, "", "", None, ("f",), host="n2", busy_thread=(pid, pid))
    seen = Seen(hang=Hang("rank_never_arrived", "p", "a", (1,), (0,), 6.0, (culprit,)))
    add_native(seen, _look_there)
    assert seen.problems == []
    assert seen.hang is not None
    assert len(seen.hang.culprits[0].native) > 1


def looked(rank: int, asked: int, *waits: Wait) -> Looked:
    progress = Rank({"0": Group("0", 3, asked, "all_reduce", 4, "fp32")}, waits)
    doing = Doing(rank, 100 + rank, "waiting", "sleeps, at nap (/job/t.py:9)", None, ("nap",))
    return Looked("r", rank, progress, None, doing, 3)


def test_what_hosts_say_is_one_verdict() -> None:
    wait = Wait("0", 7, "all_reduce", age_s=60.0)
    said = [looked(0, 7, wait), looked(1, 6), looked(2, 7, wait)]
    hosts = ["n1", "n2", "n2"]
    ranks = [
        Looked.from_json(json.loads(json.dumps(one.as_json())), host)
        for one, host in zip(said, hosts, strict=True)
    ]
    hang = verdict(ranks).hang
    assert hang is not None
    assert (hang.kind, hang.ranks, hang.waiting) == ("rank_never_arrived", (1,), (0, 2))
    assert hang.culprits[0].host == "n2"
    assert hang.problem == (
        "Rank 1 never came to all_reduce number 7 of group 0; ranks 0, 2 have waited for 60 s; "
        "rank 1 sleeps, at nap (/job/t.py:9)"
    )
    # Without the host that it is on, it is missing.
    hang = verdict(ranks[:1]).hang
    assert hang is not None
    assert "no process of ranks 1, 2 was found" in hang.problem


def test_by_itself_only_what_has_not_ended_for_certain_counts() -> None:
    wait = Wait("0", 7, "all_reduce", age_s=60.0, known=False)
    ranks = [looked(0, 7, wait), looked(1, 6), looked(2, 7, wait)]
    assert verdict(ranks).hang is not None
    assert verdict(ranks, known=True).hang is None
