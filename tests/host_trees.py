"""Small /proc and /sys trees for the host tests, and the recorded trees of real machines."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from real_data import DATA, need

from haiprof import _core

SECOND = 1_000_000_000

Key = tuple[int, str, str | None]

STAT = """\
cpu  100 0 50 800 50 0 0 0 0 0
cpu0 50 0 25 400 25 0 0 0 0 0
cpu1 50 0 25 400 25 0 0 0 0 0
ctxt 1000
procs_running 3
"""

# One healthy file of every kind that is read, for process 10.
FILES: dict[str, bytes] = {
    path: text.encode()
    for path, text in {
        "stat": STAT,
        "loadavg": "0.1 0.2 0.3 1/100 4000\n",
        "meminfo": "MemTotal: 1000 kB\nMemAvailable: 400 kB\nCached: 5 kB\nSwapTotal: 9 kB\n"
        "SwapFree: 3 kB\nHugePages_Total: 8\nHugePages_Free: 3\nHugepagesize: 2048 kB\n",
        "net/dev": "  eth0: 10 1 2 3 0 0 0 0 20 1 2 3 0 0 0 0\n",
        "net/snmp": "Tcp: MaxConn OutSegs RetransSegs\nTcp: -1 30 4\n",
        "net/netstat": "TcpExt: ListenOverflows ListenDrops TW\nTcpExt: 3 5 7\n",
        "net/softnet_stat": "0000000a 00000002 00000003 00000000\n0000000b 00000000 00000001\n",
        "vmstat": "allocstall_normal 3\nallocstall_movable 4\nthp_fault_alloc 5\npswpin 6\n",
        "self/statm": "1000 200 30 4 0 500 0\n",
        "fs/lustre/llite/scratch-ffff88/stats": "snapshot_time 1 secs.usecs\n"
        "read_bytes 3 samples [bytes] 1 9 27\nwrite_bytes 3 samples [bytes] 1 9 27\n",
        "sys/kernel/debug/ceph/ab.client4/metrics/size": "item total avg_sz(bytes) min_sz(bytes)\n"
        "----\nread 2 8 8 8 16\nwrite 1 4 4 4 4\n",
        "sys/devices/system/edac/mc/mc0/ce_count": "3\n",
        "sys/devices/system/edac/mc/mc0/ue_count": "0\n",
        "sys/bus/pci/devices/0000:01:00.0/class": "0x030200\n",
        "sys/bus/pci/devices/0000:01:00.0/current_link_width": "8\n",
        "sys/bus/pci/devices/0000:01:00.0/max_link_width": "16\n",
        "sys/bus/pci/devices/0000:01:00.0/current_link_speed": "16.0 GT/s PCIe\n",
        "sys/bus/pci/devices/0000:01:00.0/max_link_speed": "32.0 GT/s PCIe\n",
        "sys/bus/pci/devices/0000:01:00.0/aer_dev_correctable": "RxErr 3\nTOTAL_ERR_COR 3\n",
        "sys/class/hwmon/hwmon0/name": "nvme\n",
        "sys/class/hwmon/hwmon0/temp1_input": "41850\n",
        "10/task/10/schedstat": "7000 9000 5\n",
        "diskstats": " 8 0 sda 1 0 20 1 1 0 30 1 0 40 1\n 8 1 sda1 1 0 20 1 1 0 30 1 0 40 1\n",
        "pressure/cpu": "some avg10=0.00 avg60=0.00 avg300=0.00 total=50\n",
        "pressure/io": "some avg10=0.00 avg60=0.00 avg300=0.00 total=50\n"
        "full avg10=0.00 avg60=0.00 avg300=0.00 total=30\n",
        "10/stat": "10 (py thon) S 1 1 1 0 -1 4194304 100 50 3 0 7 8 9 10 20 0 4 0 500 1000 10 0\n",
        "10/io": "rchar: 1\nwchar: 2\nsyscr: 3\nsyscw: 4\nread_bytes: 5\nwrite_bytes: 6\n",
        "10/status": "Name:\tx\nCpus_allowed_list:\t0-3\n"
        "voluntary_ctxt_switches:\t5\nnonvoluntary_ctxt_switches:\t6\n",
        "10/task/10/stat": "10 (py thon) S 1 1 1 0 -1 4194304 100 50 3 0 7 8 0 0 20 0 4 0 500 1000 "
        "10 0 0 0 0 0 0 0 0 0 0 0 0 0 17 0 0 0 0 0 0\n",
        "10/cgroup": "4:memory:/job\n0::/job\n",
        "11/stat": "11 (child) S 10 1 1 0 -1 4194304 9 0 3 0 7 8 0 0 20 0 1 0 600 1000 10 0 0\n",
        "self/mountinfo": "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
        "31 23 0:27 / /sys/fs/memory rw - cgroup cgroup rw,memory\n",
        "sys/fs/cgroup/job/cgroup.type": "domain\n",
        "sys/fs/cgroup/job/cpu.max": "150000 100000\n",
        "sys/fs/cgroup/job/cpu.stat": "usage_usec 5\nnr_periods 9\nnr_throttled 2\n"
        "throttled_usec 7\n",
        "sys/fs/cgroup/job/cpu.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=50\n",
        "sys/fs/memory/job/memory.usage_in_bytes": "5000\n",
        "sys/fs/memory/job/memory.limit_in_bytes": "9000\n",
        "sys/fs/memory/job/memory.stat": "total_inactive_file 70\nhierarchical_memory_limit 9000\n",
        "sys/fs/memory/job/memory.oom_control": "oom_kill 1\n",
        "sys/fs/cgroup/job/io.stat": "8:0 rbytes=5 wbytes=6 rios=1 wios=1 dbytes=0 dios=0\n",
        "self/mountstats": "device proc mounted on /proc with fstype proc\n"
        "device fs:/a mounted on /data with fstype nfs4 statvers=1.1\n\tage:\t5\n"
        "\tbytes:\t1 2 3 4 5 6 7 8\n\tper-op statistics\n\t READ: 3 3 0 4 5 6 7 8 0\n"
        "\t WRITE: 3 4 0 4 5 6 7 8 0\n\n",
        "sys/class/net/eth0/speed": "1000\n",
        **{
            f"sys/class/infiniband/mlx5_0/ports/1/{name}": text
            for name, text in {
                "state": "4: ACTIVE\n",
                "rate": "100 Gb/sec (4X EDR)\n",
                "link_layer": "InfiniBand\n",
                "counters/port_rcv_data": "5\n",
                "counters/port_xmit_data": "6\n",
                "counters/port_rcv_packets": "1\n",
                "counters/port_xmit_wait": "0\n",
                "counters/symbol_error": "3\n",
                "counters/link_downed": "1\n",
                "hw_counters/out_of_sequence": "4\n",
                "hw_counters/lifespan": "10\n",
            }.items()
        },
        "sys/fs/memory/job/memory.numa_stat": "total=3 N0=3\nhierarchical_total=4 N0=4\n",
        "sys/devices/system/node/online": "0\n",
        "sys/devices/system/node/node0/cpulist": "0-1\n",
        "sys/devices/system/node/node0/meminfo": "Node 0 MemTotal: 9 kB\nNode 0 MemFree: 4 kB\n"
        "Node 0 Active(file): 1 kB\nNode 0 Inactive(file): 1 kB\nNode 0 KReclaimable: 1 kB\n",
        "sys/devices/system/node/node0/numastat": "numa_miss 5\nnuma_foreign 6\nother_node 7\n",
        "sys/devices/system/cpu/online": "0\n",
        "sys/devices/system/cpu/cpu0/topology/thread_siblings_list": "0\n",
        "sys/devices/system/cpu/cpu0/topology/physical_package_id": "0\n",
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq": "2000000\n",
    }.items()
}


class Node:
    """A made-up machine in a folder, and a clock that only its tests move."""

    def __init__(self, folder: Path) -> None:
        self.procfs = folder / "proc"
        self.sysfs = folder / "sys"
        self.now = 1000 * SECOND
        self.write("self/mountinfo", "")
        self.sysfs.mkdir(parents=True)

    def write(self, path: str, text: str | bytes) -> None:
        """Write below proc/, in place: readers keep the file open, as they do in /proc."""
        self._write(self.procfs / path, text)

    def write_sys(self, path: str, text: str | bytes) -> None:
        self._write(self.sysfs / path, text)

    def _write(self, path: Path, text: str | bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)

    def process(
        self,
        pid: int,
        parent: int = 1,
        *,
        ticks: int = 0,
        start: int = 500,
        faults: int = 100,
        reaped_faults: int = 0,
        threads: int = 1,
        pages: int = 10,
        state: str = "S",
        name: str = "python",
        io: tuple[int, int, int, int] | None = (0, 0, 0, 0),
        switches: tuple[int, int] | None = None,
        waited: int | None = None,
    ) -> None:
        """Write the files of one process.

        ``io``: rchar, wchar, read_bytes, write_bytes; ``waited``: for a CPU, ns.
        """
        self.write(
            f"{pid}/stat",
            f"{pid} ({name}) {state} {parent} 1 1 0 -1 4194304 {faults} {reaped_faults} 3 0 "
            f"{ticks} 0 0 0 20 0 {threads} 0 {start} 1000 {pages} 0 0\n",
        )
        if io is not None:
            keys = ("rchar", "wchar", "read_bytes", "write_bytes")
            self.write(f"{pid}/io", "".join(f"{k}: {v}\n" for k, v in zip(keys, io, strict=True)))
        if switches is not None:
            self.write(
                f"{pid}/status",
                f"Name:\t{name}\nvoluntary_ctxt_switches:\t{switches[0]}\n"
                f"nonvoluntary_ctxt_switches:\t{switches[1]}\n",
            )
        if waited is not None:
            self.write(f"{pid}/schedstat", f"{ticks * 10**7} {waited} 7\n")

    def sampler(self, interval: float = 1.0) -> _core.HostSampler:
        return _core.HostSampler(
            procfs=str(self.procfs),
            sysfs=str(self.sysfs),
            basic=interval,
            ib=interval,
            io=interval,
            kmsg=str(self.procfs.parent / "kmsg"),
        )

    def tick(self, sampler: _core.HostSampler, seconds: float = 1.0) -> dict[Key, float]:
        """Let time pass and read. Every (target, metric, instance) comes at most once."""
        self.now += round(seconds * SECOND)
        rows = sampler.read(self.now)
        values = {(target, metric, instance): value for target, metric, instance, value, _ in rows}
        assert len(values) == len(rows)
        return values


@contextmanager
def without_rights(node: Node) -> Iterator[None]:
    """Be nobody for a while; skip the test where nobody cannot get to the node's folder.

    The folder is to be the test's own, made by ``tempfile.mkdtemp``: pytest's are closed to others.
    """
    node.sysfs.parent.chmod(0o755)
    os.seteuid(65534)
    try:
        if not os.access(node.sysfs, os.R_OK | os.X_OK, effective_ids=True):
            pytest.skip(f"{node.sysfs} is closed to others: set TMPDIR to a folder that is not")
        yield
    finally:
        os.seteuid(0)


def sentences(sampler: _core.HostSampler) -> list[str]:
    """Return what sources said of themselves since the last call."""
    return [text for kind, text, _ in sampler.changes() if kind == "source"]


def states(sampler: _core.HostSampler) -> dict[str, str]:
    """Return the state of every source by its name."""
    return {str(row["name"]): str(row["state"]) for row in sampler.sources()}


def reason(sampler: _core.HostSampler, name: str) -> str:
    """Return why a source is not there, and the fix, in one text."""
    row = next(row for row in sampler.sources() if row["name"] == name)
    return f"{row['reason']} — {row['mend']}"


def _inside(member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo | None:
    """Leave out links that point into the machine that runs the tests (cwd, exe, root)."""
    try:
        return tarfile.data_filter(member, folder)
    except tarfile.FilterError:
        return None


def recordings() -> Path:
    """Return the folder of what was recorded on real machines.

    It is not part of the package: ``HAIPROF_TEST_DATA`` names the folder above it, and without
    that ``../shared/data`` beside the repository is looked at.
    """
    return DATA / "host"


def unpacked(name: str, folder: Path) -> Path:
    """Unpack what was recorded on a real machine; skip the test where it is missing."""
    archive = need(recordings() / f"{name}.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter=_inside)
    return folder


def recorded(name: str, folder: Path) -> Path:
    """Unpack the recorded tree of a real machine and return where its proc and sys are."""
    tree = unpacked(name, folder)
    found = next(tree.rglob("proc"), None) or next(tree.rglob("sys"), None)
    assert found is not None
    return found.parent
