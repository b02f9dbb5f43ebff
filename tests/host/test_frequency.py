"""The frequency of the cores, from cpufreq or from /proc/cpuinfo."""

from __future__ import annotations

from pathlib import Path

import pytest
from host_trees import SECOND, Key, Node, reason, recorded, states

from haiprof import _core


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def add_cpu(
    node: Node,
    cpu: int,
    khz: int | str | None,
    *,
    siblings: str | None = None,
    package: int | None = 0,
) -> None:
    folder = f"devices/system/cpu/cpu{cpu}"
    node.write_sys(f"{folder}/topology/thread_siblings_list", f"{siblings or cpu}\n")
    if package is not None:
        node.write_sys(f"{folder}/topology/physical_package_id", f"{package}\n")
    if khz is not None:
        node.write_sys(f"{folder}/cpufreq/scaling_cur_freq", f"{khz}\n")


def of(values: dict[Key, float]) -> dict[str | None, float]:
    return {i: v for (_, name, i), v in values.items() if name == "cpu.frequency.hertz"}


def test_mean_of_the_node_and_of_each_socket(node: Node) -> None:
    node.write_sys("devices/system/cpu/online", "0-3\n")
    for cpu, khz in enumerate((1_000_000, 2_000_000, 3_000_000, 3_600_000)):
        add_cpu(node, cpu, khz, package=7 * (cpu // 2))  # packages may be numbered oddly
    assert of(node.tick(node.sampler())) == {
        None: 2.4e9,
        "socket0": 1.5e9,
        "socket1": 3.3e9,
    }


def test_hyper_threads_of_a_core_are_read_once(node: Node) -> None:
    node.write_sys("devices/system/cpu/online", "0-3\n")
    add_cpu(node, 0, 1_000_000, siblings="0,2")
    add_cpu(node, 1, 2_000_000, siblings="1,3")
    add_cpu(node, 2, 9_000_000, siblings="0,2")
    add_cpu(node, 3, 9_000_000, siblings="1,3")
    assert of(node.tick(node.sampler()))[None] == 1.5e9


def test_it_is_read_every_ten_seconds_at_most(node: Node) -> None:
    node.write_sys("devices/system/cpu/online", "0\n")
    add_cpu(node, 0, 1_000_000)
    sampler = node.sampler(interval=1.0)
    assert of(node.tick(sampler))
    assert not of(node.tick(sampler, 9.0))
    assert of(node.tick(sampler, 1.0))


def test_a_core_that_reports_nothing_is_left_out(node: Node) -> None:
    node.write_sys("devices/system/cpu/online", "0-4\n")
    add_cpu(node, 0, 1_000_000)
    add_cpu(node, 1, "<unknown>")
    add_cpu(node, 2, 0)
    add_cpu(node, 3, "")
    add_cpu(node, 4, 99_999_999_999)
    assert of(node.tick(node.sampler())) == {None: 1e9, "socket0": 1e9}


def test_cores_that_come_and_go(node: Node) -> None:
    node.write_sys("devices/system/cpu/online", "0,2\n")
    for cpu in range(3):
        add_cpu(node, cpu, (cpu + 1) * 1_000_000)
    sampler = node.sampler()
    assert of(node.tick(sampler))[None] == 2e9  # not cpu1
    node.write_sys("devices/system/cpu/online", "0-1\n")
    assert of(node.tick(sampler, 10.0))[None] == 1.5e9


def test_one_policy_for_several_cores_and_no_package(node: Node) -> None:
    node.write_sys("devices/system/cpu/online", "0-1\n")
    for cpu in range(2):
        add_cpu(node, cpu, None, package=None)
    node.write_sys("devices/system/cpu/cpufreq/policy0/scaling_cur_freq", "1200000\n")
    assert of(node.tick(node.sampler())) == {None: 1.2e9}


CPUINFO = """\
processor\t: 0
physical id\t: 0
cpu MHz\t\t: 2000.500
flags\t\t: fpu aperfmperf sse

processor\t: 1
physical id\t: 1
cpu MHz\t\t: 3000.000
flags\t\t: fpu aperfmperf sse
"""


def test_cpuinfo_where_there_is_no_cpufreq(node: Node) -> None:
    node.write("cpuinfo", CPUINFO)
    assert of(node.tick(node.sampler())) == {
        None: 2.50025e9,
        "socket0": 2.0005e9,
        "socket1": 3e9,
    }


def test_a_constant_of_a_virtual_machine_is_no_frequency(node: Node) -> None:
    node.write("cpuinfo", CPUINFO.replace(" aperfmperf", ""))
    sampler = node.sampler()
    assert states(sampler)["frequency"] == "absent"
    assert "has no cpufreq" in reason(sampler, "frequency")
    assert "aperfmperf" in reason(sampler, "frequency")
    assert of(node.tick(sampler)) == {}


@pytest.mark.parametrize("mhz", ["", "x", "-1", "2000.5", "1e3", "2000.500.1", "9" * 30])
def test_odd_frequencies_in_cpuinfo(node: Node, mhz: str) -> None:
    node.write("cpuinfo", CPUINFO.replace("2000.500", mhz))
    assert of(node.tick(node.sampler())) == {None: 3e9, "socket1": 3e9}


@pytest.mark.parametrize(
    ("release", "hertz"),
    [
        ("4.18.0-553.el8_10.x86_64", 2.50025e9),
        ("5.4.0-190-generic", 2.50025e9),
        ("5.18.19", 2.50025e9),
        ("5.19.0", 1e9),
        ("6.1.0-54-amd64", 1e9),
        ("x", 1e9),
    ],
)
def test_kernels_that_sleep_for_each_core_are_asked_for_all_at_once(
    node: Node, release: str, hertz: float
) -> None:
    node.write("sys/kernel/osrelease", f"{release}\n")
    node.write("cpuinfo", CPUINFO)
    node.write_sys("devices/system/cpu/online", "0\n")
    add_cpu(node, 0, 1_000_000)
    sampler = node.sampler()
    assert of(node.tick(sampler))[None] == hertz
    node.write_sys("devices/system/cpu/online", "0-0\n")  # looks again
    assert of(node.tick(sampler, 10.0))[None] == hertz


def test_an_old_kernel_that_counts_no_cycles_does_not_sleep(node: Node) -> None:
    node.write("sys/kernel/osrelease", "5.4.0-190-generic\n")
    node.write("cpuinfo", CPUINFO.replace(" aperfmperf", ""))
    node.write_sys("devices/system/cpu/online", "0\n")
    add_cpu(node, 0, 1_000_000)
    assert of(node.tick(node.sampler()))[None] == 1e9


def test_nothing_at_all(node: Node) -> None:
    sampler = node.sampler()
    assert states(sampler)["frequency"] == "absent"
    assert str(node.procfs / "cpuinfo") in reason(sampler, "frequency")


def test_256_cpus_stay_within_the_share(node: Node) -> None:
    node.write_sys("devices/system/cpu/online", "0-255\n")
    for cpu in range(256):
        add_cpu(
            node, cpu, 2_000_000, siblings=f"{cpu % 128},{cpu % 128 + 128}", package=cpu % 128 // 64
        )
    sampler = node.sampler()
    for _ in range(5):
        assert of(node.tick(sampler, 10.0)) == {None: 2e9, "socket0": 2e9, "socket1": 2e9}
    row = next(row for row in sampler.sources() if row["name"] == "frequency")
    assert row["interval_s"] == 10.0
    assert float(str(row["cost_us"])) < 10_000.0  # of 10 s: 0.1 % of a core


def test_recorded_machine_with_cpufreq(tmp_path: Path) -> None:
    root = recorded("node_exporter", tmp_path)
    sampler = _core.HostSampler(procfs=str(root / "proc"), sysfs=str(root / "sys"))
    values = of({row[:3]: row[3] for row in sampler.read(SECOND)})
    files = root.glob("sys/devices/system/cpu/cpu*/cpufreq/scaling_cur_freq")
    khz = [int(path.read_text()) for path in files]
    assert min(khz) * 1e3 <= values[None] <= max(khz) * 1e3
