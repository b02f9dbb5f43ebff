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
from typing import Final

from haiprof.control.find import with_pids
from haiprof.control.hang import Hang, by_run, look_at_ranks, verdict
from haiprof.recorder.hang_look import SECONDS

#: Whoever does something, or one of these, is late for this many times longer before that is a
#: hang: evaluation, checkpoints, compilation.
_PATIENCE: Final = 10
_LONG_WORK: Final = (
    "torch/serialization.py", "torch/distributed/checkpoint/", "torch/_dynamo/", "torch/_inductor/",
    "torch/_functorch/", "subprocess.py", "multiprocessing/", "concurrent/futures/", "socket.py",
    "ssl.py", "shutil.py",
)  # fmt: skip
#: In these no rank does anything that could take so long; all others may be late.
_CERTAIN: Final = ("collective_mismatch", "crossed_collectives", "unmatched_send", "stopped")
#: Ranks come and go apart, with all kinds of work between.
_NEVER: Final = ("rendezvous", "teardown_hang")


def main() -> None:
    """Print ``{"hang": …, "problem": …}``: why the job hangs, or why that could not be found out.

    Both are null where it does not hang, or may only be late.
    """
    run, hang_after, between, *pids = sys.argv[1:]
    seconds = float(hang_after)
    # Should whoever wants to know this have ended, nobody else ends us.
    signal.alarm(math.ceil(SECONDS + float(between)))

    def look() -> Hang | None:
        found = look_at_ranks(with_pids(map(int, pids)), seconds)
        return verdict(by_run(found).get(run, ()), known=True).hang

    hang, problem = None, None
    try:
        hang = certain(look, seconds, lambda: time.sleep(float(between)))
    except Exception as error:
        problem = repr(error)
    print(json.dumps({"hang": hang and hang.as_json(), "problem": problem}))


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
    if first is None or first.kind in _NEVER:
        return None
    # What is not on this node may be the cause, and is not known.
    if not first.culprits and first.kind != "stalled_transfer":
        return None
    wait()
    again = look()
    if again is None or (again.kind, again.ranks) != (first.kind, first.ranks):
        return None
    both = (*first.culprits, *again.culprits)
    stands = [one.busy_in for one in first.culprits] == [one.busy_in for one in again.culprits]
    # Nobody knows what a rank does whose stack cannot be read.
    stands &= all(one.state != "running" and (one.stack or one.state) for one in both)
    works = any(path in frame for one in both for frame in one.busy_in for path in _LONG_WORK)
    late = again.kind not in _CERTAIN and (works or not stands)
    return None if late and again.lasts_s < _PATIENCE * hang_after else again
