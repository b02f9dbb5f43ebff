"""Tables from hardware counters: memory, power, links, storage, NUMA placement.

Each is a pure function from summaries to a frame that is empty if nothing was sampled. Rows of a
part (``socket0``, a port, a mount) stand below that of the whole node (``all``). Means are over the
time in which the metric was sampled; what the hardware cannot measure is null.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import polars as pl

from haiprof.views.run.overview import Summary
from haiprof.views.run.series import Stat

#: Stands for all sockets of a node.
WHOLE: Final = "all"
READ: Final = "dram.read.bytes_per_s"
WRITE: Final = "dram.write.bytes_per_s"
TRAFFIC: Final = "dram.traffic.bytes_per_s"
REMOTE: Final = "numa.remote.bytes_per_s"
THREADS: Final = "proc.cpu_node.percent"
MEMORY: Final = "cgroup.memory_node.bytes"
#: If one of these grows, a link has a fault, or a message had to be sent again.
LINK_FAULTS: Final = (
    "link_downed",
    "link_error_recovery",
    "symbol_error",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
    "port_rcv_errors",
    "port_rcv_remote_physical_errors",
    "port_xmit_discards",
    "local_ack_timeout_err",
    "packet_seq_err",
    "implied_nak_seq_err",
    "out_of_sequence",
    "roce_adp_retrans",
    "sq_num_to",
    "sq_num_oos",
    "rq_num_oos",
)
#: Series of bytes per second whose names do not say so.
_IB_TRAFFIC: Final = re.compile(r"ib\.(rx|tx)(_packets)?\.|ib\.(rx|tx)_util\.|ib\.tx_wait\.")
_MOST_INTERFACES: Final = 8

_MEMORY: Final = {
    "read_bytes_per_s": READ,
    "write_bytes_per_s": WRITE,
    "read_and_write_bytes_per_s": TRAFFIC,
    "sent_to_other_sockets_bytes_per_s": REMOTE,
    "from_PCIe_bytes_per_s": "pcie.in.bytes_per_s",
    "to_PCIe_bytes_per_s": "pcie.out.bytes_per_s",
    "from_NVLink_C2C_bytes_per_s": "c2c.in.bytes_per_s",
    "to_NVLink_C2C_bytes_per_s": "c2c.out.bytes_per_s",
}
_POWER: Final = {
    "cpu": "cpu.power.watts",
    "dram": "dram.power.watts",
    "node": "node.power.watts",
}
_LINK: Final = {
    "received_bytes_per_s": ("rx.bytes_per_s", "mean"),
    "sent_bytes_per_s": ("tx.bytes_per_s", "mean"),
    "received_mean_percent": ("rx_util.percent", "mean"),
    "received_max_percent": ("rx_util.percent", "max"),
    "sent_mean_percent": ("tx_util.percent", "mean"),
    "sent_max_percent": ("tx_util.percent", "max"),
}
_RANK_STORAGE: Final = {
    "syscall_read_bytes_per_s": "io.syscall_read.bytes_per_s",
    "syscall_write_bytes_per_s": "io.syscall_write.bytes_per_s",
    "submitted_read_bytes_per_s": "io.submitted_read.bytes_per_s",
    "submitted_write_bytes_per_s": "io.submitted_write.bytes_per_s",
    "storage_read_bytes_per_s": "io.storage_read.bytes_per_s",
    "storage_write_bytes_per_s": "io.storage_write.bytes_per_s",
    "cgroup_read_bytes_per_s": "cgroup.io_read.bytes_per_s",
    "cgroup_write_bytes_per_s": "cgroup.io_write.bytes_per_s",
}
_NODE_STORAGE: Final = {
    "NFS_server_read_bytes_per_s": "io.nfs_read.bytes_per_s",
    "NFS_server_write_bytes_per_s": "io.nfs_write.bytes_per_s",
    "disk_read_bytes_per_s": "disk.read.bytes_per_s",
    "disk_write_bytes_per_s": "disk.write.bytes_per_s",
}
#: The storage table adds to the process tree's own I/O only with one of these.
_STORAGE_NEWS: Final = ("io.submitted_", "io.nfs_", "cgroup.io_")
_MOUNT: Final = {
    "asked_read_bytes_per_s": "io.nfs_app_read.bytes_per_s",
    "asked_write_bytes_per_s": "io.nfs_app_write.bytes_per_s",
    "server_read_bytes_per_s": "io.nfs_read.bytes_per_s",
    "server_write_bytes_per_s": "io.nfs_write.bytes_per_s",
    "a_read_took_ms": "io.nfs_read_rtt.milliseconds",
    "a_write_took_ms": "io.nfs_write_rtt.milliseconds",
    "retransmits_per_s": "io.nfs_retransmits.per_s",
}


def dram_bytes_per_s(stats: Mapping[str, Stat]) -> float | None:
    """Return the mean traffic of the memory, read and written; None if it was not sampled."""
    if TRAFFIC in stats:
        return stats[TRAFFIC].mean
    both = [stats[metric].mean for metric in (READ, WRITE) if metric in stats]
    return sum(both) if len(both) == 2 else None


def peak_bytes_per_s(node: Summary) -> float | None:
    """Return the peak memory traffic of a node, all its sockets together, if known."""
    machine = node.process.machine
    return None if machine is None else machine.dram_peak_bytes_per_s


def sockets(node: Summary) -> list[str]:
    """Return the node's sockets with samples: ``socket0``, …."""
    return _ordered(name for name in node.part_stats if name.startswith("socket"))


