"""What the node's file says of the machine, and where the recorder looks for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from commands import UNTIL_END, haiprof, start_haiprof, the_run
from host_trees import FILES, Node
from recording import process_file, read_table, wait_for

from haiprof import _core
from haiprof.common.places import Access, node_name
from haiprof.options import HOST_RECORDERS
from haiprof.recorder import machine, synchronised
from haiprof.recorder import node as node_module
from haiprof.recorder.node import NodeRecorder


@pytest.fixture
def tree(tmp_path: Path) -> Node:
    """A machine with three NUMA nodes and 1000 kB of memory."""
    node = Node(tmp_path / "tree")
    for name, content in FILES.items():
        node.write(name, content)
    for number in range(3):
        node.write_sys(f"devices/system/node/node{number}/cpulist", f"{number}\n")
    node.write_sys("devices/system/node/possible", "0-2\n")
    return node


def test_the_machine_is_described_by_the_tree_that_is_given(tree: Node) -> None:
    machine_document = machine.describe(Access(str(tree.procfs), str(tree.sysfs)))
    assert set(machine_document) == {
        "cpu",
        "sockets",
        "numa_nodes",
        "dram_peak_bytes_per_s",
        "clock_error_ns",
        "dram_peak_how",
    }
    assert machine_document["numa_nodes"] == 3
    assert machine_document["dram_peak_bytes_per_s"] is None


def test_a_plan_that_fails_leaves_the_rest_of_the_description(
    tree: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(**_: object) -> None:
        raise RuntimeError("no plan today")

    monkeypatch.setattr(_core, "uncore_plan", fails)
    machine_document = machine.describe(Access(str(tree.procfs), str(tree.sysfs)))
    assert (machine_document["numa_nodes"], machine_document["cpu"]) == (3, None)
    assert "the machine cannot be described" in caplog.text


def test_each_recorder_and_root_reaches_the_sampler(
    tree: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}
    original = _core.HostSampler

    def sampler(**keywords: Any) -> _core.HostSampler:
        given.update(keywords)
        return original(**{name: 0.0 for name in HOST_RECORDERS})

    monkeypatch.setattr(node_module, "HostSampler", sampler)
    intervals = {name: 1.0 + n for n, name in enumerate(HOST_RECORDERS)}
    access = Access(str(tree.procfs), str(tree.sysfs), "/run/p.sock", True)
    NodeRecorder(tmp_path, intervals, access).close()
    assert given == {
        **intervals,
        **access._asdict(),
        "own_procfs": "/proc",
        "own_sysfs": "/sys",
    }


def test_a_run_samples_the_node_that_it_was_given(shm: Path, tree: Node, tmp_path: Path) -> None:
    job = start_haiprof(
        "run", "--log-dir", "logs", "--sysfs-root", tree.sysfs.parent,
        "--procfs-root", tree.procfs, "--basic-interval", "0.05", "--recorders", "basic",
        *UNTIL_END, cwd=tmp_path,
    )  # fmt: skip

    def values(metric: str, instance: str | None) -> list[float]:
        rows = [
            row
            for folder in tmp_path.glob(f"logs/*/{node_name()}")
            for row in read_table(folder, "samples").to_pylist()
        ]
        return [r["value"] for r in rows if (r["metric"], r["instance"]) == (metric, instance)]

    def sampled() -> bool:
        # The command is a process of this machine, whatever the node's /proc is.
        wanted = (("mem.total.bytes", None), ("proc.rss.bytes", "command"))
        return all(len(values(*each)) > 2 for each in wanted)

    try:
        wait_for(sampled, 120, "samples of the node and of the command")
    finally:
        (tmp_path / "END").touch()
        _, err = job.communicate(timeout=120)
    assert job.returncode == 0, err
    folder = the_run(tmp_path / "logs") / node_name()
    assert process_file(folder)["machine"]["numa_nodes"] == 3
    assert set(values("mem.total.bytes", None)) == {1000 * 1024}


@pytest.mark.parametrize(
    ("state", "status", "error_ns"),
    [(0, 0x2001, 2_500_000), (5, 0, None), (0, 0x40, None), (-1, 0, None)],
    ids=["kept right", "in error", "unsynchronised", "refused"],
)
def test_what_the_kernel_says_about_its_clock(
    state: int, status: int, error_ns: int | None
) -> None:
    assert synchronised.error_of(state, status, 2500) == error_ns


def test_the_clock_of_this_machine_is_looked_at(tmp_path: Path) -> None:
    error_ns = synchronised.clock_error_ns()
    assert error_ns is None or error_ns >= 0
    NodeRecorder(tmp_path, {}, Access()).close()
    found = process_file(tmp_path / node_name())["machine"]["clock_error_ns"]
    assert (found is None) == (error_ns is None)


def test_a_root_that_is_none_stops_the_command_line_before_the_command(tmp_path: Path) -> None:
    done = haiprof("run", "--sysfs-root", tmp_path, "touch", tmp_path / "ran")
    assert done.returncode == 2
    assert done.stderr.startswith(f"haiprof: --sysfs-root '{tmp_path}' is not a sysfs: there is no")
    assert not (tmp_path / "ran").exists()


def test_options_in_run_json_name_the_roots(shm: Path, tree: Node, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    haiprof("run", "--log-dir", logs, "--sysfs-root", tree.sysfs, "--resctrl", "true")
    options = json.loads((the_run(logs) / "run.json").read_text())["options"]
    assert (options["sysfs_root"], options["resctrl"]) == (str(tree.sysfs), True)
