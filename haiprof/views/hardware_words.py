"""What counters of the hardware say in words, each sentence with its evidence.

A sentence of trouble is only made where the evidence is strong; each threshold says why it is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from haiprof.views import hardware
from haiprof.views.overview import Summary
from haiprof.views.words import energy, milliseconds, percent, rate

#: No program reaches the theoretical peak, since rows must be opened and directions turned; near
#: it more work does not get more bandwidth, and each access waits for others.
NEAR_PEAK: Final = 0.70
#: Traffic between sockets is part of any job with one process on both; with a quarter of the
#: memory's traffic, and as much of the job's memory far from its threads, it is not by chance.
FAR_TRAFFIC: Final = 0.25
FAR_MEMORY: Final = 0.25
#: A healthy fabric has next to none of these in an hour, and not one a second.
LINK_FAULTS_PER_S: Final = 1.0
#: A server that is near and not busy answers a read much sooner.
SLOW_NFS_MS: Final = 10.0
#: A loop that waits less for its data loses little by slow storage.
WAITS_FOR_DATA: Final = 0.15


def trouble(ranks: Sequence[Summary], nodes: Sequence[Summary]) -> list[str]:
    """Return a sentence for each trouble that the evidence is strong for, the gravest first."""
    found = (
        broken_link(nodes),
        far_memory(ranks, nodes),
        near_peak(nodes),
        slow_nfs(ranks, nodes),
    )
    return [line for line in found if line]


def lines(ranks: Sequence[Summary], nodes: Sequence[Summary]) -> list[str]:
    """Return all that is said: troubles, power as a fact, and what was left out of the means."""
    return [*trouble(ranks, nodes), *power(nodes), *left_out([*ranks, *nodes])]


def near_peak(nodes: Sequence[Summary]) -> str:
    """Name the node, or the socket, whose memory is nearest to what it can do."""
    table = hardware.memory_table(nodes)
    if "of peak_share" not in table.columns:
        return ""
    top = table.sort("of peak_share", descending=True, nulls_last=True, maintain_order=True)
    worst = top.row(0, named=True)
    share, peak = worst["of peak_share"], worst["peak_bytes_per_s"]
    if share < NEAR_PEAK:
        return ""
    where = worst["node"]
    machine = next(n.process.machine for n in nodes if n.process.node == where)
    how = f" ({machine.dram_peak_how})" if machine is not None and machine.dram_peak_how else ""
    if worst["socket"] != hardware.WHOLE:
        where, how = f"{worst['socket']} of {where}", ", its even part of the node's"
    return (
        f"The memory of {where} moved {rate(share * peak)} on average, {percent(share)} of the "
        f"{rate(peak)} that it can{how}: what waits for memory there cannot go faster"
    )


def far_memory(ranks: Sequence[Summary], nodes: Sequence[Summary]) -> str:
    """Name the rank with most memory far from its threads, on a node whose sockets talk a lot."""
    worst = (0.0, "")
    by_node = _by_node(ranks)
    for node in nodes:
        traffic, remote = hardware.dram_bytes_per_s(node.stats), node.stats.get(hardware.REMOTE)
        if not traffic or remote is None or remote.mean < FAR_TRAFFIC * traffic:
            continue
        for rank in by_node.get(node.process.node, ()):
            far = hardware.far_memory(rank)
            if far is None or far < FAR_MEMORY:
                continue
            told = (
                f"{percent(far)} of the memory of {rank.process.label} lies on other NUMA nodes "
                f"than its threads run on, and the sockets of {node.process.node} send each other "
                f"{rate(remote.mean)} ({hardware.REMOTE}), {percent(remote.mean / traffic)} of "
                "what the memory moves: bind each rank to one NUMA node (numactl -N and -m)"
            )
            worst = max(worst, (far, told))
    return worst[1]


def broken_link(nodes: Sequence[Summary]) -> str:
    """Name the port that was down, or whose errors grew fastest."""
    worst = (0.0, "")
    for node in nodes:
        for port, stats in node.part_stats.items():
            grown = hardware.grown_counters(stats)
            where = f"{port} on {node.process.node}"
            for name in grown.keys() & set(hardware.LINK_FAULTS):
                stat, count = stats[f"ib.{name}.per_s"], grown[name]
                if name == "link_downed" and count >= 0.5:
                    times = f"{count:.0f} times" if count >= 1.5 else "once"
                    told = f"The link of {where} went down {times} (ib.{name}.per_s)"
                    worst = max(worst, (float("inf"), told))
                elif stat.mean >= LINK_FAULTS_PER_S:
                    told = (
                        f"{where} counted {count:.0f} of {name} ({stat.mean:.3g} a second, "
                        f"ib.{name}.per_s): data is lost and sent again"
                    )
                    worst = max(worst, (stat.mean, told))
    return worst[1]


def slow_nfs(ranks: Sequence[Summary], nodes: Sequence[Summary]) -> str:
    """Name the mount that is slow to answer while the training loop waits for its data."""
    worst = (0.0, "")
    by_node = _by_node(ranks)
    for node in nodes:
        here = by_node.get(node.process.node, [])
        whole = sum(r.step_ns for r in here)
        waits = sum(r.phase_ns.get("dataloader", 0) for r in here) / whole if whole else 0.0
        if waits < WAITS_FOR_DATA:
            continue
        for mount, stats in node.part_stats.items():
            took = stats.get("io.nfs_read_rtt.milliseconds")
            if took is None or took.mean < SLOW_NFS_MS:
                continue
            read = stats.get("io.nfs_read.bytes_per_s")
            moved = f", at {rate(read.mean)}" if read else ""
            told = (
                f"A read from NFS {mount} took {milliseconds(took.mean * 1e6)} on average{moved} "
                f"(io.nfs_read_rtt.milliseconds), while the training loop on {node.process.node} "
                f"waited {percent(waits)} of the time for the DataLoader"
            )
            worst = max(worst, (took.mean, told))
    return worst[1]


def power(nodes: Sequence[Summary]) -> list[str]:
    """Say what the nodes drew: a fact, no trouble."""
    made = []
    for metric, who in (
        ("node.power.watts", "The nodes" if len(nodes) > 1 else "The node"),
        ("cpu.power.watts", "CPU packages"),
        ("dram.power.watts", "Memory"),
    ):
        found = [n.stats[metric] for n in nodes if metric in n.stats]
        if found:
            watts = sum(stat.mean for stat in found)
            used = energy(sum(hardware.joules(stat) for stat in found))
            of = f" of {len(found)} nodes" if len(nodes) > 1 else ""
            name = who if metric.startswith("node.") else f"{who}{of}"
            made.append(f"{name} drew {watts:.0f} W on average, {used} in the run ({metric})")
    return made


def left_out(summaries: Sequence[Summary]) -> list[str]:
    """Say which values were more than the hardware can do, and are in no mean."""
    counts: dict[str, int] = {}
    for summary in summaries:
        for metric, count in summary.implausible.items():
            counts[metric] = counts.get(metric, 0) + count
    if not counts:
        return []
    told = ", ".join(f"{count} of {metric}" for metric, count in sorted(counts.items()))
    values = "value was" if sum(counts.values()) == 1 else "values were"
    return [
        f"{sum(counts.values())} {values} more than the hardware can do and left out of all "
        f"means ({told}): a counter that went wrong, or is shared with another tool"
    ]


def _by_node(ranks: Sequence[Summary]) -> dict[str, list[Summary]]:
    found: dict[str, list[Summary]] = {}
    for rank in ranks:
        found.setdefault(rank.process.node, []).append(rank)
    return found
