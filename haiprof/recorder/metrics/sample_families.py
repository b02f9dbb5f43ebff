"""Which samples of the node are exported, and as which series: that of a metric has its name.

Tests: tests/recorder/metrics/test_samples.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from haiprof.recorder.metrics.families import Family

#: Labels of what belongs to a GPU: those of dcgm-exporter, to be joined with its series.
GPU: Final = ("gpu", "UUID")
#: Units of metrics that are not Prometheus' own: what it has instead, and by what to multiply.
_UNITS: Final = {
    "percent": ("ratio", 1e-2),
    "milliseconds": ("seconds", 1e-3),
    "bytes_per_s": ("bytes_per_second", 1.0),
    "segments_per_s": ("segments_per_second", 1.0),
    "pages_per_s": ("pages_per_second", 1.0),
    "per_s": ("per_second", 1.0),
    "joules": ("joules_total", 1.0),
    "count": ("total", 1.0),
}
#: By label: metrics, and what they mean. All are of docs/metrics.md.
_METRICS: Final[Mapping[tuple[str, ...], Mapping[str, str]]] = {
    (): {
        "cpu.util.percent": "Share of the node's CPUs that run user or kernel code.",
        "cpu.system.percent": "Share of the node's CPUs that run kernel code.",
        "cpu.iowait.percent": "Share of the node's CPUs that are idle while a task waits for a "
        "disk.",
        "cpu.steal.percent": "Share of the node's CPUs that the hypervisor gives to other guests.",
        "cpu.run_queue.threads": "Threads that run or are ready to.",
        "cpu.frequency.hertz": "Mean clock of the cores.",
        "mem.total.bytes": "Memory of the node.",
        "mem.available.bytes": "Memory that new work could get without swapping.",
        "mem.used.bytes": "Memory that new work could not get.",
        "mem.cached.bytes": "Page cache, shared memory included.",
        "mem.dirty.bytes": "Pages that are written and not on disk yet.",
        "mem.shmem.bytes": "Shared memory, as in /dev/shm.",
        "mem.swap_used.bytes": "Swap in use.",
        "mem.swap_in.pages_per_s": "Pages that are read from swap.",
        "mem.swap_out.pages_per_s": "Pages that are written to swap.",
        "tcp.retransmitted.segments_per_s": "Segments that TCP sends again.",
        "psi.cpu_some.percent": "Share of the time in which a task waited for a CPU.",
        "psi.io_some.percent": "Share of the time in which a task waited for I/O.",
        "psi.io_full.percent": "Share of the time in which tasks did nothing but wait for I/O.",
        "psi.memory_some.percent": "Share of the time in which a task waited for memory.",
        "psi.memory_full.percent": "Share of the time in which tasks did nothing but wait for "
        "memory.",
        "dram.read.bytes_per_s": "Read from main memory by all sockets.",
        "dram.write.bytes_per_s": "Written to main memory by all sockets.",
        "cpu.power.watts": "Drawn by the CPU packages.",
        "dram.power.watts": "Drawn by main memory.",
        "node.power.watts": "Drawn by the whole node.",
    },
    ("interface",): {
        "net.rx.bytes_per_s": "Received by a network interface.",
        "net.tx.bytes_per_s": "Sent by a network interface.",
        "net.rx_errors.per_s": "Packets that arrived damaged.",
        "net.tx_errors.per_s": "Packets that could not be sent.",
        "net.rx_drops.per_s": "Packets that arrived and were dropped.",
        "net.tx_drops.per_s": "Packets that were dropped instead of sent.",
    },
    ("port",): {
        "ib.rx.bytes_per_s": "Received by a port of InfiniBand or RoCE.",
        "ib.tx.bytes_per_s": "Sent by a port of InfiniBand or RoCE.",
    },
    ("disk",): {
        "disk.read.bytes_per_s": "Read from a disk.",
        "disk.write.bytes_per_s": "Written to a disk.",
        "disk.busy.percent": "Share of the time in which a disk had a request.",
        "disk.read_latency.milliseconds": "Mean time from a read request to its answer.",
        "disk.write_latency.milliseconds": "Mean time from a write request to its answer.",
    },
    ("mount",): {
        "io.nfs_read.bytes_per_s": "Read from the server of an NFS mount.",
        "io.nfs_write.bytes_per_s": "Written to the server of an NFS mount.",
        "io.nfs_read_rtt.milliseconds": "Mean time in which the server of an NFS mount answers "
        "a READ.",
        "io.nfs_write_rtt.milliseconds": "Mean time in which the server of an NFS mount answers "
        "a WRITE.",
    },
    GPU: {
        "gpu.util.percent": "Share of the time in which a kernel of anybody ran.",
        "gpu.mem_util.percent": "Share of the time in which device memory was read or written.",
        "gpu.memory_used.bytes": "Device memory in use by anybody.",
        "gpu.power.watts": "Drawn by the GPU.",
        "gpu.energy.joules": "Energy that the GPU has used since the recorder reads it.",
        "gpu.temperature.celsius": "Temperature of the GPU.",
        "gpu.memory_temperature.celsius": "Temperature of the GPU's memory.",
        "gpu.sm_clock.hertz": "Clock of the GPU's multiprocessors.",
        "gpu.memory_clock.hertz": "Clock of the GPU's memory.",
        "gpu.throttle_power.percent": "Share of the time with lower clocks to keep the power "
        "limit.",
        "gpu.throttle_thermal.percent": "Share of the time with lower clocks since it is hot, by "
        "the driver.",
        "gpu.throttle_hw_thermal.percent": "Share of the time with lower clocks since it is too "
        "hot, by the hardware.",
        "gpu.throttle_power_brake.percent": "Share of the time with lower clocks since the power "
        "supply asked for it.",
        "gpu.pcie_tx.bytes_per_s": "Sent by the GPU over PCIe.",
        "gpu.pcie_rx.bytes_per_s": "Received by the GPU over PCIe.",
        "gpu.nvlink_tx.bytes_per_s": "Sent by the GPU over all NVLinks.",
        "gpu.nvlink_rx.bytes_per_s": "Received by the GPU over all NVLinks.",
        "gpu.ecc_corrected.count": "Memory errors that were corrected since the driver was loaded.",
        "gpu.ecc_uncorrected.count": "Memory errors that were not corrected since the driver was "
        "loaded.",
        "gpu.sm_active.ratio": "Share of the GPU's multiprocessors that were busy.",
        "gpu.tensor_active.ratio": "Share of the time in which tensor cores worked.",
        "gpu.dram_active.ratio": "Share of the bandwidth of device memory in use.",
    },
}


class Exported(NamedTuple):
    """How a metric is exported.

    Attributes:
        family: its series.
        scale: what its values are multiplied by.
    """

    family: Family
    scale: float


def _exported(metric: str, labels: tuple[str, ...], meaning: str) -> Exported:
    thing, quantity, unit = metric.split(".")
    unit, scale = _UNITS.get(unit, (unit, 1.0))
    kind: Any = "counter" if unit.endswith("total") else "gauge"
    return Exported(Family(f"haiprof_{thing}_{quantity}_{unit}", kind, labels, meaning), scale)


#: Metric -> how it is exported.
EXPORTED: Final = {
    metric: _exported(metric, labels, meaning)
    for labels, metrics in _METRICS.items()
    for metric, meaning in metrics.items()
}
