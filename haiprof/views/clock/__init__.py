"""One clock for all hosts: by how much each host's clock is off, from what the hosts did together.

A collective that gives every rank something of every other cannot end on any rank before it has
begun on all. With local times and the offset ``o`` of a host's clock to the reference host's:

    start(host) - end(reference)  <=  o  <=  end(host) - start(reference)

for each of them, which always holds, however late a rank came or however long the data took. A
message gives one side: it is not received before it is sent. The lines ``o = a + b * t`` that fit
all of these form a polygon of (a, b) (the convex hulls of both sides bound it, as in Duda,
Harrus, Haddad and Bernard, "Estimating Global Time in Distributed Systems", 1987), and its extent
at a time is the **error bound**. Within it the estimate follows the ends of the collectives: the
ranks leave one nearly together, so the median of the differences of their ends is far better than
the bound. Where no line is left, or where the ends jump, the clock was set: each side of that is a
piece of its own, and between the two the bound covers both.

A host that shares collectives only with other hosts than the reference is corrected through these,
and the bounds add up. With no or contradictory evidence there is no correction, and the report says
so. Processes of one host share its clock and are not corrected; whether their collectives agree
with that is checked all the same.

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
