"""The /proc and /sys of a made-up two-socket server, whose counters are really opened.

Its PMUs carry the type of one that every machine has, so each counter of the plan is a descriptor
of the kernel that is read like the real one; only what it counts is something else.
"""

from __future__ import annotations

from pathlib import Path

CORES = 64
WORKERS = 16
THREADS = 24
RANK = 1000
#: perf_event.h: PERF_TYPE_SOFTWARE. Every machine has it.
SOFTWARE = 1

_NFS = """\
device proc mounted on /proc with fstype proc
device server:/data mounted on /data with fstype nfs4 statvers=1.1
\tage:\t5
\tbytes:\t1 2 3 4 5 6 7 8
\tper-op statistics
\t READ: 3 3 0 4 5 6 7 8 0
\t WRITE: 3 4 0 4 5 6 7 8 0

"""
_STATUS = "Name:\tpython\nCpus_allowed_list:\t0-63\nvoluntary_ctxt_switches:\t5\n"
_STATUS += "nonvoluntary_ctxt_switches:\t6\n"


def make(root: Path, adapters: int, stacks: int) -> tuple[Path, Path]:
    """Write the tree below ``root``; return its ``proc`` and ``sys``.

    Args:
        root: where.
        adapters: InfiniBand ports.
        stacks: PCIe stacks of a socket whose traffic is counted, with eight ports each.
    """
    proc, sys = root / "proc", root / "sys"
    _node(proc, sys)
    _counters(sys / "bus" / "event_source" / "devices", stacks)
    _fabric(sys / "class" / "infiniband", adapters)
    _job(proc, sys)
    return proc, sys


def _put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _node(proc: Path, sys: Path) -> None:
    row = "100 0 50 800 50 0 0 0 0 0"
    cores = "".join(f"cpu{core} {row}\n" for core in range(CORES))
    _put(proc / "stat", f"cpu  {row}\n{cores}intr 5\nctxt 1000\nprocs_running 3\n")
    _put(proc / "loadavg", f"0.1 0.2 0.3 1/100 {RANK + WORKERS}\n")
    memory = "MemTotal: 527000000 kB\nMemFree: 9000000 kB\nMemAvailable: 400000000 kB\n"
    _put(proc / "meminfo", memory + "Cached: 5 kB\nSwapTotal: 9 kB\nSwapFree: 3 kB\n")
    cpu = "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\ncpu MHz\t\t: 2600.0\n\n"
    _put(proc / "cpuinfo", cpu * CORES)
    ports = ("lo", "eth0", "eth1", "ib0", "ib1")
    rows = "".join(f"{name}: 10 1 2 3 0 0 0 0 20 1 2 3 0 0 0 0\n" for name in ports)
    _put(proc / "net" / "dev", "Inter-| Receive\n face |bytes\n" + rows)
    disks = "".join(f"259 {n} nvme{n}n1 1 0 20 1 1 0 30 1 0 40 1\n" for n in range(4))
    _put(proc / "diskstats", disks)
    for name in ("cpu", "io", "memory"):
        stalled = "avg10=0.00 avg60=0.00 avg300=0.00 total=50\n"
        _put(proc / "pressure" / name, f"some {stalled}full {stalled}")
    for core in range(CORES):
        folder = sys / "devices" / "system" / "cpu" / f"cpu{core}"
        _put(folder / "topology" / "physical_package_id", f"{core % 2}\n")
        _put(folder / "cpufreq" / "scaling_cur_freq", "2600000\n")
    _put(sys / "devices" / "system" / "cpu" / "online", f"0-{CORES - 1}\n")
    _put(sys / "devices" / "system" / "node" / "online", "0-1\n")
    for node in range(2):
        folder = sys / "devices" / "system" / "node" / f"node{node}"
        _put(folder / "cpulist", ",".join(map(str, range(node, CORES, 2))) + "\n")
        keys = ("MemTotal: 263500000", "MemFree: 4500000", "MemUsed: 259000000")
        _put(folder / "meminfo", "".join(f"Node {node} {key} kB\n" for key in keys))
        counts = ("numa_hit", "numa_miss", "numa_foreign", "interleave_hit", "local_node")
        _put(folder / "numastat", "".join(f"{key} 5\n" for key in (*counts, "other_node")))