def memory_table(nodes: Sequence[Summary]) -> pl.DataFrame:
    """Return the memory traffic of each node and socket, beside its peak.

    A socket's peak is an even share of the node's.
    """
    rows = []
    for node in nodes:
        peak = peak_bytes_per_s(node)
        count = node.process.machine.sockets if node.process.machine is not None else None
        for socket, stats in _with_whole(node, _MEMORY.values()):
            traffic = dram_bytes_per_s(stats)
            own = peak if socket == WHOLE or peak is None else peak / count if count else None
            if traffic is None:
                own = None
            rows.append(
                {
                    "node": node.process.node,
                    "socket": socket,
                    **_means(stats, _MEMORY),
                    "peak_bytes_per_s": own,
                    "of peak_share": traffic / own if own and traffic is not None else None,
                }
            )
    return _frame(rows)


def power_table(nodes: Sequence[Summary]) -> pl.DataFrame:
    """Return mean and maximum power of each node and socket, and the energy of the run.

    The energy covers the time in which the power was sampled.
    """
    rows = []
    for node in nodes:
        for socket, stats in _with_whole(node, _POWER.values()):
            row: dict[str, object] = {"node": node.process.node, "socket": socket}
            for name, metric in _POWER.items():
                stat = stats.get(metric)
                row[f"{name}_mean_watts"] = stat.mean if stat else None
                row[f"{name}_max_watts"] = stat.maximum if stat else None
                row[f"{name}_joules"] = joules(stat) if stat else None
            rows.append(row)
    return _frame(rows)


def joules(power: Stat) -> float:
    """Return the energy of a power (W) over the time in which it was sampled."""
    return power.mean * (power.end - power.begin) * 1e-9


def port_table(nodes: Sequence[Summary]) -> pl.DataFrame:
    """Return the traffic of each InfiniBand or RoCE port, and which of its other counters grew."""
    columns = {name: (f"ib.{what}", how) for name, (what, how) in _LINK.items()}
    rows = []
    for node in nodes:
        for port, stats in _parts(node, "ib."):
            grown = [f"{what} {count:.0f}" for what, count in grown_counters(stats).items()]
            row: dict[str, object] = {"node": node.process.node, "port": port}
            row.update(_values(stats, columns))
            waits = stats.get("ib.tx_wait.ticks_per_s")
            row["waits_ticks_per_s"] = waits.mean if waits and waits.mean else None
            row["counters that grew"] = ", ".join(grown) or None
            rows.append(row)
    return _frame(rows)


def grown_counters(stats: Mapping[str, Stat]) -> dict[str, float]:
    """Return how much each error or congestion counter of a port grew in the run."""
    grown = {}
    for metric, stat in sorted(stats.items()):
        if metric.startswith("ib.") and not _IB_TRAFFIC.match(metric) and stat.mean > 0:
            grown[metric.split(".")[1]] = stat.mean * (stat.end - stat.begin) * 1e-9
    return grown


def ethernet_table(nodes: Sequence[Summary]) -> pl.DataFrame:
    """Return the traffic of the busiest interfaces of each node whose speed is known."""
    columns = {name: (f"net.{what}", how) for name, (what, how) in _LINK.items()}
    rows = []
    for node in nodes:
        known = [
            (name, stats)
            for name, stats in _parts(node, "net.")
            if any(f"net.{way}_util.percent" in stats for way in ("rx", "tx"))
        ]
        known.sort(key=lambda pair: -_traffic(pair[1]))
        for name, stats in known[:_MOST_INTERFACES]:
            row: dict[str, object] = {"node": node.process.node, "interface": name}
            rows.append({**row, **_values(stats, columns)})
    return _frame(rows)


def storage_table(ranks: Sequence[Summary], nodes: Sequence[Summary]) -> pl.DataFrame:
    """Return how each layer saw the same reads and writes, side by side; they are never added.

    Empty if there is nothing beyond the processes' own system calls.
    """
    news = (metric for s in [*ranks, *nodes] for metric in s.stats)
    if not any(metric.startswith(_STORAGE_NEWS) for metric in news):
        return pl.DataFrame()
    rows = []
    with_ranks = {rank.process.node for rank in ranks}
    # Processes started here are sampled with the node; beside ranks, these are the others.
    commands = [node for node in nodes if node.process.node not in with_ranks]
    for where, summary, columns in [
        *((rank.process.label, rank, _RANK_STORAGE) for rank in ranks),
        *((f"command on {node.process.node}", node, _RANK_STORAGE) for node in commands),
        *((node.process.label, node, _NODE_STORAGE) for node in nodes),
    ]:
        values = _means(summary.stats, columns)
        if any(value is not None for value in values.values()):
            rows.append({"where": where, **values})
    return _frame(rows)


