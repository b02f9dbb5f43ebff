"""Which process of a job failed first, and what happened to the others, in a sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Final, NamedTuple

from haiprof.runs import ROLE_NODE, ROLE_RANK, Ending, Process

FAILED: Final = "failed"
KILLED: Final = "killed"
INTERRUPTED: Final = "interrupted"
UNKNOWN: Final = "unknown"
STOPPED: Final = "stopped"
#: A helper that failed at most this long before its rank, ns, is the cause: a DataLoader checks its
#: workers every few seconds.
_LEADS_TO: Final = 60 * 10**9

#: In errors by which a rank reports the loss of another one: of gloo, NCCL, sockets and stores.
_LOST: Final = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "ncclRemoteError",
    "remote process exited",
    "failed to recv, got 0 bytes",
)
#: In errors by which it reports that others have not come: of gloo, NCCL and stores.
_TIMED_OUT: Final = (
    "ms for recv operation",
    "ms for send operation",
    "failed to pass monitoredBarrier",
    "Watchdog caught collective operation timeout",
    "wait timeout after",
    "waiting for clients",
)
#: The end of a process whose sockets are closed is seen at most this much later than the others
#: miss it, ns.
_SEEN: Final = 10**9

#: Converts times of a node, ns, to the clock that all nodes are compared by.
Aligned = Callable[[str, int], int]


def _as_it_is(node: str, time_ns: int) -> int:
    return time_ns


def failed(process: Process) -> bool:
    """Say whether a process is known to have failed: neither ended in order nor asked to end."""
    if process.ending is None or process.state == "live":
        return False
    unknown = process.ending.kind == UNKNOWN and process.state == "died"
    return process.ending.kind in (FAILED, KILLED) or unknown


def interrupted(process: Process) -> bool:
    """Say whether a process ended because it was asked to: Ctrl-C, a scheduler, a launcher."""
    return process.ending is not None and process.ending.kind == INTERRUPTED


def ended_badly(processes: Iterable[Process]) -> str:
    """Count those that failed, were interrupted, or died in an unknown way; empty: none did."""
    own = list(processes)
    counts = {
        "failed": sum(map(failed, own)),
        "interrupted": sum(map(interrupted, own)),
        "died": sum(p.state == "died" and p.ending is None for p in own),
    }
    return ", ".join(f"{count} {how}" for how, count in counts.items() if count)


def failure(
    processes: Sequence[Process],
    steps: Mapping[str, int] | None = None,
    aligned: Aligned = _as_it_is,
) -> str | None:
    """Return how the job failed or was interrupted; None: it did not, or nothing is known.

    Args:
        processes: those of the run, nodes and helpers, too.
        steps: number of steps of a process, by the name of its folder, if known.
        aligned: the clock by which the ends of processes on several nodes are compared.
    """
    newest = newest_of_each_rank(processes)
    bad = [p for p in newest if failed(p) or interrupted(p)]

    def when(process: Process) -> int:
        return aligned(process.node, _of(process).failed_ns)

    causes, helpers = _causes(processes, newest, when)
    unknown = [p for p in bad if failed(p) and _of(p).kind == UNKNOWN]
    if not causes and not helpers and len(unknown) > 1:
        return f"{len(unknown)} ranks ended without a goodbye, and their exit codes are unknown"
    if not causes and not helpers:
        return _by_request(bad, processes, steps or {}, when)
    first = min([*causes, *helpers], key=when)
    others = [p for p in bad if p is not first]
    alone = len(newest) == 1 and (newest[0].world_size or 1) == 1 and not helpers
    who = "The job" if alone else _name(first)
    line = f"{who} {_did(first, before_others=bool(others))}"
    line += f", at {_clock(first)}{_after(first, steps or {})}: {_of(first).text}"
    if len(others) == 1 and helpers and first in helpers:
        return f"{line}; then {others[0].label} {_verb(others[0])}: {_of(others[0]).text}"
    return f"{line}{_consequences(first, others)}{_vanished(first, newest)}"


def _did(first: Process, *, before_others: bool) -> str:
    """Return what the first one did: who only misses others has not failed by itself."""
    if not failed(first):
        return "ended before the others"
    if gave_up(first):
        done = "gave up waiting for the others"
    else:
        done = "lost its connection" if _says(first, _LOST) else "failed"
    return f"{done} first" if before_others else done


def _consequences(first: Process, others: Sequence[Process]) -> str:
    """Return what became of the others, beginning with a semicolon; empty: there are none."""
    ended = sum(_terminated(p) for p in others)
    # Of one that misses others itself, nobody knows whom the rest miss.
    missing = [] if misses_others(first) else [p for p in others if misses_others(p)]
    waited = sum(gave_up(p) for p in missing)
    parts = []
    if lost := len(missing) - waited:
        whose = "their connections" if lost > 1 else "its connection"
        parts.append(f"{_others(lost)} lost {whose}")
    if waited:
        parts.append(f"{_others(waited)} waited in vain")
    if went_on := len(others) - ended - len(missing):
        parts.append(f"{_others(went_on)} failed after it")
    if ended:
        parts.append(f"{_others(ended)} {'were' if ended > 1 else 'was'} then terminated")
    *most, last = parts or [""]
    return f"; {', '.join(most)} and {last}" if most else f"; {last}" if last else ""


def _others(count: int) -> str:
    return f"{count} others" if count > 1 else "1 other"


def _vanished(first: Process, newest: Sequence[Process]) -> str:
    """Say which ranks the others may have missed because their node is gone; empty: none."""
    if not misses_others(first):
        return ""
    known = {p.node for p in newest if p.ending is not None}
    gone = [p for p in newest if p.node not in known]
    if not gone:
        return ""
    more = f" and of {len(gone) - 1} more" if len(gone) > 1 else ""
    return (
        f"; nothing is known of the end of rank {gone[0].rank} on {gone[0].node}{more}: "
        f"that node may be lost"
    )


def first_failed(processes: Sequence[Process], aligned: Aligned = _as_it_is) -> Process | None:
    """Return the process of a job that failed first; None: none did, or that is not known."""

    def when(process: Process) -> int:
        return aligned(process.node, _of(process).failed_ns)

    causes, helpers = _causes(processes, newest_of_each_rank(processes), when)
    return min([*causes, *helpers], key=when, default=None)


def _causes(
    processes: Sequence[Process], newest: Sequence[Process], when: Callable[[Process], int]
) -> tuple[list[Process], list[Process]]:
    """Return the ranks, and the children of ranks, that may have failed first."""
    bad = [p for p in newest if failed(p) or interrupted(p)]
    # The ending is unknown if nobody could read it; a known one says more. If all are unknown, the
    # one that was first seen to have ended need not be the cause.
    causes = [p for p in bad if failed(p) and _of(p).kind != UNKNOWN]
    unknown = [p for p in bad if failed(p)]
    if not causes and len(unknown) > 1:
        return [], []
    causes = causes or unknown
    # Sockets of a process are closed before it has ended, so peers may fail before it.
    alone = [p for p in causes if not misses_others(p)]
    if causes and not alone:
        left = _left_before(min(causes, key=when), newest, when)
        if any(interrupted(p) for p in left):
            return [], []  # who was asked to end left the others alone
        alone = left
    causes = alone or causes
    # With torch.multiprocessing no launcher says who is which rank: most are helpers of one.
    commands = [p for p in processes if p.role == ROLE_NODE and failed(p)] if not causes else []
    followed = [*bad, *commands]
    return causes, [h for p in followed if (h := _helper_before(p, processes, when)) is not None]


def _left_before(
    missing: Process, newest: Sequence[Process], when: Callable[[Process], int]
) -> list[Process]:
    """Return the ranks that ended without a failure before one missed another."""
    if gave_up(missing):
        # Whoever it waited for had not gone: sockets that are closed are noticed at once.
        return []
    return [
        p
        for p in newest
        if p.ending is not None
        and p.ending.kind != STOPPED
        and not failed(p)
        and when(p) <= when(missing) + _SEEN
    ]


def gave_up(process: Process) -> bool:
    """Say whether a rank failed because others did not come in time."""
    return failed(process) and _says(process, _TIMED_OUT)


def misses_others(process: Process) -> bool:
    """Say whether a rank reports no error of its own, but that others are gone or do not come."""
    return _says(process, _LOST) or _says(process, _TIMED_OUT)


def _says(process: Process, errors: Sequence[str]) -> bool:
    ending = _of(process)
    return ending.reason == "exception" and any(words in ending.text for words in errors)


def _of(process: Process) -> Ending:
    assert process.ending is not None
    return process.ending


def _verb(process: Process) -> str:
    return "was interrupted" if interrupted(process) else "failed"


def _after(process: Process, steps: Mapping[str, int]) -> str:
    count = steps.get(process.folder.name, 0)
    return f" after {count} step{'s' if count > 1 else ''}" if count else ""


def _terminated(process: Process) -> bool:
    """Say whether a process ended as launchers end the others once one has failed."""
    ending = _of(process)
    return interrupted(process) or (ending.signal == "SIGKILL" and not ending.reason)


def _by_request(
    bad: Sequence[Process],
    processes: Sequence[Process],
    steps: Mapping[str, int],
    when: Callable[[Process], int],
) -> str | None:
    """Return the ending of a job of which no process failed, but all were asked to end, or none."""
    commands = [p for p in processes if p.role == ROLE_NODE and (failed(p) or interrupted(p))]
    broken = [p for p in commands if failed(p)]
    if broken or (commands and not bad):
        first = min(broken or commands, key=when)
        on = f" on {first.node}" if sum(p.role == ROLE_NODE for p in processes) > 1 else ""
        line = f"The command{on} {_verb(first)}, at {_clock(first)}: {_of(first).text}"
        if bad:
            who = f"{len(bad)} ranks were" if len(bad) > 1 else f"{bad[0].label} was"
            line += f"; {who} terminated, and none failed before"
        return line
    if not bad:
        return None
    first = min(filter(interrupted, bad), key=when, default=min(bad, key=when))
    after = _after(first, steps)
    return f"The job was interrupted, at {_clock(first)}{after}: {_of(first).text}"


def newest_of_each_rank(processes: Sequence[Process]) -> list[Process]:
    """Return the last process of each rank: one that was restarted has another chance."""
    ranks = [p for p in processes if p.role == ROLE_RANK]
    # A launcher starts all of them again: of one that came no further nothing is known.
    attempt = max((p.attempt or 0 for p in ranks), default=0)
    of_attempt = [p for p in ranks if (p.attempt or 0) == attempt]
    return list({p.rank: p for p in sorted(of_attempt, key=lambda p: p.started_ns or 0)}.values())


def _helper_before(
    first: Process, processes: Sequence[Process], when: Callable[[Process], int]
) -> Process | None:
    """Return the child of a rank that failed shortly before it, or before a node's command."""
    found = [
        p
        for p in processes
        if p.role not in (ROLE_RANK, ROLE_NODE)
        and p.node == first.node
        and (first.role == ROLE_NODE or p.rank == first.rank)
        and failed(p)
        and 0 <= when(first) - when(p) < _LEADS_TO
    ]
    return min(found, key=when, default=None)


