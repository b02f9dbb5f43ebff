"""Which counters of a machine are planned, from its /sys alone, and what odd trees cost: a line."""

from __future__ import annotations

import json
import math
import os
import shutil
import struct
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pmu_trees
import pytest
from host_trees import recorded, recordings
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pmu_trees import FAMILIES, INTEL, LINES, Machine

from haiprof import _core

if TYPE_CHECKING:
    from haiprof._core import PlannedEvent, UncorePlan

# The trees without a /proc/cpuinfo.
CPUS = {
    "synth_skx_2s": "GenuineIntel:6:85",
    "synth_spr_2s": "GenuineIntel:6:0x8f",
    "synth_milan_2s": "AuthenticAMD:25:1",
    "synth_genoa_2s": "AuthenticAMD:25:0x11",
}
RECORDED = ("real_bdx_2s_min", "qemu_icx", "qemu_skx4n", "qemu_rome", *CPUS)


def plan(machine: Machine, cpu: str = "") -> UncorePlan:
    return _core.uncore_plan(str(machine.sysfs), str(machine.procfs), cpu)


def of_metric(result: UncorePlan, metric: str) -> list[PlannedEvent]:
    return [event for event in result["events"] if event["metric"] == metric]


def configs(result: UncorePlan, metric: str) -> list[str]:
    return sorted(
        {event["config"] for event in of_metric(result, metric)}, key=lambda c: int(c, 16)
    )


def pmus(result: UncorePlan) -> dict[str, int]:
    """How many counters each PMU has, all CPUs together."""
    return dict(Counter(event["pmu"] for event in result["events"]))


def only_problem(result: UncorePlan) -> str:
    assert len(result["problems"]) == 1, result["problems"]
    return result["problems"][0]


# -- recorded and generated machines ---------------------------------------------------------------


@pytest.mark.parametrize("name", RECORDED)
def test_the_plan_of_a_recorded_machine_is_the_expected_one(name: str, tmp_path: Path) -> None:
    root = recorded(name, tmp_path)
    result = _core.uncore_plan(str(root / "sys"), str(root / "proc"), CPUS.get(name, ""))
    expected = json.loads((recordings() / "expected_plans.json").read_text())[name]["events"]
    # They are older than what is known of the root complexes of AMD's.
    of_roots = [event for event in result["events"] if event["metric"].startswith("pcie_")]
    if name == "synth_genoa_2s":
        assert len(of_roots) == 8 * 2
        result["events"] = [event for event in result["events"] if event not in of_roots]
    fields = ("pmu", "type", "cpu", "metric", "config")
    wanted = {tuple(event[field] for field in fields): event["scale"] for event in expected}
    found = {
        tuple(event[field] for field in fields): event["scale"]  # type: ignore[literal-required]
        for event in result["events"]
    }
    assert len(wanted) == len(expected)
    assert len(found) == len(result["events"])
    assert found == pytest.approx(wanted, rel=1e-9)
    assert result["problems"] == []
    assert result["sockets"] == 2
    assert {event["socket"] for event in result["events"]} == {0, 1}


# -- families --------------------------------------------------------------------------------------


def test_sandy_bridge_whose_kernel_gives_no_scales(tmp_path: Path) -> None:
    result = plan(pmu_trees.sandy_bridge(tmp_path))
    assert result["problems"] == []
    assert pmus(result) == {f"uncore_imc_{i}": 4 for i in range(4)} | {"uncore_qpi_0": 2}
    assert {event["scale"] for event in of_metric(result, "dram_rd")} == {64.0}
    assert configs(result, "dram_rd") == ["0x304"]
    assert configs(result, "dram_wr") == ["0xc04"]
    assert configs(result, "xsock_tx") == ["0x200"]
    assert {event["scale"] for event in of_metric(result, "xsock_tx")} == {8.0}
    assert result["dram_peak_bytes_per_s"] == 2 * 4 * 8 * 1600e6


def test_ice_lake_takes_the_counters_that_nobody_else_wants(tmp_path: Path) -> None:
    result = plan(pmu_trees.ice_lake(tmp_path))
    assert result["problems"] == []
    memory = of_metric(result, "dram_rd") + of_metric(result, "dram_wr")
    assert {event["pmu"] for event in memory} == {f"uncore_imc_free_running_{i}" for i in range(4)}
    assert len(memory) == 4 * 2 * 2
    assert configs(result, "dram_rd") == ["0x20ff"]
    # Its kernel has the scale of Skylake, and is mended.
    assert {event["scale"] for event in of_metric(result, "pcie_in")} == {32.0}
    assert len(of_metric(result, "pcie_in")) == 8 * 2
    assert [event["scale"] for event in of_metric(result, "dram_J")] == [2.0**-32] * 2


