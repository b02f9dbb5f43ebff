"""The whole way of a counter on this machine: sysfs, plan, perf_event_open, read, rate.

A made-up sysfs calls a PMU of this kernel a memory controller, one whose counter is a clock:
``msr`` the TSC, ``software`` nanoseconds. What it counts in a second is known, so the bandwidth is.
"""

from __future__ import annotations

import ctypes
import gc
import os
import platform
import struct
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from host_trees import Node, reason, states, without_rights

from haiprof import _core

MSR = Path("/sys/bus/event_source/devices/msr")
BYTES = 64  # of a count: .scale and .unit as the kernel gives them for memory controllers
WITHIN = 0.005

PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}


class Clock:
    """The PMU, and what it counts in a second according to the kernel itself, without haiprof."""

    def __init__(self, pmu: str) -> None:
        if pmu == "msr":
            self.type = int((MSR / "type").read_text())
            self.event = (MSR / "events/tsc").read_text().strip()
            self.format = (MSR / "format/event").read_text().strip()
        else:
            self.type, self.event, self.format = 1, "event=0x00", "config:0-63"
        self._fd = -1

    def open(self) -> int:
        """Open the counter on CPU 0; 0 or an errno."""
        number = PERF_EVENT_OPEN.get(platform.machine())
        if number is None:
            pytest.skip(f"no number of perf_event_open for {platform.machine()}")
        attributes = struct.pack("=IIQ", self.type, 128, 0).ljust(128, b"\0")
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd = libc.syscall(number, attributes, -1, 0, -1, 0)
        return 0 if self._fd >= 0 else ctypes.get_errno()

    def read(self) -> tuple[float, int]:
        """Return the time in ns and the count then, of the quickest of many readings."""
        best = (2**63, 0.0, 0)
        for _ in range(200):
            before = time.monotonic_ns()
            (count,) = struct.unpack("=Q", os.read(self._fd, 8))
            after = time.monotonic_ns()
            best = min(best, (after - before, (before + after) / 2, count))
        return best[1], best[2]

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


@pytest.fixture(params=["msr", "software"])
def clock(request: pytest.FixtureRequest) -> Iterator[Clock]:
    if request.param == "msr" and not (MSR / "events/tsc").is_file():
        pytest.skip(f"no TSC in {MSR}")
    clock = Clock(request.param)
    error = clock.open()
    if error != 0:
        pytest.skip(f"needs CAP_PERFMON or perf_event_paranoid <= 0: {os.strerror(error)}")
    yield clock
    clock.close()


def make_pmu(node: Node, clock: Clock, name: str, events: dict[str, tuple[str, str]]) -> None:
    """``events``: .scale and .unit of each, all of them the clock."""
    folder = f"bus/event_source/devices/{name}"
    node.write_sys(f"{folder}/type", f"{clock.type}\n")
    node.write_sys(f"{folder}/cpumask", "0\n")
    node.write_sys(f"{folder}/format/event", f"{clock.format}\n")
    for event, (scale, unit) in events.items():
        node.write_sys(f"{folder}/events/{event}", f"{clock.event}\n")
        node.write_sys(f"{folder}/events/{event}.scale", f"{scale}\n")
        node.write_sys(f"{folder}/events/{event}.unit", f"{unit}\n")


def make_node(folder: Path, clock: Clock) -> Node:
    node = Node(folder)
    line = ("6.103515625e-5", "MiB")
    make_pmu(node, clock, "uncore_imc_free_running_0", {"read": line})
    make_pmu(node, clock, "power", {"energy-pkg": ("1e-8", "Joules")})
    node.write_sys("class/powercap/intel-rapl:0/name", "package-0\n")
    node.write_sys("class/powercap/intel-rapl:0/energy_uj", "5\n")
    return node


@pytest.fixture
def public() -> Iterator[Node]:
    with tempfile.TemporaryDirectory() as folder:
        yield make_node(Path(folder), Clock("software"))


def make_sampler(node: Node) -> _core.HostSampler:
    return _core.HostSampler(
        procfs=str(node.procfs), sysfs=str(node.sysfs), basic=0, io=0, ib=0, gpu=0
    )


def samples(sampler: _core.HostSampler) -> dict[tuple[str, str | None], tuple[float, int]]:
    return {
        (metric, instance): (value, flags)
        for _, metric, instance, value, flags in sampler.read(time.monotonic_ns())
        if not metric.startswith("haiprof.")
    }


