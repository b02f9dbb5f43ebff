"""One clock for all hosts: by how much each host's clock is off, from what the hosts did together.

A collective that gives every rank something of every other cannot end on any rank before it has
begun on all. With local times and the offset ``o`` of a host's clock to the reference host's:

    start(host) - end(reference)  <=  o  <=  end(host) - start(reference)

for each of them, which is always so, however late a rank came or however long the data took. A
message tells one side: it is not received before it is sent. What all of these leave of the lines
``o = a + b * t`` is a polygon of (a, b) (the convex hulls of both sides bound it, as in Duda,
Harrus, Haddad and Bernard, "Estimating Global Time in Distributed Systems", 1987), and its reach
at a time is the **error bound**. Within it the estimate is where the ends of the collectives say:
the ranks leave one nearly together, so that the median of the differences of their ends is far
better than the bound. Where no line is left, or where the ends jump, the clock was set: each side
of that is a piece of its own, and between the two the bound covers both.

A host that shares collectives with others only goes by theirs, and the bounds add up. Nothing to
go by, or what contradicts itself: no correction, and it is said. Processes of one host share its
clock and are not corrected; whether their collectives agree with that is looked at all the same.

Times are int64 ns; clocks are those of the hosts as recorded.
"""

from __future__ import annotations

from haiprof.views.clock.hosts import Clock, clock
from haiprof.views.clock.together import (
    MEETINGS,
    MESSAGES,
    by_host,
    meetings,
    messages,
    one_sided,
)

__all__ = [
    "MEETINGS",
    "MESSAGES",
    "Clock",
    "by_host",
    "clock",
    "meetings",
    "messages",
    "one_sided",
]