def _name(process: Process) -> str:
    if process.role != ROLE_RANK:
        return f"A child of rank {process.rank} on {process.node} (pid {process.pid})"
    attempt = f" (attempt {process.attempt})" if process.attempt else ""
    return f"Rank {process.rank} on {process.node}{attempt}"


def _clock(process: Process) -> str:
    return clock(_of(process).failed_ns)


def clock(time_ns: int) -> str:
    """Return the time of day of a time, ns UTC."""
    return f"{datetime.fromtimestamp(time_ns // 10**9, tz=timezone.utc):%H:%M:%S} UTC"


class Restart(NamedTuple):
    """One more attempt of a job."""

    #: When its first process began, ns UTC.
    begin_ns: int
    #: The rank that failed first before; None: none did, or that is not known.
    rank: int | None
    #: How the attempt before ended, in a sentence; None: that is not known.
    reason: str | None


def restarts(
    processes: Sequence[Process],
    steps: Mapping[str, int] | None = None,
    aligned: Aligned = _as_it_is,
) -> list[Restart]:
    """Return the attempts that followed another one, in their order; see :func:`failure`."""
    begun: dict[tuple[int, int], int] = {}
    lives: dict[object, list[object]] = {}
    for process in sorted(processes, key=lambda p: (p.attempt or 0, p.started_ns or 0)):
        if process.role != ROLE_RANK:
            continue
        # Where no launcher counts attempts, a further process of a rank is one.
        its = lives.setdefault((process.rank, process.attempt or 0), [])
        if process.identity not in its:
            its.append(process.identity)
        key = process.attempt or 0, its.index(process.identity)
        began = process.started_ns or 0
        begun[key] = min(begun.get(key, began), began)
    found = []
    for _, begin in sorted(begun.items())[1:]:
        # What the command of a node ended with is of its last attempt.
        before = [p for p in processes if p.role != ROLE_NODE and (p.started_ns or 0) < begin]
        first = first_failed(before, aligned)
        reason = failure(before, steps, aligned)
        found.append(Restart(begin, None if first is None else first.rank, reason))
    return found


def restarted(processes: Sequence[Process], steps: Mapping[str, int]) -> str:
    """Say how often the job was started again, and why the last time; empty: never, or unknown."""
    found = restarts(processes, steps)
    if not found or found[-1].reason is None:
        return ""
    times = f" {len(found)} times, the last time" if len(found) > 1 else ""
    return f"The job was started again{times} after this: {found[-1].reason}"


def brief(ending: Ending | None) -> str:
    """Describe in a word or two how a process ended: ``SIGSEGV``, ``exit 3``; empty: in order."""
    if ending is None or ending.kind not in (FAILED, KILLED, INTERRUPTED):
        return ""
    if ending.reason == "out of memory":
        return ending.reason
    if ending.signal:
        return ending.signal
    return "failed" if ending.exit_code is None else f"exit {ending.exit_code}"
