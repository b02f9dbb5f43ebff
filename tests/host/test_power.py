"""Power from files, on trees whose numbers are worked out by hand: powercap and hwmon."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from host_trees import Node, reason, recorded, states, without_rights

from haiprof import _core

RANGE = 262_143_328_850


def zone(node: Node, folder: str, name: str, energy: int, limit: int | None = RANGE) -> None:
    node.write_sys(f"class/powercap/{folder}/name", f"{name}\n")
    node.write_sys(f"class/powercap/{folder}/energy_uj", f"{energy}\n")
    if limit is not None:
        node.write_sys(f"class/powercap/{folder}/max_energy_range_uj", f"{limit}\n")


def use(node: Node, folder: str, energy: int) -> None:
    node.write_sys(f"class/powercap/{folder}/energy_uj", f"{energy}\n")


def power(node: Node, sampler: _core.HostSampler, seconds: float = 1.0) -> dict[str, float]:
    return {
        metric.removesuffix(".power.watts") + (f" {instance}" if instance else ""): value
        for (_, metric, instance), value in node.tick(sampler, seconds).items()
        if metric.endswith(".power.watts")
    }


def make_sampler(node: Node) -> _core.HostSampler:
    return _core.HostSampler(
        procfs=str(node.procfs), sysfs=str(node.sysfs), basic=0, io=0, ib=0, gpu=0, mem=0
    )


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.fixture
def public() -> Iterator[Node]:
    with tempfile.TemporaryDirectory() as folder:
        yield Node(Path(folder))


# ---- powercap


def test_packages_and_their_memory_of_two_sockets(node: Node) -> None:
    zone(node, "intel-rapl:0", "package-0", 1_000_000)
    zone(node, "intel-rapl:0:0", "dram", 500)
    zone(node, "intel-rapl:1", "package-1", 9_000_000)
    zone(node, "intel-rapl:1:0", "dram", 700)
    # Inside of a package, or around all: to add them would count energy twice.
    zone(node, "intel-rapl:0:1", "core", 1_000_000)
    zone(node, "intel-rapl:0:2", "uncore", 1_000_000)
    zone(node, "intel-rapl:2", "psys", 5)
    zone(node, "intel-rapl-mmio:0", "package-0", 1_000_000)
    sampler = make_sampler(node)
    assert power(node, sampler) == {}
    for folder, energy in {
        **{"intel-rapl:0": 201_000_000, "intel-rapl:0:0": 30_000_500},
        **{"intel-rapl:1": 109_000_000, "intel-rapl:1:0": 20_000_700},
        **{"intel-rapl:0:1": 151_000_000, "intel-rapl:2": 900_000_000},
        **{"intel-rapl-mmio:0": 201_000_000},
    }.items():
        use(node, folder, energy)
    assert power(node, sampler, 2.0) == pytest.approx(
        {
            **{"cpu socket0": 100.0, "cpu socket1": 50.0, "cpu": 150.0},
            **{"dram socket0": 15.0, "dram socket1": 10.0, "dram": 25.0},
        }
    )
    assert states(sampler) == {"cpu_power": "ok", "dram_power": "ok", "node_power": "absent"}


def test_zones_that_lie_in_their_package_and_packages_with_gaps_and_dies(node: Node) -> None:
    zone(node, "intel-rapl:0", "package-0-die-0", 0)
    zone(node, "intel-rapl:1", "package-0-die-1", 0)
    zone(node, "intel-rapl:a", "package-10", 0)
    zone(node, "intel-rapl:a/intel-rapl:a:0", "dram", 0)
    sampler = make_sampler(node)
    power(node, sampler)
    for folder in ("intel-rapl:0", "intel-rapl:1", "intel-rapl:a", "intel-rapl:a/intel-rapl:a:0"):
        use(node, folder, 10_000_000)
    # Of the memory of socket0 nothing is known, so the node has no sum.
    assert power(node, sampler) == pytest.approx(
        {"cpu socket0": 20.0, "cpu socket1": 10.0, "cpu": 30.0, "dram socket1": 10.0}
    )


def test_energy_begins_at_0_again_at_its_range(node: Node) -> None:
    zone(node, "intel-rapl:0", "package-0", RANGE - 60_000_000)
    sampler = make_sampler(node)
    power(node, sampler)
    use(node, "intel-rapl:0", 40_000_000)
    assert power(node, sampler)["cpu"] == pytest.approx(100.0)
    # No machine draws what this would take to be a wrap: it was set back.
    use(node, "intel-rapl:0", 10_000_000)
    assert power(node, sampler) == {}
    use(node, "intel-rapl:0", 30_000_000)
    assert power(node, sampler)["cpu"] == pytest.approx(20.0)


def test_energy_of_an_unknown_range_has_no_sample_when_it_goes_back(node: Node) -> None:
    zone(node, "intel-rapl:0", "package-0", 60_000_000, limit=None)
    sampler = make_sampler(node)
    power(node, sampler)
    use(node, "intel-rapl:0", 40_000_000)
    assert power(node, sampler) == {}
    use(node, "intel-rapl:0", 50_000_000)
    assert power(node, sampler)["cpu"] == pytest.approx(10.0)


def test_what_no_socket_draws_is_cut_and_flagged(node: Node) -> None:
    zone(node, "intel-rapl:0", "package-0", 0)
    sampler = make_sampler(node)
    power(node, sampler)
    use(node, "intel-rapl:0", 100_000_000_000)
    node.now += 1_000_000_000
    rows = [row for row in sampler.read(node.now) if row[1] == "cpu.power.watts"]
    assert [row[2:] for row in rows] == [("socket0", 5000.0, 4), (None, 5000.0, 4)]


def test_a_zone_that_breaks_leaves_no_partial_sum_and_is_looked_for_again(node: Node) -> None:
    zone(node, "intel-rapl:0", "package-0", 0)
    zone(node, "intel-rapl:1", "package-1", 0)
    sampler = make_sampler(node)
    power(node, sampler)
    use(node, "intel-rapl:0", 10_000_000)
    assert set(power(node, sampler)) == {"cpu", "cpu socket0", "cpu socket1"}
    node.write_sys("class/powercap/intel-rapl:1/energy_uj", "broken\n")
    use(node, "intel-rapl:0", 30_000_000)
    assert power(node, sampler) == pytest.approx({"cpu socket0": 20.0})
    assert states(sampler)["cpu_power"] == "absent"
    assert "intel-rapl:1/energy_uj holds no number" in reason(sampler, "cpu_power")
    use(node, "intel-rapl:1", 10_000_000)
    assert power(node, sampler, 60.0) == {}
    use(node, "intel-rapl:1", 11_000_000)
    assert power(node, sampler) == pytest.approx(
        {"cpu": 1.0, "cpu socket0": 0.0, "cpu socket1": 1.0}
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="gives up root to be refused")
def test_energy_that_only_root_may_read_is_denied_with_reason_and_fix(public: Node) -> None:
    node = public
    zone(node, "intel-rapl:0", "package-0", 0)
    (node.sysfs / "class/powercap/intel-rapl:0/energy_uj").chmod(0o400)
    with without_rights(node):
        sampler = make_sampler(node)
        assert power(node, sampler) == {}
    assert states(sampler)["cpu_power"] == "denied"
    assert states(sampler)["dram_power"] == "denied"
    text = reason(sampler, "cpu_power")
    assert "intel-rapl:0/energy_uj: Permission denied" in text
    assert "CVE-2020-8694" in text
    assert "CAP_PERFMON" in text


def test_a_machine_that_reports_no_energy_says_so(node: Node) -> None:
    sampler = make_sampler(node)
    assert power(node, sampler) == {}
    assert states(sampler) == dict.fromkeys(("cpu_power", "dram_power", "node_power"), "absent")
    node.write_sys("bus/event_source/devices/software/type", "1\n")
    node.write("cpuinfo", "vendor_id : GenuineIntel\nflags : fpu hypervisor sse\n")
    sampler = make_sampler(node)
    assert "a virtual machine hides them" in reason(sampler, "cpu_power")


# ---- hwmon


def meter(node: Node, number: int, microwatts: int, label: str | None = None, at: str = "") -> None:
    node.write_sys(f"class/hwmon/hwmon{number}/name", "power_meter\n")
    node.write_sys(f"class/hwmon/hwmon{number}/{at}power1_average", f"{microwatts}\n")
    if label is not None:
        node.write_sys(f"class/hwmon/hwmon{number}/{at}power1_oem_info", f"{label}\n")


def test_grace_has_a_meter_of_the_cpu_of_each_socket(node: Node) -> None:
    # The others of Grace overlap with it, and none of them is the node.
    for socket in (1, 0):
        for i, label in enumerate(("Module", "Grace", "CPU", "SysIO")):
            watts = (500, 300, 200, 40)[i] + socket
            number = 4 * socket + i
            meter(node, number, watts * 1_000_000, f"{label} Power Socket {socket}", "device/")
    sampler = make_sampler(node)
    # A meter reports power, which needs no earlier reading.
    wanted = {"cpu socket0": 200.0, "cpu socket1": 201.0, "cpu": 401.0}
    assert power(node, sampler) == pytest.approx(wanted)
    assert power(node, sampler) == pytest.approx(wanted)
    assert states(sampler) == {"cpu_power": "ok", "dram_power": "absent", "node_power": "absent"}


def test_power_of_the_node(node: Node) -> None:
    node.write_sys("class/hwmon/hwmon0/name", "nvme\n")
    node.write_sys("class/hwmon/hwmon0/power1_average", "7000000\n")
    meter(node, 1, 612_000_000)
    sampler = make_sampler(node)
    assert power(node, sampler) == {"node": 612.0}
    assert states(sampler)["node_power"] == "ok"
    meter(node, 1, 0)  # a meter that does not know
    assert power(node, sampler) == {}
    meter(node, 1, 700_500_000)
    assert power(node, sampler) == {"node": 700.5}
    shutil.rmtree(node.sysfs / "class/hwmon/hwmon1")
    assert power(node, sampler) == {}
    assert states(sampler)["node_power"] == "absent"


def test_indistinguishable_meters_are_not_the_node(node: Node) -> None:
    meter(node, 1, 300_000_000)
    meter(node, 2, 312_000_000)
    sampler = make_sampler(node)
    assert power(node, sampler) == {}
    assert "2 power meters" in reason(sampler, "node_power")


# ---- recorded machines


@pytest.mark.parametrize(
    ("name", "sockets", "zone"),
    [
        ("real_bdx_2s_min", 2, "intel-rapl:1"),
        ("procfs", 2, "intel-rapl:a"),
        ("node_exporter", 1, "intel-rapl:0"),
    ],
)
def test_recorded_machines(tmp_path: Path, name: str, sockets: int, zone: str) -> None:
    root = recorded(name, tmp_path)
    sampler = _core.HostSampler(
        procfs=str(root / "proc"), sysfs=str(root / "sys"), basic=0, io=0, ib=0, gpu=0, mem=0
    )
    second = 1_000_000_000
    sampler.read(second)
    path = root / "sys/class/powercap" / zone / "energy_uj"
    path.chmod(0o644)
    path.write_text(f"{int(path.read_text()) + 42_000_000}\n")
    values = {row[2]: row[3] for row in sampler.read(2 * second) if row[1] == "cpu.power.watts"}
    assert values == pytest.approx(
        {
            None: 42.0,
            **{f"socket{i}": 42.0 if i == sockets - 1 else 0.0 for i in range(sockets)},
        }
    )
    assert states(sampler)["dram_power"] == "absent"
