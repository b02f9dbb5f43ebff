"""The sources of the whole node, on trees whose numbers are worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from host_trees import STAT, Key, Node, reason, states

from haiprof import _core


@pytest.fixture
def node(tmp_path: Path) -> Node:
    node = Node(tmp_path)
    node.write("stat", STAT)
    return node


# ---- cpu


def test_cpu_shares_of_two_snapshots(node: Node) -> None:
    sampler = node.sampler()
    first = node.tick(sampler)
    assert (0, "cpu.util.percent", None) not in first  # a baseline is no sample
    assert first[0, "cpu.run_queue.threads", None] == 3.0
    # +200 ticks in all: 60 user, 20 nice, 10 system, 5 irq, 5 softirq, 70 idle, 20 iowait, 10 steal
    node.write(
        "stat",
        "cpu  160 20 60 870 70 5 5 10 0 0\n"
        "cpu0 150 0 25 400 25 0 0 0 0 0\n"
        "cpu1 50 0 25 500 25 0 0 0 0 0\n"
        "ctxt 5000\nprocs_running 7\n",
    )
    values = node.tick(sampler, 2.0)
    assert values[0, "cpu.util.percent", None] == pytest.approx(50.0)
    assert values[0, "cpu.user.percent", None] == pytest.approx(40.0)
    assert values[0, "cpu.system.percent", None] == pytest.approx(10.0)
    assert values[0, "cpu.iowait.percent", None] == pytest.approx(10.0)
    assert values[0, "cpu.steal.percent", None] == pytest.approx(5.0)
    assert values[0, "cpu.util.percent", "cpu0"] == pytest.approx(100.0)
    assert values[0, "cpu.util.percent", "cpu1"] == pytest.approx(0.0)
    assert values[0, "cpu.context_switches.per_s", None] == pytest.approx(2000.0)
    assert values[0, "cpu.run_queue.threads", None] == 7.0


def test_guest_time_is_counted_once(node: Node) -> None:
    sampler = node.sampler()
    node.tick(sampler)
    # The kernel's user column holds the 50 guest ticks already.
    node.write("stat", "cpu  150 0 50 850 50 0 0 0 50 0\n")
    assert node.tick(sampler)[0, "cpu.util.percent", None] == pytest.approx(50.0)


def test_offline_core_is_absent_and_starts_anew_when_it_returns(node: Node) -> None:
    sampler = node.sampler()
    node.tick(sampler)
    without = STAT.replace("cpu1 50 0 25 400 25 0 0 0 0 0\n", "")
    node.write("stat", without.replace("cpu0 50", "cpu0 150"))
    values = node.tick(sampler)
    assert values[0, "cpu.util.percent", "cpu0"] == pytest.approx(100.0)
    assert (0, "cpu.util.percent", "cpu1") not in values
    node.write("stat", STAT.replace("cpu0 50", "cpu0 250").replace("cpu1 50", "cpu1 950"))
    assert (0, "cpu.util.percent", "cpu1") not in node.tick(sampler)
    node.write("stat", STAT.replace("cpu0 50", "cpu0 350").replace("cpu1 50", "cpu1 975"))
    assert node.tick(sampler)[0, "cpu.util.percent", "cpu1"] == pytest.approx(100.0)


def test_512_cores(node: Node) -> None:
    def stat(user: int) -> str:
        cores = "".join(
            f"cpu{i} {user * (i % 2)} 0 0 {1000 + user} 0 0 0 0 0 0\n" for i in range(512)
        )
        return f"cpu  {user * 256} 0 0 {512 * (1000 + user)} 0 0 0 0 0 0\n{cores}ctxt 1\n"

    node.write("stat", stat(0))
    sampler = node.sampler()
    node.tick(sampler)
    node.write("stat", stat(100))
    values = node.tick(sampler)
    cores = {i: v for (_, metric, i), v in values.items() if metric == "cpu.util.percent" and i}
    assert len(cores) == 512
    assert cores["cpu510"] == pytest.approx(0.0)
    assert cores["cpu511"] == pytest.approx(50.0)


def test_counter_that_goes_backwards_gives_no_sample(node: Node) -> None:
    sampler = node.sampler()
    node.tick(sampler)
    node.write("stat", "cpu  10 0 5 80 5 0 0 0\nctxt 10\nprocs_running 1\n")
    values = node.tick(sampler)
    assert (0, "cpu.util.percent", None) not in values
    assert (0, "cpu.context_switches.per_s", None) not in values
    node.write("stat", "cpu  20 0 5 90 5 0 0 0\nctxt 30\nprocs_running 1\n")
    values = node.tick(sampler)
    assert values[0, "cpu.util.percent", None] == pytest.approx(50.0)
    assert values[0, "cpu.context_switches.per_s", None] == pytest.approx(20.0)


def test_iowait_that_the_kernel_takes_back_leaves_the_others_alone(node: Node) -> None:
    sampler = node.sampler()
    node.tick(sampler)
    node.write("stat", "cpu  200 0 50 800 40 0 0 0 0 0\n")
    values = node.tick(sampler)
    assert (0, "cpu.iowait.percent", None) not in values
    assert values[0, "cpu.util.percent", None] == 100.0  # never above, though 100 of 90 ticks


# ---- memory

MEMINFO = """\
MemTotal:       1000 kB
MemFree:         100 kB
MemAvailable:    400 kB
Cached:          300 kB
Dirty:            10 kB
Shmem:            20 kB
SwapTotal:       200 kB
SwapFree:        150 kB
HugePages_Total:       8
HugePages_Free:        3
Hugepagesize:       2048 kB
"""


def memory(values: dict[tuple[int, str, str | None], float]) -> dict[str, float]:
    return {metric: v for (_, metric, _), v in values.items() if metric.startswith("mem.")}


def test_memory(node: Node) -> None:
    node.write("meminfo", MEMINFO)
    assert memory(node.tick(node.sampler())) == {
        "mem.total.bytes": 1000 * 1024,
        "mem.used.bytes": 600 * 1024,
        "mem.available.bytes": 400 * 1024,
        "mem.cached.bytes": 300 * 1024,
        "mem.dirty.bytes": 10 * 1024,
        "mem.shmem.bytes": 20 * 1024,
        "mem.swap_used.bytes": 50 * 1024,
        "mem.hugepages_total.bytes": 8 * 2048 * 1024,
        "mem.hugepages_used.bytes": 5 * 2048 * 1024,
    }


def test_memory_of_an_old_kernel_has_no_available_and_so_no_used(node: Node) -> None:
    node.write("meminfo", "MemTotal:  1000 kB\nMemFree:  100 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n")
    assert memory(node.tick(node.sampler())) == {"mem.total.bytes": 1000 * 1024}


VMSTAT = """\
nr_free_pages 5000
pswpin {swapped}
allocstall_dma 1
allocstall_normal {stalls}
compact_stall 7
thp_fault_alloc {huge}
thp_split_page 0
thp_split_page_failed 5
numa_pages_migrated 0
"""


def test_what_the_kernel_did_to_find_memory(node: Node) -> None:
    node.write("vmstat", VMSTAT.format(swapped=0, stalls=5, huge=100))
    sampler = node.sampler()
    node.tick(sampler)
    node.write("vmstat", VMSTAT.format(swapped=30, stalls=25, huge=100))
    names = ("mem.reclaim", "mem.compaction", "mem.huge_page_", "mem.swap_", "numa.")
    values = {k[1]: v for k, v in node.tick(sampler, 2.0).items() if k[1].startswith(names)}
    assert values == {
        "mem.reclaim_stalls.per_s": 10.0,
        "mem.compaction_stalls.per_s": 0.0,
        "mem.huge_page_faults.per_s": 0.0,
        "mem.swap_in.pages_per_s": 15.0,
    }


# ---- network

NET = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo
    lo: {lo} 1 0 0 0 0 0 0 {lo} 1 0 0 0 0 0 0
  eth0:{rx} 1 {errors} 0 0 0 0 0 {tx} 1 0 {drops} 0 0 0 0
  ifb0: 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0
vethab: 5 5 5 5 0 0 0 0 5 5 5 5 0 0 0 0
"""


