"""``haiprof stacks --nodes``: of a job that two emulated hosts run."""

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
    done = haiprof("stacks", "--json", "--nodes", "n1,n2")
    assert (done.returncode, done.stderr) == (0, "")
    looked = json.loads(done.stdout)
    assert [process["label"].partition(",")[0] for process in looked] == [
        "n1: rank 0",
        "n2: rank 1",
    ]
    for process in looked:
        assert process["threads"][0]["frames"][-1]["function"] == "<module>"
    text = haiprof("stacks", "train.py", "--nodes", "n1,n2").stdout
    assert "ranks 0-1" in text or "n1: rank 0" in text


def test_a_host_that_does_not_answer_is_named(cluster: Cluster) -> None:
    done = haiprof("stacks", "--nodes", "n1,n9")
    assert done.returncode == 3
    assert "n9" in done.stderr
    assert "n1: rank 0" in done.stdout
