"""Why a job hangs: which rank keeps the others waiting, or gets no further itself, and why.

How far a rank and its communication have come is in its ring, which needs nobody to answer; what a
rank does is in its stacks, read from outside.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from haiprof import _core
from haiprof.common.advance import Advance, Standing
from haiprof.common.rank_names import ranks_named
from haiprof.common.wait_graph import MOST_RANKS, Group, Rank, Stuck, Wait, stuck
from haiprof.control.doing import DEBUGGED, Doing, doing_of, loading, stack_of, waiting_for
from haiprof.control.find import Found
from haiprof.control.stacks import chosen, look_at, rings_of

#: What lasts less is no hang, s.
LEAST_S: Final = 5.0
#: A rank is looked at twice, so many seconds apart: what changes meanwhile does not hang.
_BETWEEN_S: Final = 1.0
#: Functions in which a rank waits for others before there is a group, or after the last.
_RENDEZVOUS: Final = (
    "init_process_group", "_store_based_barrier", "rendezvous", "_new_process_group_helper",
    "next_rendezvous",
)  # fmt: skip
_TEARDOWN: Final = ("destroy_process_group", "_shutdown_backend", "_abort_process_group")
_STANDS: Final = "stands_still"
#: States in which a process can do nothing itself.
_HELD: Final = ("stopped", "uninterruptible")
#: Programs that wait for requests, or for their user, get no further without these.
_SERVES: Final = ("/asyncio/", "/socketserver.py", "/ipykernel/", "/IPython/", "/code.py")
#: Whoever does what may take long is late for so many times longer before that is a hang.
PATIENCE: Final = 10
#: Getting no further is no hang before it lasts this many times as long as it ever did.
_LONGER: Final = 2.0
_TAKE: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Hang:
    """Why a job hangs.

    Attributes:
        kind: of a finding: ``rank_never_arrived``, ``collective_mismatch``, ….
        problem: one sentence without its full stop.
        advice: what to do, one sentence without its full stop.
        ranks: the culprits, ascending.
        waiting: the ranks that wait for them, ascending.
        lasts_s: for how long, at least.
        culprits: what these do.
    """

    kind: str
    problem: str
    advice: str
    ranks: tuple[int, ...]
    waiting: tuple[int, ...]
    lasts_s: float
    culprits: tuple[Doing, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON takes it."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Looked:
    """What was seen of one rank.

    Attributes:
        run: its name; empty: it is not recorded.
        rank: its number.
        progress: the communication that it has not ended for long; None: it is not recorded.
        longest_s: for how long it has waited, whatever lasts; None: it does not.
        doing: what it does.
        world_size: how many ranks there are to be; None: the launcher did not say.
        standing: for how long it has got no further; None: it is not recorded, or begins.
        problem: why it could not be read; empty: it could.
    """

    run: str
    rank: int
    progress: Rank | None
    longest_s: float | None
    doing: Doing
    world_size: int | None
    standing: Standing | None = None
    problem: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON takes it."""
        return asdict(self)

    @classmethod
    def from_json(cls, given: dict[str, Any], host: str) -> Looked:
        """Return a rank of a host as :meth:`as_json` has it.

        Raises:
            TypeError: it is not one.
            KeyError: neither.
        """
        progress = given["progress"]
        if progress is not None:
            groups = {name: Group(**one) for name, one in progress["groups"].items()}
            progress = Rank(groups, [Wait(**one) for one in progress["waits"]])
        doing = {**given["doing"], "host": host}
        doing |= {name: tuple(doing[name]) for name in ("stack", "worker", "busy_thread", "native")}
        standing = given["standing"] and Standing(*given["standing"])
        problem = f"{host}: {given['problem']}" if given["problem"] else ""
        known = {"progress": progress, "doing": Doing(**doing), "standing": standing}
        return cls(**{**given, **known, "problem": problem})


@dataclass(slots=True)
class Seen:
    """What was seen of a job.

    Attributes:
        doing: what each rank does, by its number.
        hang: why it hangs; None: it does not, or nobody knows.
        held: where it stands because somebody wants that: the same as a sentence; else empty.
        longest_s: for how long a rank has waited for others; None: none waits.
        problems: of processes that could not be read, a line each.
    """

    doing: dict[int, Doing] = field(default_factory=dict)
    hang: Hang | None = None
    held: str = ""
    longest_s: float | None = None
    problems: list[str] = field(default_factory=list)


def look(target: str | None, least_s: float = LEAST_S) -> list[Looked]:
    """Look at the ranks of a job on this node, twice.

    Args:
        target: see :func:`haiprof.control.stacks.chosen`.
        least_s: what lasts less is no hang, s.

    Returns:
        Them; empty: there is no such job here.
    """
    return look_at_ranks([p for p, forked_by in chosen(target) if forked_by is None], least_s)