def test_network_by_interface(node: Node) -> None:
    node.write("net/dev", NET.format(lo=10, rx=1000, tx=2000, errors=0, drops=0))
    sampler = node.sampler()
    node.tick(sampler)
    node.write("net/dev", NET.format(lo=10, rx=5000, tx=2500, errors=0, drops=6))
    values = {k[1:]: v for k, v in node.tick(sampler, 2.0).items() if k[1].startswith("net.")}
    assert values == {
        ("net.rx.bytes_per_s", "lo"): 0.0,
        ("net.tx.bytes_per_s", "lo"): 0.0,
        ("net.rx.bytes_per_s", "eth0"): 2000.0,
        ("net.tx.bytes_per_s", "eth0"): 250.0,
        ("net.tx_drops.per_s", "eth0"): 3.0,  # errors never happened: no series
    }


SNMP = """\
Ip: Forwarding DefaultTTL
Ip: 1 64
Tcp: RtoAlgorithm RtoMin RtoMax MaxConn InSegs OutSegs RetransSegs InErrs
Tcp: 1 200 120000 -1 7 {sent} {again} 0
Udp: InDatagrams OutSegs
Udp: 3 9
"""


def test_segments_that_tcp_sends_again(node: Node) -> None:
    node.write("net/snmp", SNMP.format(sent=1000, again=5))
    sampler = node.sampler()
    assert states(sampler)["tcp"] == "ok"
    node.tick(sampler)
    node.write("net/snmp", SNMP.format(sent=3000, again=5))
    assert node.tick(sampler, 2.0)[0, "tcp.sent.segments_per_s", None] == 1000.0
    node.write("net/snmp", SNMP.format(sent=3200, again=25))
    values = {k[1]: v for k, v in node.tick(sampler, 2.0).items() if k[1].startswith("tcp.")}
    assert values == {
        "tcp.sent.segments_per_s": 100.0,
        "tcp.retransmitted.segments_per_s": 10.0,
    }