def _counters(devices: Path, stacks: int) -> None:
    """Eight memory channels and four links a socket, stacks of PCIe ports, RAPL."""

    def pmu(name: str, events: dict[str, str], scale: str, unit: str) -> None:
        _put(devices / name / "type", f"{SOFTWARE}\n")
        _put(devices / name / "cpumask", "0,1\n")
        # A link's event has no name; its terms are put where the kernel does not look.
        elsewhere = name.startswith("uncore_upi")
        word = "config1" if elsewhere else "config"
        _put(devices / name / "format" / "event", f"{word}:0-7\n")
        _put(devices / name / "format" / "umask", f"{word}:8-15\n")
        for event, terms in events.items():
            _put(devices / name / "events" / event, terms + "\n")
            _put(devices / name / "events" / f"{event}.scale", scale + "\n")
            _put(devices / name / "events" / f"{event}.unit", unit + "\n")

    # Each event of a PMU is another of the kernel's: equal ones would be one counter.
    for box in range(8):
        cas = {"cas_count_read": "event=0x02", "cas_count_write": "event=0x00"}
        pmu(f"uncore_imc_{box}", cas, "6.103515625e-5", "MiB")
    for box in range(4):
        pmu(f"uncore_upi_{box}", {}, "", "")
    for box in range(stacks):
        ports = {f"bw_in_port{port}": f"event={port:#04x}" for port in range(8)}
        pmu(f"uncore_iio_free_running_{box}", ports, "3.0517578125e-5", "MiB")
    energy = {"energy-pkg": "event=0x00", "energy-ram": "event=0x02"}
    pmu("power", energy, "2.3283064365386962e-10", "Joules")


def _fabric(classes: Path, adapters: int) -> None:
    names = ("port_xmit_data", "port_rcv_data", "port_xmit_packets", "port_rcv_packets")
    names += ("port_xmit_wait", "symbol_error", "link_downed", "port_rcv_errors")
    congestion = ("np_cnp_sent", "rp_cnp_handled", "out_of_sequence", "local_ack_timeout_err")
    for card in range(adapters):
        port = classes / f"mlx5_{card}" / "ports" / "1"
        for name in names:
            _put(port / "counters" / name, "1000\n")
        for name in congestion:
            _put(port / "hw_counters" / name, "0\n")
        _put(port / "rate", "200 Gb/sec (4X HDR)\n")
        _put(port / "state", "4: ACTIVE\n")
        _put(port / "link_layer", "InfiniBand\n")


def _job(proc: Path, sys: Path) -> None:
    """One rank with its DataLoader workers, in a control group of its own."""
    group = sys / "fs" / "cgroup" / "job"
    _put(proc / "self" / "mountinfo", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
    _put(proc / "self" / "mountstats", _NFS)
    _put(group / "cgroup.type", "domain\n")
    _put(group / "cpu.max", "3200000 100000\n")
    usage = "usage_usec 5\nnr_periods 9\nnr_throttled 2\nthrottled_usec 7\n"
    _put(group / "cpu.stat", usage)
    _put(group / "memory.current", "5000000\n")
    _put(group / "memory.max", "9000000\n")
    _put(group / "memory.stat", "anon 5\nfile 6\ninactive_file 70\n")
    _put(group / "memory.events", "oom 0\noom_kill 0\n")
    _put(group / "memory.numa_stat", "anon N0=4000000 N1=1000000\nfile N0=5 N1=6\n")
    _put(group / "io.stat", "259:0 rbytes=5 wbytes=6 rios=7 wios=8 dbytes=0 dios=0\n")
    for name in ("cpu", "io", "memory"):
        _put(group / f"{name}.pressure", "some avg10=0 avg60=0 avg300=0 total=50\n")
    for pid in range(RANK, RANK + WORKERS + 1):
        threads = THREADS if pid == RANK else 4
        parent = 1 if pid == RANK else RANK
        row = f"S {parent} 1 1 0 -1 4194304 100 50 3 0 7 8 9 10 20 0 {threads} 0 {pid} 1000 10 0"
        stat = f"{pid} (python) {row} 0 0 0 0 0 0 0 0 0 0 0 0 0 17 {pid % CORES} 0 0\n"
        _put(proc / str(pid) / "stat", stat)
        io = "rchar: 1\nwchar: 2\nsyscr: 3\nsyscw: 4\nread_bytes: 5\nwrite_bytes: 6\n"
        _put(proc / str(pid) / "io", io)
        _put(proc / str(pid) / "status", _STATUS)
        _put(proc / str(pid) / "cgroup", "0::/job\n")
        for thread in range(pid * 100, pid * 100 + threads):
            _put(proc / str(pid) / "task" / str(thread) / "stat", stat)