def look_at_ranks(ranks: Sequence[Found], least_s: float) -> list[Looked]:
    """Look at processes of this node as the ranks of jobs, twice; see :func:`look`."""
    if not ranks:
        return []
    those = [(process, None) for process in ranks]
    again = time.monotonic() + _BETWEEN_S
    before, earlier_stacks = _waits(ranks), look_at(those)
    time.sleep(max(0.0, again - time.monotonic()))
    after, stacks = _waits(ranks), look_at(those)
    loads = loading(ranks, stacks)
    standing = {
        process.pid: stands
        for process in ranks
        for reader in itertools.islice(rings_of(process), 1)
        if (stands := _standing(reader)) is not None
    }
    found = []
    for process, then, one in zip(ranks, earlier_stacks, stacks, strict=True):
        header, now = after.get(process.pid, ({}, None))
        _, earlier = before.get(process.pid, ({}, None))
        # What a rank found when it began to record: a launcher may set that in the process itself.
        rank = header.get("rank")
        rank = process.place.rank if rank is None else rank
        found.append(
            Looked(
                header.get("run", ""),
                rank,
                None if now is None else _lasting(now, earlier, least_s),
                None if now is None else max((wait.age_s for wait in now.waits), default=None),
                waiting_for(
                    doing_of(process, rank, one, lasts=stack_of(then) == stack_of(one)),
                    one,
                    loads.get(process.pid),
                ),
                header.get("world_size") or process.place.world_size,
                standing.get(process.pid),
                f"{one.label}: {one.problem}" if one.problem else "",
            )
        )
    return found


def by_run(looked: Sequence[Looked]) -> dict[str, list[Looked]]:
    """Return the ranks of each run; those that are not recorded yet are of the only one."""
    runs = {one.run for one in looked if one.run}
    only = runs.pop() if len(runs) == 1 else ""
    found: dict[str, dict[int, Looked]] = {}
    # Of two processes of one rank the one that is recorded counts, then the oldest.
    for one in sorted(looked, key=lambda one: not one.run):
        found.setdefault(one.run or only, {}).setdefault(one.rank, one)
    return {run: list(ranks.values()) for run, ranks in found.items()}


def verdict(looked: Sequence[Looked], least_s: float = LEAST_S, *, known: bool = False) -> Seen:
    """Say why a job hangs, if it does; these are its ranks, as :func:`by_run` gives them.

    Args:
        looked: the ranks of one job.
        least_s: what lasts less is no hang, s.
        known: only by waits that have not ended for certain.
    """
    seen = Seen({one.rank: one.doing for one in looked})
    seen.problems = [one.problem for one in looked if one.problem]
    waits = [one.longest_s for one in looked if one.longest_s is not None]
    seen.longest_s = max(waits, default=None)
    sizes = {one.world_size for one in looked if one.world_size}
    world_size = sizes.pop() if len(sizes) == 1 else None
    ranks = {
        one.rank: Rank(one.progress.groups, [w for w in one.progress.waits if w.known or not known])
        for one in looked
        if one.progress is not None
    }
    found = stuck(ranks, world_size)
    if found is not None:
        seen.hang = _of_waiting(found, seen.doing)
    else:
        seen.hang = _of_stacks(looked, world_size) or _of_standing(looked, least_s)
    if seen.hang is not None:
        seen.held = _meant(seen.hang, looked, world_size)
        seen.hang = None if seen.held else seen.hang
    return seen


def _meant(hang: Hang, looked: Sequence[Looked], world_size: int | None) -> str:
    """Say how a job stands because somebody wants that: who debugs it, or who wrote it."""
    if any(one.state == DEBUGGED for one in hang.culprits):
        return hang.problem
    # Those on other nodes may wait for these.
    whole = len(looked) == (world_size or 1)
    if whole and hang.kind == _STANDS and all(one.rests for one in hang.culprits):
        return f"{hang.problem}, in no loop of its training"
    return ""


def _waits(processes: Sequence[Found]) -> dict[int, tuple[dict[str, Any], Rank]]:
    """Return what the ring of each process that is recorded says of it, and how far it is."""
    found: dict[int, tuple[dict[str, Any], Rank]] = {}
    for process in processes:
        reader = next(rings_of(process), None)
        if reader is not None:
            found[process.pid] = reader.header, _progress(reader)
    return found


