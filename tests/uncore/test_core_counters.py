"""Which machines distinguish near from far memory. What is counted is tested natively."""

from __future__ import annotations

from pathlib import Path

import pytest
from host_trees import Node, reason, states

from haiprof import _core


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def counters(node: Node) -> _core.HostSampler:
    return _core.HostSampler(procfs=str(node.procfs), sysfs=str(node.sysfs), basic=0, io=0)


def test_cpu_whose_counters_are_not_known(node: Node) -> None:
    node.write("cpuinfo", "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 158\n")
    sampler = counters(node)
    assert states(sampler)["core_counters"] == "absent"
    assert "are known for GenuineIntel family 6 model 158" in reason(sampler, "core_counters")


@pytest.mark.parametrize("text", [None, "", "vendor_id\t: AuthenticAMD\n", "model : x\n" * 9])
def test_machine_that_does_not_name_its_cpu(node: Node, text: str | None) -> None:
    if text is not None:
        node.write("cpuinfo", text)
    sampler = counters(node)
    assert states(sampler)["core_counters"] == "absent"
    assert "does not say which CPU this is" in reason(sampler, "core_counters")


def test_known_cpu_without_a_pmu(node: Node) -> None:
    if Path("/sys/bus/event_source/devices/cpu").exists():
        pytest.skip("this machine has counters of its cores")
    node.write("cpuinfo", "vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 1\n")
    sampler = counters(node)
    sampler.watch(10)
    assert not any(m == "proc.far_fills.ratio" for _, m, _ in node.tick(sampler))
    assert states(sampler)["core_counters"] == "absent"
    assert "a virtual machine mostly has none" in reason(sampler, "core_counters")


def test_it_is_read_once_a_second_at_most(node: Node) -> None:
    sampler = _core.HostSampler(procfs=str(node.procfs), sysfs=str(node.sysfs), mem=0.1)
    [row] = [row for row in sampler.sources() if row["name"] == "core_counters"]
    assert row["interval_s"] == 1.0