def test_skylake_whose_iio_counts_four_bytes(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "GenuineIntel:6:85")
    event = ("event=0xff,umask=0x20", "3.814697266e-6", "MiB")
    machine.pmu("uncore_iio_free_running_0", INTEL, {"bw_in_port0": event, "bw_out_port0": event})
    result = plan(machine)
    assert [event["scale"] for event in result["events"]] == [pytest.approx(4.0, rel=1e-9)] * 2


def test_ice_lake_with_a_broken_free_running_box_takes_the_others(tmp_path: Path) -> None:
    machine = pmu_trees.ice_lake(tmp_path)
    (machine.devices / "uncore_imc_free_running_2/type").unlink()
    result = plan(machine)
    assert "uncore_imc_free_running_2/type: No such file" in only_problem(result)
    assert {event["pmu"] for event in of_metric(result, "dram_rd")} == {
        f"uncore_imc_{i}" for i in range(4)
    }


def test_snow_ridge_whose_only_box_has_no_number(tmp_path: Path) -> None:
    result = plan(pmu_trees.snow_ridge(tmp_path))
    assert pmus(result) == {"uncore_imc_free_running": 2}
    assert result["sockets"] == 1


def test_sapphire_rapids_with_memory_of_its_own(tmp_path: Path) -> None:
    result = plan(pmu_trees.sapphire_rapids(tmp_path, hbm=4))
    assert result["problems"] == []
    reads = of_metric(result, "dram_rd")
    assert {event["pmu"] for event in reads} == {
        *(f"uncore_imc_{i}" for i in range(8)),
        *(f"uncore_hbm_{i}" for i in range(4)),
    }
    assert configs(result, "dram_rd") == ["0xcf05"]
    assert configs(result, "dram_wr") == ["0xf005"]
    assert {event["scale"] for event in reads} == {64.0}
    assert of_metric(result, "xsock_tx")[0]["scale"] == pytest.approx(64 / 9)
    assert result["dram_peak_bytes_per_s"] is None
    assert "HBM" in result["dram_peak_how"]


@pytest.mark.parametrize("model", [0xAD, 0xAE, 0xAF, 0xDD])
@pytest.mark.parametrize("named", [True, False])
def test_granite_rapids_counts_both_halves_of_a_channel(
    named: bool, model: int, tmp_path: Path
) -> None:
    result = plan(pmu_trees.granite_rapids(tmp_path, named=named, model=model))
    assert result["problems"] == []
    assert configs(result, "dram_rd") == ["0xcf05", "0xcf06"]
    assert configs(result, "dram_wr") == ["0xf005", "0xf006"]
    assert {count for pmu, count in pmus(result).items() if "imc" in pmu} == {4 * 2}
    assert {event["scale"] for event in of_metric(result, "dram_rd")} == {64.0}


def test_rome_counts_reads_and_writes_as_one(tmp_path: Path) -> None:
    result = plan(pmu_trees.rome(tmp_path))
    assert result["problems"] == []
    assert pmus(result) == {"amd_df": 24, "power": 2}
    assert configs(result, "dram_rw") == [
        *("0x3807", "0x3847", "0x3887", "0x38c7"),
        *("0x100003807", "0x100003847", "0x100003887", "0x1000038c7"),
    ]
    assert configs(result, "xsock_tx") == [
        "0x7000002c7",
        "0x800000207",
        "0x800000247",
        "0x800000287",
    ]
    assert {event["scale"] for event in of_metric(result, "xsock_tx")} == {32.0}


def test_one_socket_has_no_links_to_count(tmp_path: Path) -> None:
    result = plan(pmu_trees.rome(tmp_path, sockets=1))
    assert result["problems"] == []
    assert pmus(result) == {"amd_df": 8, "power": 1}