def _progress(ring: _core.RingReader) -> Rank:
    groups, blocked = ring.progress()
    known: dict[str, Group] = {}
    for one in groups:
        group = Group(
            one["name"], one["size"], one["asked"], one["operation"], one["elements_in"],
            one["type"], one["peer"], one["age_s"], one["done"],
        )  # fmt: skip
        if group.name not in known or known[group.name].asked < group.asked:
            known[group.name] = group
    waits = [
        Wait(one["group"], one["sequence"], one["operation"], one["peer"], one["age_s"])
        for one in blocked
    ]
    # Whoever waits in C++, as DDP does, or for a GPU, is in no wait of these.
    seen = {(wait.group, wait.sequence) for wait in waits}
    waits += [
        Wait(one.name, one.asked, one.operation, one.root, one.age_s, one.done is not None)
        for one in known.values()
        if one.asked and one.done != one.asked and (one.name, one.asked) not in seen
    ]
    return Rank(known, sorted(waits, key=lambda wait: -wait.age_s))


def _standing(ring: _core.RingReader) -> Standing | None:
    """Return for how long a process has got no further, as far as its ring goes back."""
    advance = Advance()
    with contextlib.suppress(ValueError):
        while ring.take(_TAKE):
            advance.read(ring.rows().get("spans", {}))
            ring.clear()
    offset_ns = ring.utc_offset_ns
    return None if offset_ns is None else advance.standing(time.monotonic_ns() + offset_ns)


def _lasting(rank: Rank, before: Rank | None, least_s: float) -> Rank:
    """Return a rank with the waits that last, and did at the look before."""
    earlier = {(w.group, w.sequence, w.operation) for w in before.waits} if before else set()
    return Rank(
        rank.groups,
        [
            wait
            for wait in rank.waits
            if wait.age_s >= least_s and (wait.group, wait.sequence, wait.operation) in earlier
        ],
    )


def _of_waiting(found: Stuck, doing: Mapping[int, Doing]) -> Hang:
    lasts = found.wait.age_s
    which, several = str(found.wait), len(found.waiting) > 1
    for_long = (
        f"{ranks_named(found.waiting)} {'have' if several else 'has'} waited for {lasts:.0f} s"
    )
    culprits = tuple(doing[number] for number in found.culprits if number in doing)
    kind = found.kind
    if kind == "collective_mismatch":
        asked = "; ".join(f"rank {number} asked for {what}" for number, what in _brief(found.asked))
        problem = f"Ranks disagree on {_number(found.wait)}: {asked}; {for_long}"
        advice = "have all ranks call the same collectives in the same order, with equal sizes"
    elif kind in ("crossed_collectives", "unmatched_send"):
        asked = "; ".join(f"rank {number} in {what}" for number, what in _brief(found.asked))
        problem = f"Ranks wait for each other in a circle: {asked}; {for_long}"
        advice = (
            "pair each send with a recv, and order them so that neighbours do not both wait first "
            "(batch_isend_irecv)"
            if kind == "unmatched_send"
            else "call the collectives of several groups in the same order on all ranks"
        )
    elif kind == "stalled_transfer":
        problem = f"All ranks have come to {which}, and it does not end; {for_long}"
        advice = "look at the network between them: links that are down, firewalls, a switch"
        # One that has come and can do nothing since keeps it from its end.
        culprits = tuple(one for one in doing.values() if one.state in (*_HELD, DEBUGGED))
        if culprits:
            kind, advice = _why_absent(culprits)
    else:
        problem = f"{ranks_named(found.culprits).capitalize()} never came to {which}; {for_long}"
        kind, advice = _why_absent(culprits)
        unrecorded = [number for number in found.missing if number in doing]
        missing = [number for number in found.missing if number not in doing]
        if unrecorded:
            problem += (
                f"; {ranks_named(unrecorded)} {_are(unrecorded)} not recorded, and may have come"
            )
        if missing:
            problem += f"; no process of {ranks_named(missing)} was found"
            advice = (
                "if they run on other hosts, look there as well (--nodes); else they have ended"
            )
    for one in culprits[:3]:
        problem += f"; rank {one.rank} {one.does}"
    ranks = found.culprits or tuple(sorted(one.rank for one in culprits))
    waiting = tuple(number for number in found.waiting if found.culprits or number not in ranks)
    return Hang(kind, problem, advice, ranks, waiting, lasts, culprits)


def _why_absent(culprits: Sequence[Doing]) -> tuple[str, str]:
    """Return the kind of a hang in which ranks never came, and what to do."""
    states = {one.state for one in culprits}
    if states == {"stopped"}:
        return "stopped", "find out who stopped it, and continue it (kill -CONT)"
    if states == {"uninterruptible"}:
        return "uninterruptible", "look at that file system or device, and the node's kernel log"
    ended = any(one.leaves or _is_in(one, _TEARDOWN) for one in culprits)
    if ended or any("has ended" in one.does for one in culprits):
        return "uneven_inputs", (
            "give all ranks as many batches (drop_last, DistributedSampler), or join() them"
        )
    return "rank_never_arrived", "look at what that rank does instead: haiprof stacks"


def _is_in(one: Doing, functions: Sequence[str]) -> bool:
    """Say whether a rank stays in one of these functions."""
    names = (frame.partition(" (")[0].rpartition(".")[2] for frame in one.stack)
    return one.lasts and any(name in functions for name in names)


