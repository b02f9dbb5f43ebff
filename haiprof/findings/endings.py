"""Which process of a job failed first, and what happened to the others, in a sentence."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Final

from haiprof.runs import ROLE_NODE, ROLE_RANK, Ending, Process

FAILED: Final = "failed"
KILLED: Final = "killed"
INTERRUPTED: Final = "interrupted"
UNKNOWN: Final = "unknown"
#: A helper that failed at most this long before its rank, ns, is the cause: a DataLoader checks its
#: workers every few seconds.
_LEADS_TO: Final = 60 * 10**9

#: In errors by which a rank reports the loss of another one: of gloo, NCCL, sockets and stores.
_OF_PEERS: Final = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "ncclRemoteError",
    "remote process exited",
    "failed to recv, got 0 bytes",
)

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
    newest = _newest_of_each_rank(processes)
    bad = [p for p in newest if failed(p) or interrupted(p)]

    def when(process: Process) -> int:
        return aligned(process.node, _of(process).failed_ns)

    causes, helpers = _causes(processes, bad, when)
    unknown = [p for p in bad if failed(p) and _of(p).kind == UNKNOWN]
    if not causes and not helpers and len(unknown) > 1:
        return f"{len(unknown)} ranks ended without a goodbye, and their exit codes are unknown"
    if not causes and not helpers:
        return _by_request(bad, processes, steps or {}, when)
    first = min([*causes, *helpers], key=when)
    others = [p for p in bad if p is not first]
    alone = len(newest) == 1 and not helpers
    line = "The job failed" if alone else f"{_name(first)} failed"
    line += " first" if others else ""
    line += f", at {_clock(first)}{_after(first, steps or {})}: {_of(first).text}"
    if len(others) == 1 and helpers and first in helpers:
        return f"{line}; then {others[0].label} {_verb(others[0])}: {_of(others[0]).text}"
    ended = sum(_terminated(p) for p in others)
    went_on = len(others) - ended
    if went_on:
        line += f"; {went_on} other{'s' if went_on > 1 else ''} failed after it"
    if ended:
        line += f"{' and' if went_on else ';'} {ended} other{'s were' if ended > 1 else ' was'}"
        line += " then terminated"
    return line


def first_failed(processes: Sequence[Process], aligned: Aligned = _as_it_is) -> Process | None:
    """Return the process of a job that failed first; None: none did, or that is not known."""
    bad = [p for p in _newest_of_each_rank(processes) if failed(p) or interrupted(p)]

    def when(process: Process) -> int:
        return aligned(process.node, _of(process).failed_ns)

    causes, helpers = _causes(processes, bad, when)
    return min([*causes, *helpers], key=when, default=None)


def _causes(
    processes: Sequence[Process], bad: Sequence[Process], when: Callable[[Process], int]
) -> tuple[list[Process], list[Process]]:
    """Return the ranks, and the children of ranks, that may have failed first."""
    # The ending is unknown if nobody could read it; a known one says more. If all are unknown, the
    # one that was first seen to have ended need not be the cause.
    causes = [p for p in bad if failed(p) and _of(p).kind != UNKNOWN]
    unknown = [p for p in bad if failed(p)]
    if not causes and len(unknown) > 1:
        return [], []
    causes = causes or unknown
    # Sockets of a process are closed before it has ended, so peers may fail before it.
    alone = [p for p in causes if not _for_a_peer(p)]
    if not alone and any(interrupted(p) and not _for_a_peer(p) for p in bad):
        return [], []  # who was asked to end left the others alone
    causes = alone or causes
    # With torch.multiprocessing no launcher says who is which rank: most are helpers of one.
    commands = [p for p in processes if p.role == ROLE_NODE and failed(p)] if not causes else []
    followed = [*bad, *commands]
    return causes, [h for p in followed if (h := _helper_before(p, processes, when)) is not None]


def _for_a_peer(process: Process) -> bool:
    ending = _of(process)
    return ending.reason == "exception" and any(words in ending.text for words in _OF_PEERS)


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
    first = min(bad, key=when)
    after = _after(first, steps)
    return f"The job was interrupted, at {_clock(first)}{after}: {_of(first).text}"


def _newest_of_each_rank(processes: Sequence[Process]) -> list[Process]:
    """Return the last process of each rank: one that was restarted has another chance."""
    newest: dict[object, Process] = {}
    for process in sorted(processes, key=lambda p: (p.attempt or 0, p.started_ns or 0)):
        if process.role == ROLE_RANK:
            newest[process.rank] = process
    return list(newest.values())


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
    seconds = _of(process).failed_ns // 10**9
    return f"{datetime.fromtimestamp(seconds, tz=timezone.utc):%H:%M:%S} UTC"


def restarted(processes: Sequence[Process]) -> str:
    """Say which processes failed before the last of their rank, which took over; empty: none."""
    newest = {p.folder for p in _newest_of_each_rank(processes)}
    before = [p for p in processes if p.role == ROLE_RANK and failed(p) and p.folder not in newest]
    if not before:
        return ""
    first = min(before, key=lambda p: _of(p).failed_ns)
    more = f", and {len(before) - 1} more" if len(before) > 1 else ""
    return f"{first.label} failed and was started again: {_of(first).text}{more}"


def brief(ending: Ending | None) -> str:
    """Describe in a word or two how a process ended: ``SIGSEGV``, ``exit 3``; empty: in order."""
    if ending is None or ending.kind not in (FAILED, KILLED, INTERRUPTED):
        return ""
    if ending.reason == "out of memory":
        return ending.reason
    if ending.signal:
        return ending.signal
    return "failed" if ending.exit_code is None else f"exit {ending.exit_code}"