NETSTAT = """\
TcpExt: SyncookiesSent ListenOverflows ListenDrops TW
TcpExt: 0 {overflows} {drops} 9
IpExt: InNoRoutes ListenDrops
IpExt: 1 2
"""


def test_connections_that_nobody_took_in_time(node: Node) -> None:
    node.write("net/snmp", SNMP.format(sent=1, again=1))
    sampler = node.sampler()
    assert states(sampler)["tcp_listen"] == "absent"
    node.write("net/netstat", NETSTAT.format(overflows=2, drops=0))
    assert not any("listen" in metric for _, metric, _ in node.tick(sampler))
    assert states(sampler)["tcp_listen"] == "ok"
    node.write("net/netstat", NETSTAT.format(overflows=8, drops=0))
    values = {k[1]: v for k, v in node.tick(sampler, 2.0).items() if "listen" in k[1]}
    assert values == {"tcp.listen_overflows.per_s": 3.0}  # nothing was ever dropped


def softnet(*rows: tuple[int, int]) -> str:
    return "".join(
        f"00aa{i:04x} {drops:08x} {short:08x}" + " 00000000" * 10 + "\n"
        for i, (drops, short) in enumerate(rows)
    )


def test_packets_that_no_cpu_could_take_in_time(node: Node) -> None:
    node.write("net/softnet_stat", softnet((0, 0), (0x10, 0)))
    sampler = node.sampler()
    node.tick(sampler)
    node.write("net/softnet_stat", softnet((2, 0), (0x1A, 0)))
    values = {k[1]: v for k, v in node.tick(sampler, 2.0).items() if "softnet" in k[1]}
    assert values == {"net.softnet_drops.per_s": 6.0}


def test_what_a_cpu_had_dropped_is_not_new_when_it_comes_back(node: Node) -> None:
    node.write("net/softnet_stat", softnet((1, 1), (100, 100)))
    sampler = node.sampler()
    node.tick(sampler)
    for rows in (((1, 1),), ((1, 1), (100, 100))):
        node.write("net/softnet_stat", softnet(*rows))
        assert (0, "net.softnet_drops.per_s", None) not in node.tick(sampler)
    assert (0, "net.softnet_drops.per_s", None) not in node.tick(sampler)  # a baseline
    assert node.tick(sampler)[0, "net.softnet_drops.per_s", None] == 0.0


def test_interface_that_appears_starts_with_a_baseline(node: Node) -> None:
    node.write("net/dev", "  eth0: 1 0 0 0 0 0 0 0 1 0 0 0 0 0 0 0\n")
    sampler = node.sampler()
    node.tick(sampler)
    late = "  ib0: 9000 0 0 0 0 0 0 0 1 0 0 0 0 0 0 0\n  eth0: 1 0 0 0 0 0 0 0 1 0 0 0 0 0 0 0\n"
    node.write("net/dev", late)
    assert (0, "net.rx.bytes_per_s", "ib0") not in node.tick(sampler)
    node.write("net/dev", late.replace("9000", "9500"))
    values = node.tick(sampler)
    assert values[0, "net.rx.bytes_per_s", "ib0"] == 500.0
    assert values[0, "net.rx.bytes_per_s", "eth0"] == 0.0