def _of_stacks(looked: Sequence[Looked], world_size: int | None) -> Hang | None:
    """Return why ranks wait that have no group yet, or none any more; None: they do not."""
    doing = {one.rank: one.doing for one in looked}
    at_start = sorted(number for number, one in doing.items() if _is_in(one, _RENDEZVOUS))
    at_end = sorted(
        number for number, one in doing.items()
        if _is_in(one, _TEARDOWN) or (one.leaves and one.lasts)
    )  # fmt: skip
    if at_start and world_size is not None and world_size <= MOST_RANKS:
        absent = tuple(n for n in range(world_size) if n not in at_start)
        if absent:
            there = tuple(doing[n] for n in absent if n in doing)
            missing = tuple(n for n in absent if n not in doing)
            problem = (
                f"{ranks_named(at_start).capitalize()} {_wait(at_start)} for the others to join"
            )
            problem += f"; no process of {ranks_named(missing)} was found" if missing else ""
            problem += "".join(f"; rank {one.rank} {one.does}" for one in there[:3])
            advice = (
                "find out why those have not started: the launcher's log, MASTER_ADDR, the port"
            )
            return Hang("rendezvous", problem, advice, absent, tuple(at_start), 0.0, there)
    if at_end:
        stood = [one.standing.age_s for one in looked if one.rank in at_end and one.standing]
        # Who has ended, or runs no Python any more, keeps nobody.
        rest = [
            n for n, one in sorted(doing.items()) if n not in at_end and (one.stack or one.state)
        ]
        held = [n for n in at_end if doing[n].worker] or at_end
        culprits = tuple(rest or held)
        there = tuple(doing[n] for n in culprits)
        waiting = tuple(n for n in at_end if n not in culprits)
        which = at_end if rest else held
        do = "does not end" if len(which) == 1 else "do not end"
        do = f"{_wait(which)} at the end of the job" if rest else do
        problem = f"{ranks_named(which).capitalize()} {do}"
        problem += "".join(f"; rank {one.rank} {one.does}" for one in there[:3])
        advice = (
            "have all ranks leave together: a barrier() before destroy_process_group()"
            if rest
            else "end what it waits for: join threads, or have them be daemons"
        )
        lasts_s = max(stood, default=0.0)
        return Hang("teardown_hang", problem, advice, culprits, waiting, lasts_s, there)
    return None


def _of_standing(looked: Sequence[Looked], least_s: float) -> Hang | None:
    """Return why processes get no further that wait for no others; None: they do.

    Others may wait for them on other nodes.
    """
    stands = {one.rank: one for one in looked if _stands_still(one, least_s)}
    if not stands:
        return None
    ranks = tuple(sorted(stands))
    ages = [one.standing for one in stands.values() if one.standing is not None]
    longest = max(ages, key=lambda standing: standing.age_s)
    culprits = tuple(stands[rank].doing for rank in ranks)
    alone = len(looked) == 1 and (looked[0].world_size or 1) == 1
    who = "The job" if alone else ranks_named(ranks).capitalize()
    have = "has" if len(ranks) == 1 else "have"
    problem = f"{who} {have} got no further for {longest.age_s:.0f} s"
    problem += f", before for {longest.longest_s:.1f} s at most"
    for one in culprits[:3]:
        problem += f"; {'it' if alone else f'rank {one.rank}'} {one.does}"
    kind, advice = _why_absent(culprits)
    if kind not in _HELD:
        kind, advice = _STANDS, "look at what it does instead: haiprof stacks"
    return Hang(kind, problem, advice, ranks, (), longest.age_s, culprits)


def _stands_still(one: Looked, least_s: float) -> bool:
    """Say whether a process gets no further although it should."""
    if one.standing is None or one.longest_s is not None:
        return False
    doing = one.doing
    held = doing.state in (*_HELD, DEBUGGED)
    if not held and (doing.line is None or any(p in f for p in _SERVES for f in doing.stack)):
        return False
    late = not held and (doing.works or not doing.lasts)
    least_s = max(least_s, _LONGER * one.standing.longest_s)
    return one.standing.age_s >= (PATIENCE if late else 1) * least_s


def _are(numbers: Sequence[int]) -> str:
    return "is" if len(numbers) == 1 else "are"


def _wait(numbers: Sequence[int]) -> str:
    return "waits" if len(numbers) == 1 else "wait"


def _number(wait: Wait) -> str:
    return f"number {wait.sequence} of group {wait.group}"


def _brief(asked: Mapping[int, str]) -> list[tuple[int, str]]:
    """Return one rank for each answer, of at most four."""
    first: dict[str, int] = {}
    for number in sorted(asked):
        first.setdefault(asked[number], number)
    return [(number, what) for what, number in first.items()][:4]