def test_genoa_opens_each_controller_on_its_own_cpu(tmp_path: Path) -> None:
    result = plan(pmu_trees.genoa(tmp_path))
    assert result["problems"] == []
    places = {
        (event["pmu"], event["cpu"], event["socket"]) for event in of_metric(result, "dram_rd")
    }
    assert places == {(f"amd_umc_{i}", 0 if i < 6 else 2, i // 6) for i in range(12)}
    assert configs(result, "dram_rd") == ["0x10a"]
    assert configs(result, "dram_wr") == ["0x20a"]
    assert len(of_metric(result, "xsock_tx")) == 8 * 2
    assert result["dram_peak_bytes_per_s"] == 12 * 8 * 4800e6  # the channels that are fitted
    order = [event["pmu"] for event in result["events"]]
    assert order.index("amd_umc_2") < order.index("amd_umc_10")


def test_genoa_whose_kernel_is_older_than_its_controllers(tmp_path: Path) -> None:
    result = plan(pmu_trees.genoa(tmp_path, controllers=0))
    assert result["problems"] == []
    assert {event["pmu"] for event in of_metric(result, "dram_rd")} == {"amd_df"}
    assert len(of_metric(result, "dram_rd")) == 12 * 2 * 2  # asked for by this socket, by the other
    assert configs(result, "dram_rd")[:2] == ["0x700fe1f", "0x700fe5f"]
    assert {"0xb00fe1f", "0x20b00fedf"} <= set(configs(result, "dram_rd"))
    assert {"0x700ff1f", "0xb00ff1f"} <= set(configs(result, "dram_wr"))
    assert len(of_metric(result, "dram_wr")) == 12 * 2 * 2


def test_one_socket_of_genoa_has_no_other(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "AuthenticAMD:25:17", sockets=1)
    machine.pmu("amd_df", pmu_trees.NEW_FABRIC)
    result = plan(machine)
    assert result["problems"] == []
    assert dict(Counter(event["metric"] for event in result["events"])) == {
        "dram_rd": 12,
        "dram_wr": 12,
        "pcie_in": 4,
        "pcie_out": 4,
    }


def fabric(event: int, umask: int) -> str:
    """Pack an event of amd_df since Zen 4 by its format: event 0-7,32-37, umask 8-15,24-27."""
    low, high = event & 0xFF, event >> 8
    return hex(low | high << 32 | (umask & 0xFF) << 8 | umask >> 8 << 24)


def test_devices_of_genoa_at_four_root_complexes(tmp_path: Path) -> None:
    result = plan(pmu_trees.genoa(tmp_path))
    wanted = {fabric(0x81F + 0x40 * root, mask) for root in range(4) for mask in (0x7FF, 0xBFF)}
    assert set(configs(result, "pcie_in")) == wanted
    assert len(of_metric(result, "pcie_in")) == 8 * 2
    assert {event["scale"] for event in of_metric(result, "pcie_in")} == {64.0}
    # The links to the other socket need the counters.
    assert of_metric(result, "pcie_out") == []


def test_devices_of_turin_at_eight_root_complexes(tmp_path: Path) -> None:
    result = plan(pmu_trees.turin(tmp_path))
    wanted = {fabric(0x81F + 0x40 * root, 0xFFF) for root in range(8)}
    assert set(configs(result, "pcie_in")) == wanted
    assert len(of_metric(result, "pcie_in")) == 8 * 2
    assert of_metric(result, "pcie_out") == []


def test_hygons_first_is_a_zen_1(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "HygonGenuine:24:1", sockets=1)
    machine.pmu("amd_df", pmu_trees.OLD_FABRIC)
    result = plan(machine)
    assert result["problems"] == []
    assert len(of_metric(result, "dram_rw")) == 8
    assert result["dram_peak_bytes_per_s"] == 8 * 8 * 2666e6
    assert of_metric(plan(machine, "HygonGenuine:24:4"), "dram_rw") == []


def test_raptor_lake(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "GenuineIntel:6:183", sockets=1)
    codes = {"data_total": 0x10, "data_read": 0x20, "data_write": 0x30}
    events = {name: (f"event=0xff,umask={code:#x}", *LINES) for name, code in codes.items()}
    for number in range(2):
        machine.pmu(f"uncore_imc_free_running_{number}", INTEL, events)
    result = plan(machine)
    assert result["problems"] == []
    assert configs(result, "dram_rd") == ["0x20ff"]
    assert configs(result, "dram_wr") == ["0x30ff"]
    assert len(result["events"]) == 4


def test_turin(tmp_path: Path) -> None:
    result = plan(pmu_trees.turin(tmp_path))
    assert result["problems"] == []
    assert len(of_metric(result, "dram_wr")) == 24
    assert configs(result, "xsock_tx")[0] == "0xd0f003e5f"
    assert len(of_metric(result, "xsock_tx")) == 6 * 2


def test_turin_whose_kernel_is_older_than_its_controllers(tmp_path: Path) -> None:
    result = plan(pmu_trees.genoa(tmp_path, controllers=0, cpu="AuthenticAMD:26:2"))
    assert result["problems"] == []
    for metric, mask in (("dram_rd", 0xFFE), ("dram_wr", 0xFFF)):
        wanted = {fabric(0x1F + 0x40 * channel, mask) for channel in range(12)}
        assert set(configs(result, metric)) == wanted
        assert len(of_metric(result, metric)) == 12 * 2


def test_zen_6_whose_kernel_is_older_than_its_controllers(tmp_path: Path) -> None:
    result = plan(pmu_trees.genoa(tmp_path, controllers=0, cpu="AuthenticAMD:26:80"))
    assert of_metric(result, "dram_rd") == of_metric(result, "dram_wr") == []
    [problem] = [line for line in result["problems"] if "amd_umc" in line]
    assert "/bus/event_source/devices: " in problem
    assert "Linux 6.7" in problem


def test_grace_says_who_sent_what_was_read(tmp_path: Path) -> None:
    result = plan(pmu_trees.grace(tmp_path))
    assert result["problems"] == []
    assert result["cpu"] == "ARM:65:3407"
    by_scale = {(e["metric"], e["config"]): e["scale"] for e in result["events"]}
    assert by_scale == {
        ("dram_rd", "0x1a5"): 32.0,
        ("dram_wr", "0x1db"): 1.0,
        ("xsock_tx", "0x1a2"): 32.0,
        ("xsock_tx", "0x1a1"): 1.0,
    }
    senders = {(e["pmu"], e["config"]): e["socket"] for e in of_metric(result, "xsock_tx")}
    assert senders == {
        ("nvidia_scf_pmu_0", "0x1a1"): 0,
        ("nvidia_scf_pmu_0", "0x1a2"): 1,
        ("nvidia_scf_pmu_1", "0x1a1"): 1,
        ("nvidia_scf_pmu_1", "0x1a2"): 0,
    }
    assert result["dram_peak_bytes_per_s"] == pytest.approx(2 * 546.1e9, rel=1e-3)


def test_a_cpu_whose_fabric_is_not_known_is_named(tmp_path: Path) -> None:
    machine = pmu_trees.genoa(tmp_path, cpu="AuthenticAMD:26:80")
    result = plan(machine)
    problem = only_problem(result)
    assert "amd_df" in problem
    assert "AuthenticAMD:26:80" in problem
    assert len(of_metric(result, "dram_rd")) == 12  # the controllers are the same


def test_a_given_cpu_wins(tmp_path: Path) -> None:
    machine = pmu_trees.rome(tmp_path)
    assert plan(machine)["cpu"] == "AuthenticAMD:23:49"
    result = plan(machine, "AuthenticAMD:0x1a:0x60")
    assert result["cpu"] == "AuthenticAMD:26:96"
    assert of_metric(result, "dram_rw") == []


def test_without_a_cpu_only_what_needs_one_is_left_out(tmp_path: Path) -> None:
    machine = pmu_trees.rome(tmp_path)
    (machine.procfs / "cpuinfo").write_bytes(b"\x00\xff not a cpuinfo")
    result = plan(machine)
    assert "a CPU that is not known" in only_problem(result)
    assert result["cpu"] is None
    assert pmus(result) == {"power": 2}


@pytest.mark.parametrize(
    "cpu",
    ["x", "GenuineIntel:6", "GenuineIntel:6:85:7", ":6:85", "Intel:-6:1", "I:6:99999", "I:6:"],
)
def test_a_cpu_that_is_none(cpu: str) -> None:
    with pytest.raises(ValueError, match=r"^cpu must be VENDOR:FAMILY:MODEL, as in .*$"):
        _core.uncore_plan(cpu=cpu)


def test_devices_of_grace(tmp_path: Path) -> None:
    machine = pmu_trees.grace(tmp_path)
    events = {"rd_bytes_loc": "event=0x0", "rd_bytes_rem": "event=0x1"}
    events |= {"wr_bytes_loc": "event=0x2", "wr_bytes_rem": "event=0x3", "cycles": "event=0xffff"}
    for socket, cpu in enumerate(machine.first_cpus):
        machine.pmu(f"nvidia_pcie_pmu_{socket}", {"event": "config:0-63"}, events, cpus=[cpu])
    result = plan(machine)
    assert result["problems"] == []
    assert configs(result, "pcie_in") == ["0x2", "0x3"]
    assert configs(result, "pcie_out") == ["0x0", "0x1"]
    assert {event["scale"] for event in of_metric(result, "pcie_in")} == {1.0}


def test_nvlink_c2c_of_grace(tmp_path: Path) -> None:
    machine = pmu_trees.grace(tmp_path)
    events = {"rd_bytes_loc": "event=0x0", "rd_bytes_rem": "event=0x1"}
    events |= {"wr_bytes_loc": "event=0x2", "wr_bytes_rem": "event=0x3", "rd_req_loc": "event=0x6"}
    terms = {"event": "config:0-63", "port": "config1:0-1"}
    for socket, cpu in enumerate(machine.first_cpus):
        for link in range(2):
            machine.pmu(f"nvidia_nvlink_c2c{link}_pmu_{socket}", terms, events, cpus=[cpu])
    result = plan(machine)
    assert (result["problems"], result["unknown"]) == ([], [])
    assert configs(result, "c2c_in") == ["0x2", "0x3"]
    assert configs(result, "c2c_out") == ["0x0", "0x1"]
    found = of_metric(result, "c2c_in") + of_metric(result, "c2c_out")
    assert {(event["scale"], "config1" in event) for event in found} == {(1.0, False)}
    assert len(found) == 4 * 2 * len(machine.first_cpus)
    assert {event["socket"] for event in found} == {0, 1}


def test_vera(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "ARM:78:16")
    events = {"mem_bytes_rd": "event=0x123", "mem_bytes_wr": "event=0x124"}
    for socket, cpu in enumerate(machine.first_cpus):
        machine.pmu(f"nvidia_ucf_pmu_{socket}", {"event": "config:0-63"}, events, cpus=[cpu])
    result = plan(machine)
    assert configs(result, "dram_rd") == ["0x123"]
    assert configs(result, "dram_wr") == ["0x124"]
    assert {event["socket"] for event in result["events"]} == {0, 1}


@pytest.mark.parametrize(("read", "write"), [("0x1", "0x0"), ("0x84", "0x83")])
def test_kunpeng(tmp_path: Path, read: str, write: str) -> None:
    machine = Machine(tmp_path, "ARM:72:3329")
    events = {"flux_wr": f"config={write}", "flux_rd": f"config={read}", "pre_cmd": "config=0x4"}
    for die, cpu in ((1, 0), (3, 0), (5, 2), (17, 2)):
        for controller in range(4):
            name = f"hisi_sccl{die}_ddrc{controller}"
            machine.pmu(name, {"event": "config:0-7"}, events, cpus=[cpu])
    # Others of a die, and one whose count may be another number of bytes.
    for name in ("hisi_sccl1_l3c0", "hisi_sccl1_hha0", "hisi_sccl1_ddrc0_1", "hisi_sccl_ddrc0"):
        machine.pmu(name, {"event": "config:0-7"}, events, cpus=[0])
    result = plan(machine)
    assert result["problems"] == []
    assert configs(result, "dram_rd") == [read]
    assert configs(result, "dram_wr") == [write]
    assert {event["scale"] for event in result["events"]} == {32.0}
    assert len(pmus(result)) == 16
    on_second = {e["pmu"] for e in result["events"] if e["socket"] == 1}
    assert on_second == {f"hisi_sccl{die}_ddrc{n}" for die in (5, 17) for n in range(4)}
    assert result["dram_peak_bytes_per_s"] in (None, 0)


def test_without_topology_the_counters_tell_how_many_sockets_there_are(tmp_path: Path) -> None:
    machine = pmu_trees.genoa(tmp_path)
    shutil.rmtree(machine.sysfs / "devices/system/cpu")
    (machine.sysfs / "devices/system/cpu").mkdir()
    result = plan(machine)
    assert result["sockets"] == 2
    assert {(event["cpu"], event["socket"]) for event in result["events"]} == {(0, 0), (2, 1)}
    assert "no CPU has a socket number" in only_problem(result)
    assert result["dram_peak_bytes_per_s"] == 12 * 8 * 4800e6


def test_a_package_of_two_dies_has_as_many_channels_as_have_counters(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "GenuineIntel:6:85")
    for number in range(12):
        machine.pmu(f"uncore_imc_{number}", INTEL, pmu_trees.cas("0x04", "0x03", "0x0c"))
    result = plan(machine)
    assert result["dram_peak_bytes_per_s"] == 24 * 8 * 3200e6
    assert "with 24 channels" in result["dram_peak_how"]


def test_sockets_are_numbered_without_gaps(tmp_path: Path) -> None:
    machine = pmu_trees.sapphire_rapids(tmp_path)
    for cpu in (2, 3):
        machine.write(f"devices/system/cpu/cpu{cpu}/topology/physical_package_id", "36\n")
    result = plan(machine)
    assert result["sockets"] == 2
    assert {event["socket"] for event in result["events"]} == {0, 1}


# -- the peak --------------------------------------------------------------------------------------


def test_the_firmware_says_what_memory_is_fitted(tmp_path: Path) -> None:
    machine = pmu_trees.rome(tmp_path)
    for number in range(12):
        machine.memory_module(number, configured=2933)
    machine.memory_module(12, gib=0)
    machine.memory_module(13, technology=7, configured=2666)  # persistent memory
    result = plan(machine)
    assert result["dram_peak_bytes_per_s"] == pytest.approx(12 * 8 * 2933e6)
    assert result["dram_peak_how"] == (
        "12 memory modules of 64 bits at 2933 MT/s, as the firmware says"
    )


def test_modules_that_share_channels_do_not_add_up(tmp_path: Path) -> None:
    machine = pmu_trees.rome(tmp_path)
    for number in range(32):
        machine.memory_module(number)
    result = plan(machine)
    assert result["dram_peak_bytes_per_s"] == pytest.approx(16 * 8 * 3200e6)
    assert "they share 16 channels" in result["dram_peak_how"]


def test_modules_faster_than_the_old_field_can_hold(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.memory_module(0, configured=70_000)
    result = plan(machine)
    assert result["dram_peak_bytes_per_s"] == pytest.approx(8 * 70_000e6)


#: SMBIOS 2.3 to 2.6 has no configured speed; QEMU says of the width that it is unknown.
OLD = pmu_trees.memory_record()[:0x1B].replace(b"\x11\x5c", b"\x11\x1b", 1)
EMULATED = pmu_trees.memory_record(bits=0xFFFF - 8, configured=0).replace(
    struct.pack("<H", 0xFFFF - 8), b"\xff\xff", 1
)


@pytest.mark.parametrize("record", [OLD + b"DIMM 0\0\0", EMULATED], ids=["old", "emulated"])
def test_firmware_that_does_not_say_the_speed_is_no_problem(record: bytes, tmp_path: Path) -> None:
    machine = pmu_trees.rome(tmp_path)
    machine.write("firmware/dmi/entries/17-0/raw", record)
    result = plan(machine)
    assert result["problems"] == []
    assert result["dram_peak_how"].startswith("at most, with 16 channels")


@pytest.mark.parametrize("raw", [b"", b"\x11", b"\x11\xff" + bytes(40), b"\x10" + bytes(99)])
def test_firmware_tables_that_are_none(raw: bytes, tmp_path: Path) -> None:
    machine = pmu_trees.rome(tmp_path)
    machine.write("firmware/dmi/entries/17-3/raw", raw)
    result = plan(machine)
    assert "17-3/raw" in only_problem(result)
    assert result["dram_peak_how"].startswith("at most, with 16 channels of 64 bits at 3200 MT/s")


def test_an_unknown_cpu_has_no_peak(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "CentaurHauls:7:91")
    result = plan(machine)
    assert result["dram_peak_bytes_per_s"] is None
    assert result["dram_peak_how"].startswith("not known: ")
    assert result["problems"] == []


# -- packing ---------------------------------------------------------------------------------------


@st.composite
def packings(draw: st.DrawFn) -> tuple[dict[str, str], dict[str, int], list[int]]:
    """Formats with split ranges, values for them, and the words that must come of it."""
    words = [0, 0, 0]
    formats: dict[str, str] = {}
    values: dict[str, int] = {}
    places = [(word, bit) for word in range(3) for bit in range(64)]
    taken: set[tuple[int, int]] = set()
    for term in draw(st.lists(st.sampled_from("abcdefg"), unique=True, min_size=1)):
        word = draw(st.integers(0, 2))
        ranges: list[tuple[int, int]] = []
        for _ in range(draw(st.integers(1, 4))):
            free = [bit for at, bit in places if at == word and (at, bit) not in taken]
            if not free:
                break
            low = high = draw(st.sampled_from(free))
            most = draw(st.integers(1, 24))
            while high + 1 < 64 and (word, high + 1) not in taken and high - low + 1 < most:
                high += 1
            taken |= {(word, bit) for bit in range(low, high + 1)}
            ranges.append((low, high))
        if not ranges:
            continue
        bits = [bit for low, high in ranges for bit in range(low, high + 1)]
        value = draw(st.integers(0, 2 ** len(bits) - 1))
        for index, bit in enumerate(bits):
            words[word] |= (value >> index & 1) << bit
        shown = [f"{low}" if low == high else f"{low}-{high}" for low, high in ranges]
        formats[term] = f"config{word or ''}:" + ",".join(shown)
        values[term] = value
    return formats, values, words


def packed(formats: dict[str, str], terms: str) -> UncorePlan:
    with tempfile.TemporaryDirectory() as folder:
        machine = Machine(Path(folder), sockets=1)
        machine.pmu("uncore_imc_0", formats, {"cas_count_read": (terms, *LINES)})
        return plan(machine)


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(packings(), st.booleans())
def test_any_value_lands_in_the_bits_of_its_format(
    packing: tuple[dict[str, str], dict[str, int], list[int]], hexadecimal: bool
) -> None:
    formats, values, words = packing
    terms = ",".join(
        f"{term}={value:#x}" if hexadecimal else f"{term}={value}" if value != 1 else term
        for term, value in values.items()
    )
    result = packed(formats, terms)
    assert result["problems"] == []
    (event,) = result["events"]
    found = [event["config"], event.get("config1", "0x0"), event.get("config2", "0x0")]
    assert found == [hex(word) for word in words]
    assert ("config1" in event) == (words[1] != 0)


@settings(max_examples=50)
@given(packings(), st.data())
def test_a_value_that_does_not_fit_is_refused(
    packing: tuple[dict[str, str], dict[str, int], list[int]], data: st.DataObject
) -> None:
    formats, values, _ = packing
    term = data.draw(st.sampled_from(sorted(values)))
    width = sum(
        int(ends[-1]) - int(ends[0]) + 1
        for part in formats[term].partition(":")[2].split(",")
        for ends in [part.split("-")]
    )
    values[term] = data.draw(st.integers(2**width, 2 ** (width + 8)))
    result = packed(formats, ",".join(f"{name}={value}" for name, value in values.items()))
    assert result["events"] == []
    assert "events/cas_count_read" in only_problem(result)


def test_a_word_without_a_format_is_the_whole_word() -> None:
    result = packed({}, "config=0x10,config1=0xffffffffffffffff,config2")
    (event,) = result["events"]
    assert (event["config"], event.get("config1")) == ("0x10", "0xffffffffffffffff")
    assert event.get("config2") == "0x1"


# -- broken and odd trees --------------------------------------------------------------------------

IMC = "bus/event_source/devices/uncore_imc_0"
READ = f"{IMC}/events/cas_count_read"


@pytest.mark.parametrize(
    ("path", "text", "says"),
    [
        (f"{IMC}/type", "", "type: is empty"),
        (f"{IMC}/type", "uncore", "type: 'uncore' is not the number of a PMU"),
        (f"{IMC}/type", "-1", "type: '-1' is not"),
        (f"{IMC}/type", "99999999999999999999", "type: '99999999999999999999' is not"),
        (f"{IMC}/cpumask", "\n", "cpumask: is empty"),
        (f"{IMC}/cpumask", "0-", "cpumask: '0-' is not a list of CPUs"),
        (f"{IMC}/cpumask", "3-1", "cpumask: '3-1' is not"),
        (f"{IMC}/cpumask", "0,", "cpumask: '0,' is not"),
        (f"{IMC}/cpumask", "0-999999999", "cpumask: '0-999999999' is not"),
        (f"{IMC}/cpumask", "77", "cpumask: of CPU 77 the socket is not known"),
        (f"{IMC}/format/umask", "config:0-7,4-9", "format/umask: 'config:0-7,4-9' does not name"),
        (f"{IMC}/format/umask", "config:60-64", "format/umask: 'config:60-64' does not name"),
        (f"{IMC}/format/umask", "config3:0-7", "format/umask: 'config3:0-7' does not name"),
        (f"{IMC}/format/umask", "config:", "format/umask: 'config:' does not name"),
        (f"{IMC}/format/umask", "config:7-0", "format/umask: 'config:7-0' does not name"),
        (f"{IMC}/format/umask", "config:0-3", "'umask=0x0f' wants bits that another term has"),
        (f"{IMC}/format/umask", "config:8", "'umask=0x0f' does not fit the bits of format/umask"),
        (READ, "event=0x04,color=7", "cas_count_read: there is no"),
        (READ, "event=0x04,../type=7", "'../type=7' is not a term"),
        (READ, "event=4,event=4", "'event=4' wants bits that another term has"),
        (READ, "event=0x", "'event=0x' has no number"),
        (READ, "event=?", "'event=?' has no number"),
        (READ, "event=1,,umask=2", "'' is not a term"),
        (READ, "event=1,", "'event=1,' is not a list of terms"),
        (READ, "event=0x100", "'event=0x100' does not fit"),
        (f"{READ}.scale", "nan", "cas_count_read.scale: 'nan' is not a number above 0"),
        (f"{READ}.scale", "inf", "cas_count_read.scale: 'inf' is not"),
        (f"{READ}.scale", "-1", "cas_count_read.scale: '-1' is not"),
        (f"{READ}.scale", "0", "cas_count_read.scale: '0' is not"),
        (f"{READ}.scale", "1e308", "cas_count_read.scale: '1e308' is not"),
        (f"{READ}.scale", "1,5", "cas_count_read.scale: '1,5' is not"),
        (f"{READ}.unit", "furlongs", "cas_count_read.unit: 'furlongs' is not a known unit"),
        (f"{READ}.unit", "", "cas_count_read.unit: is empty"),
        (f"{READ}", b"\x00\x01\xfe\xff", "'????' is not a term"),
        (f"{READ}", "e" * 100_000, "cas_count_read: is longer than any attribute of sysfs"),
        (f"{READ}", "e" * 5_000, "…' is not a term"),
    ],
)
def test_a_broken_file_is_one_line_and_costs_its_pmu_alone(
    path: str, text: str | bytes, says: str, tmp_path: Path
) -> None:
    machine = Machine(tmp_path, "GenuineIntel:6:106")
    for number in range(2):
        machine.pmu(f"uncore_imc_{number}", INTEL, pmu_trees.cas("0x04", "0x0f", "0x30"))
    machine.write(path, text)
    result = plan(machine)
    lines = [line for line in result["problems"] if says in line]
    assert len(lines) == 1, result["problems"]
    assert all(f"{machine.devices}/uncore_imc_0/" in line for line in result["problems"])
    assert all("\n" not in line and len(line) < 400 for line in result["problems"])
    assert pmus(result)["uncore_imc_1"] == 4


def test_files_that_are_missing(tmp_path: Path) -> None:
    for name in ("type", "cpumask", "format/umask", "events/cas_count_read.unit"):
        machine = pmu_trees.sapphire_rapids(tmp_path / name)
        (machine.devices / "uncore_imc_0" / name).unlink()
        result = plan(machine)
        assert result["problems"] != []
        assert all(f"uncore_imc_0/{name}" in line for line in result["problems"])
        assert pmus(result)["uncore_imc_7"] == 4


@pytest.mark.parametrize("name", ["type", "cpumask", "format/event", "events/cas_count_read"])
@pytest.mark.parametrize("instead", ["folder", "fifo", "loop", "nowhere", "socket"])
def test_something_else_where_a_file_should_be(name: str, instead: str, tmp_path: Path) -> None:
    machine = pmu_trees.sapphire_rapids(tmp_path)
    path = machine.devices / "uncore_imc_0" / name
    path.unlink()
    if instead == "folder":
        path.mkdir()
    elif instead == "fifo":
        os.mkfifo(path)
    elif instead == "loop":
        path.symlink_to(path.name)
    elif instead == "nowhere":
        path.symlink_to("/nowhere/at/all")
    else:
        path.symlink_to("/dev/zero")
    result = plan(machine)
    assert f"uncore_imc_0/{name}: " in only_problem(result)
    assert pmus(result)["uncore_imc_7"] == 4


@pytest.mark.parametrize("name", ["", "events", "format"])
def test_a_loop_where_a_folder_should_be(name: str, tmp_path: Path) -> None:
    machine = pmu_trees.sapphire_rapids(tmp_path)
    path = machine.devices / "uncore_imc_0" / name
    path.rename(tmp_path / "away")
    path.symlink_to(path.name)
    result = plan(machine)
    assert "Too many levels of symbolic links" in only_problem(result)
    assert pmus(result)["uncore_imc_7"] == 4


def test_a_machine_without_event_source(tmp_path: Path) -> None:
    (tmp_path / "sys").mkdir()
    result = _core.uncore_plan(str(tmp_path / "sys"), str(tmp_path / "proc"))
    assert result["events"] == []
    assert "bus/event_source/devices: No such file or directory" in only_problem(result)


def test_a_machine_without_counters_is_no_problem(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "GenuineIntel:6:85")
    machine.pmu("software", {})
    result = plan(machine)
    assert (result["events"], result["problems"]) == ([], [])


def test_sockets_without_numbers_are_told_apart_by_the_counters(tmp_path: Path) -> None:
    machine = pmu_trees.rome(tmp_path)
    for cpu in range(4):
        machine.write(f"devices/system/cpu/cpu{cpu}/topology/physical_package_id", "-1\n")
    result = plan(machine)
    assert "physical_package_id: '-1' is not the number of a socket" in only_problem(result)
    assert result["sockets"] == 2
    assert pmus(result)["amd_df"] == 24  # nobody says that there are no links


@st.composite
def damaged(draw: st.DrawFn) -> tuple[str, int, bytes]:
    family = draw(st.sampled_from(sorted(FAMILIES)))
    texts = st.sampled_from([b"0-", b"nan", b"-5", b"1e999", b"0x", b"config:0-99", b"\0"])
    numbers = st.integers(-5, 2**70).map(lambda number: str(number).encode())
    return family, draw(st.integers(0, 10_000)), draw(st.one_of(st.binary(), texts, numbers))


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(damaged())
def test_any_bytes_in_any_file(damage: tuple[str, int, bytes]) -> None:
    family, number, text = damage
    with tempfile.TemporaryDirectory() as folder:
        machine = FAMILIES[family](Path(folder))
        files = sorted(path for path in Path(folder).rglob("*") if path.is_file())
        files[number % len(files)].write_bytes(text)
        result = plan(machine)
    counted = [(event["pmu"], event["cpu"], event["config"]) for event in result["events"]]
    assert len(set(counted)) == len(counted)
    for event in result["events"]:
        assert math.isfinite(event["scale"])
        assert event["scale"] > 0
        assert 0 <= event["socket"] < result["sockets"]
        assert int(event["config"], 16) < 2**64
    peak = result["dram_peak_bytes_per_s"]
    assert peak is None or (math.isfinite(peak) and peak > 0)
    for line in result["problems"]:
        assert folder in line
        assert "\n" not in line