def test_network_of_a_mounted_host_proc_is_that_of_its_first_process(node: Node) -> None:
    row = "  eth0: {} 0 0 0 0 0 0 0 1 0 0 0 0 0 0 0\n"
    node.write("net/dev", row.format(1))
    node.write("1/net/dev", row.format(100))
    sampler = node.sampler()
    node.tick(sampler)
    node.write("1/net/dev", row.format(300))
    assert node.tick(sampler)[0, "net.rx.bytes_per_s", "eth0"] == 200.0


# ---- how much of an interface is in use

ROW = "  {}: {} 0 0 0 0 0 0 0 {} 0 0 0 0 0 0 0\n"


def util(values: dict[Key, float]) -> dict[tuple[str, str | None], float]:
    return {(m, i): v for (_, m, i), v in values.items() if m.endswith("_util.percent")}


def speed(node: Node, name: str, text: str | bytes, *, virtual: bool = False) -> None:
    """Write an interface's speed behind the link by which /sys/class/net leads to its device."""
    place = f"devices/{'virtual' if virtual else 'pci0000:00/0000:00:02.0'}/net/{name}"
    node.write_sys(f"{place}/speed", text)
    link = node.sysfs / "class/net" / name
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.is_symlink():
        link.symlink_to(f"../../{place}")


def test_interfaces_in_percent_of_their_speed(node: Node) -> None:
    speed(node, "eth0", "1000\n")
    speed(node, "eth1", "200000\n")
    node.write("net/dev", ROW.format("eth0", 1, 1) + ROW.format("eth1", 1, 1))
    sampler = node.sampler()
    assert util(node.tick(sampler)) == {}
    node.write(
        "net/dev",
        ROW.format("eth0", 1 + 125_000_000, 1 + 25_000_000)
        + ROW.format("eth1", 1 + 5_000_000_000, 1),
    )
    assert util(node.tick(sampler, 2.0)) == {
        ("net.rx_util.percent", "eth0"): pytest.approx(50.0),
        ("net.tx_util.percent", "eth0"): pytest.approx(10.0),
        ("net.rx_util.percent", "eth1"): pytest.approx(10.0),
        ("net.tx_util.percent", "eth1"): 0.0,
    }
    assert states(sampler)["network_util"] == "ok"


@pytest.mark.parametrize("text", ["-1\n", "4294967295\n", "0\n", "", "fast\n", b"\xff\n"])
def test_an_interface_that_does_not_know_its_speed(node: Node, text: str | bytes) -> None:
    speed(node, "eth0", text)
    node.write("net/dev", ROW.format("eth0", 1, 1))
    sampler = node.sampler()
    node.tick(sampler)
    values = node.tick(sampler)
    assert util(values) == {}
    assert values[0, "net.rx.bytes_per_s", "eth0"] == 0.0
    assert "no interface has a speed" in reason(sampler, "network_util")


def test_a_virtual_interface_has_a_speed_that_means_nothing(node: Node) -> None:
    speed(node, "tap0", "10\n", virtual=True)
    node.write("net/dev", ROW.format("tap0", 1, 1))
    sampler = node.sampler()
    node.tick(sampler)
    assert util(node.tick(sampler)) == {}
    assert states(sampler)["network_util"] == "absent"


def test_a_speed_that_changes(node: Node) -> None:
    speed(node, "eth0", "-1\n")
    node.write("net/dev", ROW.format("eth0", 1, 1))
    sampler = node.sampler()
    node.tick(sampler)
    speed(node, "eth0", "1000\n")
    assert util(node.tick(sampler, 61.0)) == {}  # a baseline
    node.write("net/dev", ROW.format("eth0", 1 + 12_500_000, 1))
    assert util(node.tick(sampler))["net.rx_util.percent", "eth0"] == pytest.approx(10.0)
    speed(node, "eth0", "100\n")
    node.tick(sampler, 61.0)
    node.write("net/dev", ROW.format("eth0", 1 + 2 * 12_500_000, 1))
    assert util(node.tick(sampler))["net.rx_util.percent", "eth0"] == pytest.approx(100.0)


