"""Links and errors of PCIe devices, errors of memory, temperatures of disks: the node's devices."""

from __future__ import annotations

from pathlib import Path

import pytest
from host_trees import SECOND, Key, Node, reason, recorded, states

from haiprof import _core

#: All of these are looked at as seldom.
SELDOM = 30.0


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


# ---- links


def device(node: Node, place: str, kind: str, **files: str) -> None:
    """Write a PCI device, and the link by which /sys/bus/pci/devices leads to it."""
    for name, text in {"class": kind, **files}.items():
        node.write_sys(f"devices/pci0000:00/{place}/{name}", text + "\n")
    link = node.sysfs / "bus/pci/devices" / place.rpartition("/")[2]
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.is_symlink():
        link.symlink_to(f"../../../devices/pci0000:00/{place}")


def link(lanes: int, speed: str, most_lanes: int, most_speed: str) -> dict[str, str]:
    return {
        "current_link_width": str(lanes),
        "current_link_speed": speed,
        "max_link_width": str(most_lanes),
        "max_link_speed": most_speed,
    }


PORT = "0000:00:01.0"
GPU = f"{PORT}/0000:01:00.0"
BRIDGE, DISPLAY = "0x060400", "0x030200"


def links(values: dict[Key, float]) -> dict[tuple[str, str | None], float]:
    return {(m, i): v for (_, m, i), v in values.items() if m.startswith("pcie.link")}


def test_a_link_below_what_both_ends_can_do(node: Node) -> None:
    device(node, PORT, BRIDGE, **link(8, "16.0 GT/s PCIe", 16, "32.0 GT/s PCIe"))
    device(node, GPU, DISPLAY, **link(8, "16.0 GT/s PCIe", 16, "32.0 GT/s PCIe"))
    sampler = node.sampler()
    assert links(node.tick(sampler)) == {
        ("pcie.link_width.percent", "0000:01:00.0"): 50.0,
        ("pcie.link_speed.percent", "0000:01:00.0"): 50.0,
    }
    text = "the PCIe link of GPU 0000:01:00.0 uses 8 of 16 lanes"
    facts = {"instance": "0000:01:00.0", "device": "GPU", "lanes": 8, "most_lanes": 16}
    assert sampler.changes() == [("pcie_link", text, facts)]
    node.tick(sampler, SELDOM)
    assert sampler.changes() == []  # once
    device(node, GPU, DISPLAY, **link(16, "32.0 GT/s PCIe", 16, "32.0 GT/s PCIe"))
    assert set(links(node.tick(sampler, SELDOM)).values()) == {100.0}
    assert [text for _, text, _ in sampler.changes()] == [
        "the PCIe link of GPU 0000:01:00.0 uses 16 of 16 lanes"
    ]


def test_a_slot_that_is_smaller_than_what_is_in_it(node: Node) -> None:
    device(node, PORT, BRIDGE, **link(8, "8.0 GT/s PCIe", 8, "8.0 GT/s PCIe"))
    device(node, GPU, DISPLAY, **link(8, "8.0 GT/s PCIe", 16, "16.0 GT/s PCIe"))
    sampler = node.sampler()
    assert set(links(node.tick(sampler)).values()) == {100.0}
    assert sampler.changes() == []


def test_a_port_that_a_hypervisor_made_up(node: Node) -> None:
    device(node, PORT, BRIDGE, **link(1, "2.5 GT/s PCIe", 1, "2.5 GT/s PCIe"))
    device(node, GPU, DISPLAY, **link(16, "32.0 GT/s PCIe", 16, "32.0 GT/s PCIe"))
    sampler = node.sampler()
    assert set(links(node.tick(sampler)).values()) == {100.0}
    assert sampler.changes() == []


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("current_link_width", "255"),
        ("current_link_width", "0"),
        ("max_link_width", "255"),
        ("max_link_speed", "Unknown"),
        ("current_link_speed", ""),
    ],
)
def test_a_link_that_is_not_known(file: str, text: str, node: Node) -> None:
    device(node, GPU, DISPLAY, **link(8, "8.0 GT/s PCIe", 16, "16.0 GT/s PCIe") | {file: text})
    sampler = node.sampler()
    assert links(node.tick(sampler)) == {}
    assert states(sampler)["pcie_links"] == "absent"
    assert sampler.changes() == []


def test_a_device_that_sleeps_is_not_woken(node: Node) -> None:
    device(node, GPU, DISPLAY, **link(16, "2.5 GT/s PCIe", 16, "16.0 GT/s PCIe"))
    node.write_sys(f"devices/pci0000:00/{GPU}/power/runtime_status", "suspended\n")
    sampler = node.sampler()
    assert links(node.tick(sampler)) == {}
    node.write_sys(f"devices/pci0000:00/{GPU}/power/runtime_status", "active\n")
    assert len(links(node.tick(sampler, SELDOM))) == 2


