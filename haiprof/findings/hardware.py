"""Sentences on hardware counters, each with its evidence.

A problem is only reported if the evidence is strong; each threshold gives its reason.

Tests: tests/views/run/test_hardware.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Final

import polars as pl

from haiprof.common.numbers import energy, milliseconds, percent, rate
from haiprof.views.run import hardware
from haiprof.views.run.overview import Summary
from haiprof.views.run.series import Stat

#: No program reaches the theoretical peak, since rows must be opened and directions turned; near
#: it, more work does not get more bandwidth, and each access waits for others.
NEAR_PEAK: Final = 0.70
#: Traffic between sockets is part of any job with one process on both; at a quarter of the
#: memory's traffic, and with as much of the job's memory far from its threads, it is not chance.
FAR_TRAFFIC: Final = 0.25
FAR_MEMORY: Final = 0.25
#: The kind of events that say what happened to a link.
LINK_EVENTS: Final = "link"
_UP: Final = "ACTIVE"
_DOWNED: Final = "link_downed"
#: A healthy fabric has next to none of these in an hour, let alone one a second.
LINK_FAULTS_PER_S: Final = 1.0
#: A nearby server that is not busy answers a read much sooner.
SLOW_NFS_MS: Final = 10.0
#: A loop that waits less for its data loses little by slow storage.
WAITS_FOR_DATA: Final = 0.15
#: A mount that answers in fewer of the intervals is not what a loop keeps waiting for.
READ_OFTEN: Final = 0.5
#: Ranks in one container each report the memory of all, read at slightly different times.
SAME_MEMORY: Final = 0.1


def trouble(ranks: Sequence[Summary], nodes: Sequence[Summary], events: pl.DataFrame) -> list[str]:
    """Return a sentence for each problem with strong evidence, the most severe first.

    Args:
        ranks: summaries of the rank processes.
        nodes: summaries of the node folders.
        events: at least those of kind :data:`LINK_EVENTS`.
    """
    found = (
        lost_link(events) or downed_port(nodes) or failing_port(nodes),
        far_memory(ranks, nodes),
        near_peak(nodes),
        slow_nfs(ranks, nodes),
    )
    return [line for line in found if line]


def lines(ranks: Sequence[Summary], nodes: Sequence[Summary], events: pl.DataFrame) -> list[str]:
    """Return all sentences: problems, power as a fact, and what was left out of the means."""
    return [*trouble(ranks, nodes, events), *power(nodes), *left_out([*ranks, *nodes])]


def near_peak(nodes: Sequence[Summary]) -> str:
    """Name the node, or the socket, whose memory is closest to its limit."""
    table = hardware.memory_table(nodes)
    if "of peak_share" not in table.columns:
        return ""
    # Above the peak: it does not apply to this memory, whose modules may be unevenly distributed.
    near = table.filter(pl.col("of peak_share").is_between(NEAR_PEAK, 1.0))
    if not near.height:
        return ""
    worst = near.sort("of peak_share", descending=True, maintain_order=True).row(0, named=True)
    share, peak = worst["of peak_share"], worst["peak_bytes_per_s"]
    where = worst["node"]
    machine = next(n.process.machine for n in nodes if n.process.node == where)
    how = f" ({machine.dram_peak_how})" if machine is not None and machine.dram_peak_how else ""
    if worst["socket"] != hardware.WHOLE:
        where, how = f"{worst['socket']} of {where}", ", an even share of the node's"
    return (
        f"The memory of {where} moved {rate(share * peak)} on average, {percent(share)} of the "
        f"{rate(peak)} that it can{how}: what waits for memory there cannot go faster"
    )


def far_memory(ranks: Sequence[Summary], nodes: Sequence[Summary]) -> str:
    """Name the ranks with most memory where none of their threads run; their sockets talk a lot."""
    worst = (0.0, "")
    by_node = _by_node(ranks)
    for node in nodes:
        traffic, remote = hardware.dram_bytes_per_s(node.stats), node.stats.get(hardware.REMOTE)
        if not traffic or remote is None or remote.mean < FAR_TRAFFIC * traffic:
            continue
        for group in _of_one_memory(by_node.get(node.process.node, ())):
            far = _left_alone(group)
            if far < FAR_MEMORY:
                continue
            who, their = group[0].process.label, "its" if len(group) == 1 else "their"
            more = f" and {len(group) - 1} more" if len(group) > 1 else ""
            line = (
                f"{percent(far)} of the memory of {who}{more} lies on other NUMA nodes than "
                f"{their} threads run on, and the sockets of {node.process.node} send each other "
                f"{rate(remote.mean)} ({hardware.REMOTE}), {percent(remote.mean / traffic)} of "
                "what the memory moves: bind each rank to one NUMA node (numactl -N and -m)"
            )
            worst = max(worst, (far, line))
    return worst[1]


def _of_one_memory(ranks: Sequence[Summary]) -> list[list[Summary]]:
    """Group ranks whose memory looks the same: most likely it is that of one container."""
    groups: list[tuple[dict[str, float], list[Summary]]] = []
    for rank in ranks:
        memory = hardware.by_numa_node(rank, hardware.MEMORY)
        if not memory or not hardware.by_numa_node(rank, hardware.THREADS):
            continue
        for first, group in groups:
            apart = sum(abs(first.get(n, 0.0) - memory.get(n, 0.0)) for n in first | memory)
            if apart <= SAME_MEMORY * sum(first.values()):
                group.append(rank)
                break
        else:
            groups.append((memory, [rank]))
    return [group for _, group in groups]


def _left_alone(group: Sequence[Summary]) -> float:
    """Return the share of memory on nodes with a smaller share of the threads' time.

    At least this much is far from the threads, wherever each of them has its own; it is 0 if
    threads and memory are distributed alike.
    """
    memory = hardware.shares(group[0], hardware.MEMORY)
    ran: dict[str, float] = {}
    for rank in group:
        for name, value in hardware.by_numa_node(rank, hardware.THREADS).items():
            ran[name] = ran.get(name, 0.0) + value
    whole = sum(ran.values())
    if not whole:
        return 0.0
    return sum(max(share - ran.get(name, 0.0) / whole, 0.0) for name, share in memory.items())


def lost_link(events: pl.DataFrame) -> str:
    """Name the first link that went down, and say how many more times that happened."""
    rows = events.filter(pl.col("kind") == LINK_EVENTS).sort("time", maintain_order=True)
    down = [
        (str(node), str(text or ""))
        for node, text, attributes in rows.select("node", "text", "attributes").iter_rows()
        if _went_down(attributes)
    ]
    if not down:
        return ""
    node, text = down[0]
    more = f" (and {len(down) - 1} more such events)" if len(down) > 1 else ""
    return f"On {node}, {text}{more}"


def _went_down(attributes: str | None) -> bool:
    try:
        document = json.loads(attributes or "")
    except (ValueError, RecursionError):
        return False
    if not isinstance(document, dict):
        return False
    return "link_downed" in document or (
        document.get("before") == _UP and document.get("state", _UP) != _UP
    )


def downed_port(nodes: Sequence[Summary]) -> str:
    """Name the port whose link went down, by its counter: of several the most often."""
    worst = (0.0, "")
    for where, _, stats in _ports(nodes):
        count = hardware.grown_counters(stats).get(_DOWNED, 0.0)
        if count >= 0.5:
            times = f"{count:.0f} times" if count >= 1.5 else "once"
            worst = max(
                worst, (count, f"The link of {where} went down {times} (ib.{_DOWNED}.per_s)")
            )
    return worst[1]


def failing_port(nodes: Sequence[Summary]) -> str:
    """Name the port whose errors grew fastest."""
    worst = (0.0, "")
    for where, node, stats in _ports(nodes):
        grown = hardware.grown_counters(stats)
        for name in grown.keys() & set(hardware.LINK_FAULTS) - {_DOWNED}:
            stat, count = stats[f"ib.{name}.per_s"], grown[name]
            per_s = stat.mean * _covered(stat, node)
            if per_s >= LINK_FAULTS_PER_S:
                line = (
                    f"{where} counted {count:.0f} of {name} ({per_s:.3g} a second, "
                    f"ib.{name}.per_s): a sign of lost, late or broken packets"
                )
                worst = max(worst, (per_s, line))
    return worst[1]


def _ports(nodes: Sequence[Summary]) -> Iterator[tuple[str, Summary, dict[str, Stat]]]:
    for node in nodes:
        for port, stats in node.part_stats.items():
            yield f"{port} on {node.process.node}", node, stats


def _covered(stat: Stat, node: Summary) -> float:
    """Return the share of the node's sampled time that ``stat`` covers.

    A metric that was always 0 has no rows: before the first of them it was 0.
    """
    around = [stat, *node.stats.values()]
    return (stat.end - stat.begin) / (max(s.end for s in around) - min(s.begin for s in around))


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
            if read is None or took.samples / read.samples * _covered(read, node) < READ_OFTEN:
                continue
            line = (
                f"A read from NFS {mount} took {milliseconds(took.mean * 1e6)} on average, at "
                f"{rate(read.mean)} (io.nfs_read_rtt.milliseconds), while the training loop on "
                f"{node.process.node} waited {percent(waits)} of the time for the DataLoader"
            )
            worst = max(worst, (took.mean, line))
    return worst[1]


def power(nodes: Sequence[Summary]) -> list[str]:
    """Say how much power the nodes drew: a fact, not a problem."""
    sentences = []
    total = len({node.process.node for node in nodes})
    for metric, what in (
        ("node.power.watts", ""),
        ("cpu.power.watts", "CPU packages"),
        ("dram.power.watts", "Memory"),
    ):
        # Containers of one node have each sampled the same: use the one that did so longest.
        by_node: dict[str, Stat] = {}
        for node in nodes:
            stat, known = node.stats.get(metric), by_node.get(node.process.node)
            if stat and (known is None or stat.end - stat.begin > known.end - known.begin):
                by_node[node.process.node] = stat
        if found := list(by_node.values()):
            watts = sum(stat.mean for stat in found)
            used = energy(sum(hardware.joules(stat) for stat in found))
            some = f"{len(found)} of {total} nodes" if len(found) < total else f"{total} nodes"
            if what:
                who = f"{what} of {some}" if total > 1 else what
            elif len(found) < total:
                who = some
            else:
                who = "The nodes" if total > 1 else "The node"
            sentences.append(f"{who} drew {watts:.0f} W on average, {used} in the run ({metric})")
    return sentences


def left_out(summaries: Sequence[Summary]) -> list[str]:
    """Say which values were more than the hardware can do, and are in no mean."""
    counts: dict[str, int] = {}
    for summary in summaries:
        for metric, count in summary.implausible.items():
            counts[metric] = counts.get(metric, 0) + count
    if not counts:
        return []
    lists = ", ".join(f"{count} of {metric}" for metric, count in sorted(counts.items()))
    values = "value was" if sum(counts.values()) == 1 else "values were"
    return [
        f"{sum(counts.values())} {values} more than the hardware can do and left out of all "
        f"means ({lists}): a counter that went wrong, or is shared with another tool"
    ]


def _by_node(ranks: Sequence[Summary]) -> dict[str, list[Summary]]:
    found: dict[str, list[Summary]] = {}
    for rank in ranks:
        found.setdefault(rank.process.node, []).append(rank)
    return found