def test_bandwidth_and_power_are_what_the_kernel_counted(tmp_path: Path, clock: Clock) -> None:
    sampler = make_sampler(make_node(tmp_path, clock))
    assert samples(sampler) == {}
    begin, count = clock.read()
    time.sleep(1.0)
    found = samples(sampler)
    end, later = clock.read()
    counts_per_s = (later - count) / (end - begin) * 1e9
    assert counts_per_s > 1e6
    found_out = states(sampler)
    assert found_out["memory_bandwidth"] == found_out["cpu_power"] == "ok"
    assert found_out["dram_power"] == found_out["node_power"] == "absent"
    wanted = {
        "dram.read.bytes_per_s": counts_per_s * BYTES,
        "cpu.power.watts": counts_per_s * 1e-8,  # and nothing of powercap, which is the same
    }
    assert set(found) == {(metric, at) for metric in wanted for at in (None, "socket0")}
    for (metric, _), (value, flags) in found.items():
        assert value == pytest.approx(wanted[metric], rel=WITHIN)
        assert flags == 0


def test_a_controller_whose_event_is_unreadable_leaves_out_the_sum(
    tmp_path: Path, clock: Clock
) -> None:
    node = make_node(tmp_path, clock)
    make_pmu(node, clock, "uncore_imc_free_running_1", {"read": ("none", "MiB")})
    sampler = make_sampler(node)
    samples(sampler)
    time.sleep(1.0)
    assert {metric for metric, _ in samples(sampler)} == {"cpu.power.watts"}
    assert states(sampler)["memory_bandwidth"] == "absent"
    assert "uncore_imc_free_running_1/events/read.scale" in reason(sampler, "memory_bandwidth")


def test_counters_are_closed_with_their_sampler(tmp_path: Path, clock: Clock) -> None:
    def descriptors() -> int:
        return sum(1 for _ in Path("/proc/self/fd").iterdir())

    gc.collect()  # what other tests have left would be closed at any time
    before = descriptors()
    sampler = make_sampler(make_node(tmp_path, clock))
    samples(sampler)
    assert descriptors() > before
    del sampler
    assert descriptors() == before


@pytest.mark.skipif(os.geteuid() != 0, reason="gives up root to be refused")
def test_without_the_right_to_count_it_says_why_and_what_to_do(public: Node) -> None:
    paranoid = Path("/proc/sys/kernel/perf_event_paranoid").read_text().strip()
    if int(paranoid) <= 0:
        pytest.skip(f"anybody may count here: perf_event_paranoid is {paranoid}")
    public.write("sys/kernel/perf_event_paranoid", f"{paranoid}\n")
    (public.sysfs / "class/powercap/intel-rapl:0/energy_uj").unlink()
    with without_rights(public):
        sampler = make_sampler(public)
        assert samples(sampler) == {}
    for part in ("memory_bandwidth", "cpu_power"):
        assert states(sampler)[part] == "denied"
        text = reason(sampler, part)
        assert "on CPU 0 (socket0)" in text
        assert f"kernel.perf_event_paranoid is {paranoid}" in text
        assert "sysctl kernel.perf_event_paranoid=0" in text
        assert "haiprof-perfd" in text


def test_a_pmu_that_the_kernel_has_not_is_named(tmp_path: Path) -> None:
    node = make_node(tmp_path, Clock("software"))
    node.write_sys("bus/event_source/devices/uncore_imc_free_running_0/type", "123456\n")
    sampler = make_sampler(node)
    assert not any(metric.startswith("dram.") for metric, _ in samples(sampler))
    assert states(sampler)["memory_bandwidth"] in ("absent", "denied")
    assert "uncore_imc_free_running_0 on CPU 0 (socket0)" in reason(sampler, "memory_bandwidth")


def test_a_virtual_machine_hides_its_counters(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.write_sys("bus/event_source/devices/software/type", "1\n")
    node.write("cpuinfo", "vendor_id : AuthenticAMD\nflags : fpu hypervisor sse\n")
    sampler = make_sampler(node)
    assert samples(sampler) == {}
    assert "a virtual machine hides them" in reason(sampler, "memory_bandwidth")
    assert states(sampler) == dict.fromkeys(states(sampler), "absent")
    # The recorder asks after each reading, and opening cpuinfo can take 10 ms.
    (node.procfs / "cpuinfo").unlink()
    assert "a virtual machine hides them" in reason(sampler, "memory_bandwidth")
    assert "a virtual machine hides them" in reason(sampler, "pcie")


def test_a_pmu_that_haiprof_does_not_know_is_no_virtual_machine(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.write_sys("bus/event_source/devices/mrvl_ddr_pmu_0/cpumask", "0\n")
    node.write_sys("bus/event_source/devices/uncore_cha_0/cpumask", "0\n")
    node.write("cpuinfo", "vendor_id : AuthenticAMD\nflags : fpu hypervisor sse\n")
    text = reason(make_sampler(node), "memory_bandwidth")
    assert "that haiprof knows; PMU mrvl_ddr_pmu_0: not known" in text
    assert "virtual machine" not in text