def test_only_devices_that_a_job_may_use(node: Node) -> None:
    for number, kind in enumerate(("0x020000", "0x020700", "0x010802", "0x120000", "0x030000")):
        device(node, f"0000:0{number}:00.0", kind, **link(4, "8 GT/s", 4, "8 GT/s"))
    for number, kind in enumerate(("0x010601", "0x0c0330", "0x060000", "", "x")):
        device(node, f"0000:1{number}:00.0", kind, **link(1, "8 GT/s", 4, "8 GT/s"))
    found = links(node.tick(node.sampler()))
    assert {instance for _, instance in found} == {f"0000:0{number}:00.0" for number in range(5)}


# ---- errors of links


def errors(correctable: int, fatal: int) -> dict[str, str]:
    return {
        "aer_dev_correctable": f"RxErr {correctable}\nBadTLP 0\nTOTAL_ERR_COR {correctable}",
        "aer_dev_nonfatal": "Undefined 0\nTOTAL_ERR_NONFATAL 0",
        "aer_dev_fatal": f"Undefined 0\nTOTAL_ERR_FATAL {fatal}",
    }


def test_errors_of_a_device_and_of_the_port_above_it(node: Node) -> None:
    device(node, PORT, BRIDGE, **errors(0, 0))
    device(node, GPU, DISPLAY, **errors(5, 0))
    device(node, "0000:00:1f.0", "0x060100", **errors(9, 9))  # no device of a job is below it
    sampler = node.sampler()
    node.tick(sampler)
    assert states(sampler)["pcie_errors"] == "ok"
    device(node, PORT, BRIDGE, **errors(0, 3))
    device(node, GPU, DISPLAY, **errors(65, 0))
    device(node, "0000:00:1f.0", "0x060100", **errors(99, 99))
    found = {k[1:]: v for k, v in node.tick(sampler, SELDOM).items() if "errors" in k[1]}
    assert found == {
        ("pcie.correctable_errors.per_s", "0000:01:00.0"): pytest.approx(2.0),
        ("pcie.fatal_errors.per_s", "0000:00:01.0"): pytest.approx(0.1),
    }


def test_a_kernel_that_counts_no_errors(node: Node) -> None:
    device(node, GPU, DISPLAY, **link(16, "16.0 GT/s PCIe", 16, "16.0 GT/s PCIe"))
    sampler = node.sampler()
    node.tick(sampler)
    assert states(sampler)["pcie_links"] == "ok"
    assert states(sampler)["pcie_errors"] == "absent"
    assert "CONFIG_PCIEAER" in reason(sampler, "pcie_errors")


def test_a_recorded_workstation(tmp_path: Path) -> None:
    root = recorded("node_exporter", tmp_path)
    sampler = _core.HostSampler(procfs=str(root / "proc"), sysfs=str(root / "sys"), kmsg="")
    values = {row[:3]: row[3] for row in sampler.read(SECOND)}
    assert links(values) == {
        (metric, device): 100.0
        for metric in ("pcie.link_width.percent", "pcie.link_speed.percent")
        for device in ("0000:01:00.0", "0000:45:00.0")
    }
    assert states(sampler)["pcie_links"] == states(sampler)["pcie_errors"] == "ok"


# ---- memory


def test_errors_of_memory_by_controller(node: Node) -> None:
    for controller, found in (("mc0", 0), ("mc1", 7)):
        node.write_sys(f"devices/system/edac/mc/{controller}/ce_count", f"{found}\n")
        node.write_sys(f"devices/system/edac/mc/{controller}/ue_count", "0\n")
    node.write_sys("devices/system/edac/mc/power/runtime_status", "unsupported\n")
    sampler = node.sampler()
    assert states(sampler)["edac"] == "ok"
    node.tick(sampler)
    node.write_sys("devices/system/edac/mc/mc1/ce_count", "37\n")
    found = {k[1:]: v for k, v in node.tick(sampler, SELDOM).items() if "ecc" in k[1]}
    assert found == {("mem.ecc_corrected.per_s", "mc1"): pytest.approx(1.0)}


def test_a_machine_that_watches_no_memory(node: Node) -> None:
    assert "EDAC driver" in reason(node.sampler(), "edac")


# ---- disks


def test_temperature_of_nvme_disks(node: Node) -> None:
    for number, (name, owner) in enumerate((("coretemp", "x"), ("nvme", "nvme1"))):
        node.write_sys(f"class/hwmon/hwmon{number}/name", f"{name}\n")
        node.write_sys(f"class/hwmon/hwmon{number}/temp1_input", "41850\n")
        (node.sysfs / f"class/hwmon/hwmon{number}/device").symlink_to(f"../../{owner}")
    sampler = node.sampler()
    assert node.tick(sampler)[0, "disk.temperature.celsius", "nvme1"] == pytest.approx(41.85)
    node.write_sys("class/hwmon/hwmon1/temp1_input", "70000\n")
    found = {k[1:]: v for k, v in node.tick(sampler, SELDOM).items() if k[1].endswith("celsius")}
    assert found == {("disk.temperature.celsius", "nvme1"): pytest.approx(70.0)}
