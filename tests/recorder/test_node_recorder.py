"""Host samples on their way to the folders of the node and its ranks."""

from __future__ import annotations

import itertools
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from recording import process_file, read_table

from haiprof.common.places import node_name
from haiprof.recorder.node import NodeRecorder

HOUR_NS = 3_600_000_000_000


@pytest.fixture
def node(tmp_path: Path) -> NodeRecorder:
    return NodeRecorder(tmp_path, {"basic": 0.01, "io": 0.01})


@pytest.fixture
def job() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def folder_of(tmp_path: Path) -> Callable[[str], Path]:
    def make(name: str) -> Path:
        (tmp_path / name).mkdir()
        return tmp_path / name

    return make


def sample(node: NodeRecorder, times: int = 3) -> None:
    for _ in range(times):
        time.sleep(max(0.0, (node.next_due_ns - time.monotonic_ns()) / 1e9))
        node.sample()


def states(node: NodeRecorder) -> dict[str, str]:
    return {source["name"]: source["state"] for source in process_file(node.folder)["sources"]}


def rows(folder: Path) -> list[dict[str, Any]]:
    return read_table(folder, "samples").to_pylist()


def test_sources_of_a_process_are_reported_as_they_were_while_it_was_watched(
    node: NodeRecorder, job: subprocess.Popen[bytes], folder_of: Callable[[str], Path]
) -> None:
    assert states(node)["process"] == "absent"
    rank = folder_of("rank")
    node.watch(job.pid, rank)
    sample(node)
    assert states(node)["process"] == "ok"  # in the live file too
    while_watched = states(node)
    job.kill()
    job.wait()
    sample(node)
    node.unwatch(job.pid, rank)
    sample(node)
    node.close()
    assert process_file(node.folder)["state"] == "closed"
    assert states(node) == while_watched


def test_a_wall_clock_that_is_set_moves_no_sample_and_no_event(
    node: NodeRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = time.time_ns
    begun = real()
    node.event("recorder", "before")
    sample(node)
    monkeypatch.setattr(time, "time_ns", lambda: real() + HOUR_NS)
    node.event("recorder", "after")
    sample(node)
    node.close()
    stamps = [row["time"] for row in rows(node.folder)]
    stamps += [row["time"] for row in read_table(node.folder, "events").to_pylist()]
    assert len(set(stamps)) > 4
    assert all(begun - HOUR_NS / 60 < stamp < begun + HOUR_NS / 60 for stamp in stamps)
    assert process_file(node.folder)["ended_ns"] < begun + HOUR_NS / 60


def test_the_launched_command_is_an_instance_of_the_node(node: NodeRecorder) -> None:
    node.watch_command(os.getpid())
    sample(node, 5)
    node.close()
    found = {
        (row["metric"], row["instance"])
        for row in rows(node.folder)
        if row["metric"].startswith("proc.")
    }
    assert ("proc.rss.bytes", "command") in found
    # Those that have instances keep them apart.
    assert ("proc.context_switches.per_s", "command voluntary") in found
    assert ("proc.context_switches.per_s", "command involuntary") in found
    assert all(str(instance).startswith("command") for _, instance in found)


def test_two_rings_of_one_process_follow_each_other(
    node: NodeRecorder, job: subprocess.Popen[bytes], folder_of: Callable[[str], Path]
) -> None:
    first, second = folder_of("first"), folder_of("second")
    node.watch(job.pid, first)
    sample(node)
    node.watch(job.pid, second)
    assert list(first.glob("*.arrow"))  # whole and closed
    assert not list(first.glob("*.arrows"))
    sample(node)
    node.unwatch(job.pid, first)  # the end of the first ring is none of the second
    ended = time.time_ns()
    sample(node, 20)  # a source that is dear at this rate is read less often
    node.unwatch(job.pid, second)
    last = time.time_ns()
    sample(node)
    node.close()
    resident = [
        [row["time"] for row in rows(folder) if row["metric"] == "proc.rss.bytes"]
        for folder in (first, second)
    ]
    assert all(a < b for a, b in itertools.pairwise(resident[0] + resident[1]))
    assert resident[0]
    assert ended < resident[1][-1] < last


def test_a_folder_that_is_not_watched_is_nothing_to_end(node: NodeRecorder, tmp_path: Path) -> None:
    node.unwatch(os.getpid(), tmp_path / "none")
    sample(node)
    node.close()
    assert (node.folder.name, process_file(node.folder)["role"]) == (node_name(), "node")


def test_a_recorder_that_is_not_named_is_left_out(tmp_path: Path) -> None:
    node = NodeRecorder(tmp_path, {"basic": 0.01})
    sample(node)
    node.close()
    assert "disk" not in states(node)
    assert {row["metric"] for row in rows(node.folder)} & {"cpu.busy.percent", "mem.total.bytes"}


def test_each_recorder_has_an_interval_of_its_own(tmp_path: Path) -> None:
    node = NodeRecorder(tmp_path, {"basic": 0.01, "io": 3600.0})
    sample(node)
    assert node.next_due_ns - time.monotonic_ns() < 1e9
    intervals = {
        source["name"]: source["interval_s"] for source in process_file(node.folder)["sources"]
    }
    assert (intervals["cpu"], intervals["disk"]) == (0.01, 3600.0)
    node.close()


def test_a_node_that_is_not_sampled_waits_for_nothing(tmp_path: Path) -> None:
    node = NodeRecorder(tmp_path, {})
    assert node.next_due_ns > time.monotonic_ns() + HOUR_NS
    node.sample()
    node.close()
    assert process_file(node.folder)["sources"] == []


def test_two_recorders_of_one_host_name_have_a_folder_each(tmp_path: Path) -> None:
    first = NodeRecorder(tmp_path, {"basic": 0.01})
    second = NodeRecorder(tmp_path, {"basic": 0.01})
    assert second.folder.name == f"{first.folder.name}.2"
    sample(first)
    sample(second)
    first.close()
    # Its folder is free again, for a recorder that takes over.
    third = NodeRecorder(tmp_path, {"basic": 0.01})
    assert third.folder == first.folder
    sample(third)
    for node in (second, third):
        node.close()
        assert rows(node.folder)
        assert process_file(node.folder)["state"] == "closed"


def test_a_folder_that_could_not_be_opened_is_free_for_the_next_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(NodeRecorder, "_write_node_file", full)
        for _ in range(3):
            with pytest.raises(OSError, match="No space"):
                NodeRecorder(tmp_path, {"basic": 0.01})
    node = NodeRecorder(tmp_path, {"basic": 0.01})
    assert [path.name for path in tmp_path.iterdir()] == [node.folder.name] == [node_name()]
    node.close()
