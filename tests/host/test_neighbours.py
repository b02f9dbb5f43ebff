"""Who else uses the CPUs of a node."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from host_trees import Key, Node, reason

from haiprof import _core

HERTZ = os.sysconf("SC_CLK_TCK")
PID = 10
ME = os.getuid()


@pytest.fixture
def node(tmp_path: Path) -> Node:
    made = Node(tmp_path)
    made.write("self/root/etc/passwd", f"broken\n:x:\nalice:x:{ME}:5:Alice:/:/bin/sh\n")
    made.process(PID)
    return made


def watching(node: Node) -> _core.HostSampler:
    sampler = node.sampler(10.0)
    sampler.watch(PID)
    node.tick(sampler)
    return sampler


def cores(values: dict[Key, float]) -> dict[str | None, float]:
    return {name: v for (_, metric, name), v in values.items() if metric == "cpu.neighbour.cores"}


def test_programs_of_one_name_and_user_are_one(node: Node) -> None:
    node.process(20, ticks=100, name="make me (x)")
    node.process(21, ticks=900, name="make me (x)")
    node.process(22, ticks=50, name="idle")
    sampler = watching(node)
    node.process(20, ticks=100 + 5 * HERTZ, name="make me (x)")
    node.process(21, ticks=900 + 10 * HERTZ, name="make me (x)")
    node.process(22, ticks=50 + HERTZ // 10, name="idle")
    assert cores(node.tick(sampler, 10.0)) == {"make me (x) (alice)": pytest.approx(1.5)}
    # Who has stopped uses nothing, and is not forgotten.
    assert cores(node.tick(sampler, 10.0)) == {"make me (x) (alice)": 0.0}


def test_what_was_started_meanwhile_counts_from_its_start(node: Node) -> None:
    sampler = watching(node)
    node.process(30, ticks=2 * HERTZ, name="cc1plus")
    assert cores(node.tick(sampler, 10.0)) == {"cc1plus (alice)": pytest.approx(0.2)}
    # The number is another program's now.
    node.process(30, ticks=HERTZ, start=900, name="cc1plus")
    assert cores(node.tick(sampler, 10.0)) == {"cc1plus (alice)": pytest.approx(0.1)}


def test_the_job_and_the_recorder_are_nobodys_neighbours(node: Node) -> None:
    node.process(11, PID, name="worker")
    node.process(os.getpid(), name="recorder")
    node.process(40, os.getpid(), name="look")
    sampler = watching(node)
    for pid, parent in ((PID, 1), (11, PID), (12, 11), (os.getpid(), 1), (40, os.getpid())):
        node.process(pid, parent, ticks=9 * HERTZ, name="busy")
    assert cores(node.tick(sampler, 10.0)) == {}


def test_names_are_made_safe_and_workers_of_the_kernel_are_one(node: Node) -> None:
    names = {50: "a\x1b[2Jb", 51: "kworker/0:1", 52: "kworker/3:2-events", 53: "/x"}
    for pid, name in names.items():
        node.process(pid, name=name)
    sampler = watching(node)
    for pid, name in names.items():
        node.process(pid, ticks=HERTZ, name=name)
    assert cores(node.tick(sampler, 10.0)) == {
        "a?[2Jb (alice)": pytest.approx(0.1),
        "kworker (alice)": pytest.approx(0.2),
        "/x (alice)": pytest.approx(0.1),
    }


def test_a_user_without_a_name_has_a_number(node: Node) -> None:
    node.write("self/root/etc/passwd", "")
    sampler = watching(node)
    node.process(60, ticks=HERTZ, name="x")
    assert cores(node.tick(sampler, 10.0)) == {f"x (uid {ME})": pytest.approx(0.1)}


def test_names_that_come_and_go_are_not_kept_for_ever(node: Node) -> None:
    sampler = watching(node)
    for pid in range(100, 300):
        node.process(pid, ticks=HERTZ, name=f"name{pid}")
    assert len(cores(node.tick(sampler, 10.0))) == 64


def test_broken_files_are_left_out(node: Node) -> None:
    sampler = watching(node)
    for pid, text in ((70, ""), (71, "71 (x"), (72, "72 (x) S 1"), (73, "73 )(" + " 1" * 40)):
        node.write(f"{pid}/stat", text)
    node.process(74, ticks=HERTZ, name="x")
    assert cores(node.tick(sampler, 10.0)) == {"x (alice)": pytest.approx(0.1)}


def test_nothing_watched(node: Node) -> None:
    sampler = node.sampler(10.0)
    node.tick(sampler, 10.0)
    node.process(80, ticks=HERTZ)
    assert cores(node.tick(sampler, 10.0)) == {}
    assert "no process is watched" in reason(sampler, "neighbours")