def mount_table(nodes: Sequence[Summary]) -> pl.DataFrame:
    """Return each mounted NFS: what was requested, what the server sent, and how long it took."""
    rows = []
    for node in nodes:
        for mount, stats in _parts(node, "io.nfs_"):
            values = _means(stats, _MOUNT)
            if any(values.values()):
                rows.append({"node": node.process.node, "mount": mount, **values})
    return _frame(rows)


def placement_table(ranks: Sequence[Summary]) -> pl.DataFrame:
    """Return on which NUMA nodes the threads of each rank ran and the memory of its group lay."""
    rows = []
    for rank in ranks:
        threads, memory = shares(rank, THREADS), shares(rank, MEMORY)
        if len(threads | memory) < 2:  # a machine of one node has no other place
            threads, memory = {}, {}
        row: dict[str, object] = {
            "node": rank.process.node,
            "rank": rank.process.rank,
            "pid": rank.process.pid,
            "threads ran on": _shares_text(threads),
            "memory lies on": _shares_text(memory),
            "memory elsewhere_share": far_memory(rank) if threads and memory else None,
            "far_fills_ratio": _mean(rank, "proc.far_fills.ratio"),
            "CPUs allowed": _mean(rank, "proc.allowed_cpus.count"),
            "memory_read_and_written_bytes_per_s": _mean(rank, "proc.mbm_total.bytes_per_s"),
            "of_it_far_bytes_per_s": _mean(rank, "proc.mbm_remote.bytes_per_s"),
        }
        if any(row[name] is not None for name in list(row)[3:] if name != "CPUs allowed"):
            rows.append(row)
    return _frame(rows)


def shares(rank: Summary, metric: str) -> dict[str, float]:
    """Return each NUMA node's share of a metric; empty if none is known."""
    found = by_numa_node(rank, metric)
    total = sum(found.values())
    return {node: value / total for node, value in found.items()} if total > 0 else {}


def by_numa_node(rank: Summary, metric: str) -> dict[str, float]:
    """Return the mean of a metric on each NUMA node."""
    return {
        node: rank.part_stats[node][metric].mean
        for node in _ordered(rank.part_stats)
        if metric in rank.part_stats[node]
    }


def far_memory(rank: Summary) -> float | None:
    """Return the share of a rank's memory that is far from its threads; None if not known.

    It is the chance that a byte of its control group and a moment of its threads' CPU time lie on
    different NUMA nodes: the sum of memory share times (1 - CPU share) over the nodes. It does not
    show which memory the threads touched.
    """
    threads, memory = shares(rank, THREADS), shares(rank, MEMORY)
    if not threads or not memory:
        return None
    return sum(share * (1 - threads.get(node, 0.0)) for node, share in memory.items())


def _shares_text(shares: Mapping[str, float]) -> str | None:
    if not shares:
        return None
    most = [(node, share) for node, share in shares.items() if share >= 0.005]
    return ", ".join(f"{node} {share:.0%}".replace("%", " %") for node, share in most)


def _with_whole(node: Summary, metrics: Iterable[str]) -> list[tuple[str, Mapping[str, Stat]]]:
    """Return the node's own statistics, then those of its sockets; only with one of ``metrics``."""
    wanted = set(metrics)
    places = [(WHOLE, node.stats), *((name, node.part_stats[name]) for name in sockets(node))]
    return [(name, stats) for name, stats in places if wanted & stats.keys()]


def _parts(node: Summary, beginning: str) -> list[tuple[str, dict[str, Stat]]]:
    found = []
    for name in _ordered(node.part_stats):
        stats = {m: s for m, s in node.part_stats[name].items() if m.startswith(beginning)}
        if stats:
            found.append((name, stats))
    return found


def _ordered(names: Iterable[str]) -> list[str]:
    """Sort names so that ``node10`` follows ``node9``."""
    return sorted(names, key=lambda n: [int(p) if p.isdecimal() else p for p in _split(n)])


def _split(name: str) -> list[str]:
    return re.split(r"(\d+)", name, flags=re.ASCII)


def _means(stats: Mapping[str, Stat], columns: Mapping[str, str]) -> dict[str, float | None]:
    return {n: stats[m].mean if m in stats else None for n, m in columns.items()}


def _values(
    stats: Mapping[str, Stat], columns: Mapping[str, tuple[str, str]]
) -> dict[str, float | None]:
    return {
        name: (stats[m].mean if how == "mean" else stats[m].maximum) if m in stats else None
        for name, (m, how) in columns.items()
    }


def _mean(summary: Summary, metric: str) -> float | None:
    stat = summary.stats.get(metric)
    return None if stat is None else stat.mean


def _traffic(stats: Mapping[str, Stat]) -> float:
    return sum(stats[m].mean for m in ("net.rx.bytes_per_s", "net.tx.bytes_per_s") if m in stats)


def _frame(rows: Sequence[Mapping[str, object]]) -> pl.DataFrame:
    """Make a table of the columns that contain a value."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {name: [row.get(name) for row in rows] for name in names}
    kept = {name: values for name, values in columns.items() if any(v is not None for v in values)}
    return pl.DataFrame(kept, infer_schema_length=None)
