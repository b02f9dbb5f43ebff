"""What the counters of the machine say of its links and its memory, as findings.

Nobody knows what these cost a job, so they have no time and come after what has one.
"""

from __future__ import annotations

from collections.abc import Iterator

from haiprof.findings import hardware
from haiprof.findings.finding import Evidence, Finding
from haiprof.findings.recorded.case import Case


def links(case: Case) -> Iterator[Finding]:
    """Name the link that went down, or else the port that counts most errors."""
    lost = hardware.lost_link(case.links)
    down = lost or hardware.downed_port(case.nodes)
    port = hardware.failing_port(case.nodes)
    if down:
        yield Finding(
            kind="link_down",
            problem=down,
            advice="look at the cable, the port and the switch of that link; training goes on over "
            "the others, more slowly, or not at all",
            confidence=0.85,
            evidence=(Evidence("events" if lost else "samples", "state of the link", "down", ""),),
            command="haiprof report",
        )
    elif port:
        yield Finding(
            kind="packet_loss",
            problem=port,
            advice="look at the cable, the port and the switch of that link",
            confidence=0.7,
            evidence=(Evidence("samples", "errors of the port", port, ""),),
            command="haiprof report",
        )


def memory(case: Case) -> Iterator[Finding]:
    """Name ranks whose memory is far from their threads, and memory that is near its limit."""
    summaries = [rank.summary for rank in case.ranks if rank.summary is not None]
    far = hardware.far_memory(summaries, case.nodes)
    if far:
        problem, _, advice = far.partition(": ")
        yield Finding(
            kind="numa",
            problem=problem,
            advice=advice,
            confidence=0.7,
            evidence=(Evidence("samples", "memory and threads by NUMA node", problem, ""),),
            command="haiprof report",
        )
    near = hardware.near_peak(case.nodes)
    if near:
        yield Finding(
            kind="memory_bandwidth",
            problem=near,
            advice="move what else uses that memory away, spread the job over the sockets, or "
            "copy less on the host",
            confidence=0.7,
            evidence=(Evidence("samples", "memory traffic beside its peak", near, ""),),
            command="haiprof report",
        )