def test_speeds_are_those_of_the_network_namespace_that_is_read(node: Node) -> None:
    """With the node's /proc mounted and its /sys not, eth0 of both is not the same."""
    node.write("1/net/dev", ROW.format("eth0", 1, 1))
    sampler = _core.HostSampler(procfs=str(node.procfs))
    node.tick(sampler)
    assert util(node.tick(sampler)) == {}
    assert states(sampler)["network_util"] == "absent"
    assert "different network namespaces" in reason(sampler, "network_util")
    assert "HAIPROF_SYSFS_ROOT" in reason(sampler, "network_util")


# ---- disks


def disk_row(major: int, name: str, read: int, written: int, busy: int) -> str:
    return f" {major} 0 {name} 1 0 {read} 1 1 0 {written} 1 0 {busy} 1\n"


def test_only_whole_disks_are_counted(node: Node) -> None:
    names = [
        *("sda", "sda1", "sda12", "nvme0n1", "nvme0n1p1", "nvme0c0n1", "mmcblk0", "mmcblk0p2"),
        *("xvda1", "sdaa", "md127", "md127p1", "dm-0", "loop3", "ram0", "zram0", "sr0", "bcache0"),
        *("fancy0", "vdb"),
    ]
    # A driver that is not known by name, on top of another disk.
    node.write_sys("block/fancy0/slaves/vdb", "")
    node.write("diskstats", "".join(disk_row(8, name, 1, 1, 1) for name in names))
    sampler = node.sampler()
    node.tick(sampler)
    node.write("diskstats", "".join(disk_row(8, name, 3, 5, 251) for name in names))
    values = node.tick(sampler)
    assert {i for (_, metric, i) in values if metric == "disk.busy.percent"} == {
        *("sda", "nvme0n1", "mmcblk0", "xvda1", "sdaa", "vdb")
    }
    assert values[0, "disk.read.bytes_per_s", "sda"] == 2 * 512
    assert values[0, "disk.write.bytes_per_s", "sda"] == 4 * 512
    assert values[0, "disk.busy.percent", "sda"] == pytest.approx(25.0)


def test_how_long_requests_take_and_how_many_wait(node: Node) -> None:
    node.write("diskstats", " 259 0 nvme0n1 100 0 800 50 200 0 1600 90 3 140 1000 5 0 0 0\n")
    sampler = node.sampler()
    node.tick(sampler)
    node.write("diskstats", " 259 0 nvme0n1 120 0 960 150 200 0 1600 90 3 1140 9000 5 0 0 0\n")
    values = {k[1]: v for k, v in node.tick(sampler, 2.0).items() if k[2] == "nvme0n1"}
    assert values["disk.read_latency.milliseconds"] == pytest.approx(5.0)
    assert "disk.write_latency.milliseconds" not in values  # none ended
    assert values["disk.queue.requests"] == pytest.approx(4.0)
    assert values["disk.busy.percent"] == pytest.approx(50.0)


# ---- pressure


def pressure(some: int, full: int | None = None) -> str:
    rows = {"some": some, "full": full}
    return "".join(
        f"{name} avg10=0.00 avg60=0.00 avg300=0.00 total={total}\n"
        for name, total in rows.items()
        if total is not None
    )


def test_pressure_is_the_share_of_time_that_tasks_stood_still(node: Node) -> None:
    node.write("pressure/cpu", pressure(1000))
    node.write("pressure/io", pressure(5000, 3000))
    node.write("pressure/memory", pressure(7000, 6000))
    sampler = node.sampler()
    node.tick(sampler)
    node.write("pressure/cpu", pressure(501000))
    node.write("pressure/io", pressure(205000, 103000))
    node.write("pressure/memory", pressure(7000, 6000))
    values = {k[1]: v for k, v in node.tick(sampler, 2.0).items() if k[1].startswith("psi.")}
    assert values == {
        "psi.cpu_some.percent": pytest.approx(25.0),
        "psi.io_some.percent": pytest.approx(10.0),
        "psi.io_full.percent": pytest.approx(5.0),
        "psi.memory_some.percent": 0.0,
        "psi.memory_full.percent": 0.0,
    }


def test_kernel_without_pressure_figures_says_how_to_get_them(node: Node) -> None:
    sampler = node.sampler()
    assert states(sampler)["pressure"] == "absent"
    assert "psi=1" in reason(sampler, "pressure")


def test_missing_files_are_absent_with_a_reason_and_a_fix(tmp_path: Path) -> None:
    sampler = Node(tmp_path).sampler()
    for row in sampler.sources():
        assert row["state"] == "absent", row
        assert row["reason"], row
        assert row["mend"], row
    assert "stat: No such file" in reason(sampler, "cpu")
