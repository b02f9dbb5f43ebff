"""Says why ranks of a job wait, for a recorder that has seen that they do.

A process of its own, see :mod:`haiprof.recorder.hang_look`: it prints one JSON object and ends.
"""

from __future__ import annotations

import json
import math
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from haiprof.control.find import with_pids
from haiprof.control.hang import PATIENCE, Hang, by_run, look_at_ranks, verdict
from haiprof.recorder.hang_look import SECONDS

#: In these no rank does anything that could take so long; all others may be late.
_CERTAIN: Final = ("collective_mismatch", "crossed_collectives", "unmatched_send", "stopped")


def main() -> None:
    """Print ``{"hang": …, "problem": …}``: why the job hangs, or why that could not be found out.

    Both are null where it does not hang, or may only be late.
    """
    run, hang_after, between, *pids = sys.argv[1:]
    seconds = float(hang_after)
    # Should whoever wants to know this have ended, nobody else ends us.
    signal.alarm(math.ceil(SECONDS + float(between)))

    def look() -> Hang | None:
        processes = with_pids(map(int, pids))
        found = look_at_ranks(processes, seconds)
        # Those that are not recorded yet are of this run, too.
        ours = [replace(one, run=one.run or run) for one in found]
        hang = verdict(by_run(ours).get(run, ()), seconds, known=True).hang
        places = [process.place for process in processes]
        whole = any(place.local_world_size == place.world_size for place in places)
        return known(hang, whole=whole)

    hang, problem = None, None
    try:
        hang = certain(look, seconds, lambda: time.sleep(float(between)))
    except Exception as error:
        problem = repr(error)
    print(json.dumps({"hang": hang and hang.as_json(), "problem": problem}))


def known(hang: Hang | None, *, whole: bool) -> Hang | None:
    """Return a hang unless its cause may be on another node; ``whole``: there is none."""
    if hang is None or hang.culprits or hang.kind == "stalled_transfer":
        return hang
    return hang if whole and hang.kind == "rendezvous" else None


def certain(
    look: Callable[[], Hang | None], hang_after: float, wait: Callable[[], None]
) -> Hang | None:
    """Return why a job hangs; None: it does not, it may only be late, or nobody knows.

    Args:
        look: returns why it seems to hang.
        hang_after: what lasts less is no hang, s.
        wait: waits between the first look and the second.
    """
    first = look()
    if first is None:
        return None
    wait()
    again = look()
    if again is None or (again.kind, again.ranks) != (first.kind, first.ranks):
        return None
    both = (*first.culprits, *again.culprits)
    stands = [one.busy_in for one in first.culprits] == [one.busy_in for one in again.culprits]
    # Nobody knows what a rank does whose stack cannot be read.
    stands &= all(one.state != "running" and (one.stack or one.state) for one in both)
    late = again.kind not in _CERTAIN and (any(one.works for one in both) or not stands)
    if again.kind == "rendezvous":  # whoever asks knows since when; a slow start is none
        return None if late else again
    return None if late and again.lasts_s < PATIENCE * hang_after else again
