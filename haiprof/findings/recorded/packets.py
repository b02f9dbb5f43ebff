"""Packets that TCP has to send again, and who lost them: the network, or a node that was too slow.

Tests: tests/findings/recorded/test_rules.py.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from haiprof.common.numbers import percent
from haiprof.findings.finding import Evidence
from haiprof.findings.recorded.case import Case

_SENT: Final = "tcp.sent.segments_per_s"
_RESENT: Final = "tcp.retransmitted.segments_per_s"
_DROPPED: Final = "net.softnet_drops.per_s"
#: A healthy network loses less than a thousandth; at a hundredth TCP is a fraction as fast.
_LOSSY: Final = 0.01
#: Packets that no CPU took explain what is sent again if there are as many as this share of it.
_EXPLAINS: Final = 0.3


class Loss(NamedTuple):
    """Packets are lost: what is said of it."""

    problem: str
    advice: str
    evidence: Evidence


def loss(case: Case) -> Loss | None:
    """Return what is known of lost packets, if there are enough of them to slow TCP down."""
    resent = _resent(case)
    share = max((part for part, _ in resent), default=0.0)
    if share < _LOSSY:
        return None
    found = Evidence("samples", _RESENT, share, "share", _LOSSY)
    again = f"{percent(share)} of what a node sends over TCP is sent again, while training waits"
    drops = [(s.mean, n.process.node) for n in case.nodes if (s := n.stats.get(_DROPPED))]
    most, where = max(drops, default=(0.0, ""))
    if most >= _EXPLAINS * max(per_s for _, per_s in resent):
        return Loss(
            f"The CPUs of {where} take packets too late and drop {most:.0f} a second: {again} "
            "for it",
            "leave those CPUs time for the network (fewer threads, irqbalance, RPS), or give them "
            "a longer queue (sysctl net.core.netdev_max_backlog)",
            Evidence("samples", _DROPPED, most, "per_s", max(per_s for _, per_s in resent)),
        )
    return Loss(
        f"The network loses packets: {again} for it",
        "look for a bad cable, port or switch on its way (ethtool -S, ip -s link), and for queues "
        "that are too short",
        found,
    )


def _resent(case: Case) -> list[tuple[float, float]]:
    """Return of each node the share of TCP's segments that it sent again, and how many a second."""
    found = []
    for node in case.nodes:
        resent, sent = (node.stats.get(metric) for metric in (_RESENT, _SENT))
        if resent is not None and sent is not None and sent.mean > 0:
            found.append((resent.mean / sent.mean, resent.mean))
    return found
