"""Who waits for whom in a job whose ranks communicate, and who is the first to be waited for.

Each rank that is blocked in a communication waits for ranks that have not come to it. Whoever is
waited for and waits for nobody is the culprit; where all wait in a circle, the circle is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

MESSAGES: Final = ("send", "recv")
#: In these all wait for the root first.
_FROM_ROOT: Final = ("broadcast", "scatter")
#: In these all ranks put in as many elements.
_EQUAL: Final = ("all_reduce", "reduce", "broadcast", "reduce_scatter")
#: A job of more is none.
MOST_RANKS: Final = 100_000


@dataclass(frozen=True, slots=True)
class Group:
    """A process group, as one rank knows it.

    Attributes:
        name: the same on all ranks.
        size: ranks in it.
        asked: number of the newest collective that the rank asked for; 0: none.
        operation: what that is.
        elements: that the rank put into it.
        type: of these; None: none, or not known.
        root: rank in the group; None: it has none.
        age_s: since it was asked for.
        done: number of the newest that has ended, 0: none; None: ends are not seen.
    """

    name: str
    size: int
    asked: int
    operation: str
    elements: int = 0
    type: str | None = None
    root: int | None = None
    age_s: float = 0.0
    done: int | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """A communication that a rank has asked for, and that has not ended.

    Attributes:
        group: its name; None: not known.
        sequence: number of the collective in the group, or of the message.
        operation: ``all_reduce``, …, ``send``, ``recv``.
        peer: rank in the group of a message's other end, else the root; None: there is none.
        age_s: for how long.
        known: whether it has not ended for certain; else it counts only that others have not come.
    """

    group: str | None
    sequence: int
    operation: str
    peer: int | None = None
    age_s: float = 0.0
    known: bool = True

    def __str__(self) -> str:
        """Return it as it is named in a sentence."""
        where = "" if self.group is None else f" of group {self.group}"
        if self.operation in MESSAGES:
            other = "" if self.peer is None else f" {_TO[self.operation]} rank {self.peer}"
            return f"{self.operation}{other}{where}"
        return f"{self.operation} number {self.sequence}{where}"


_TO: Final = {"send": "to", "recv": "from"}


@dataclass(frozen=True, slots=True)
class Rank:
    """How far one rank is.

    Attributes:
        groups: that it is in, by name.
        waits: what it has asked for and has not ended, the longest first.
    """

    groups: Mapping[str, Group] = field(default_factory=dict)
    waits: Sequence[Wait] = ()


@dataclass(frozen=True, slots=True)
class Stuck:
    """Why ranks wait.

    Attributes:
        kind: ``collective_mismatch``, ``rank_never_arrived``, ``crossed_collectives``,
            ``unmatched_send`` or ``stalled_transfer``.
        culprits: the ranks to look at, ascending.
        waiting: the ranks that wait for them, ascending.
        wait: what these wait in, of the one that has waited longest.
        asked: what others asked for instead, by rank: of a mismatch and of a circle.
        missing: culprits of which there is no process here.
    """

    kind: str
    culprits: tuple[int, ...]
    waiting: tuple[int, ...]
    wait: Wait
    asked: Mapping[int, str] = field(default_factory=dict)
    missing: tuple[int, ...] = ()


def stuck(ranks: Mapping[int, Rank], world_size: int | None = None) -> Stuck | None:
    """Return why ranks of a job wait; None: none waits, or for whom is not known.

    Args:
        ranks: those whose progress is known.
        world_size: how many there should be; None: those that there are.
    """
    blocked = {number: rank for number, rank in ranks.items() if rank.waits}
    if not blocked:
        return None
    different = _mismatch(ranks, blocked)
    if different is not None:
        return different
    members = _members(ranks, world_size)
    edges = {number: _awaited(number, rank, ranks, members) for number, rank in blocked.items()}
    awaited = {other for others in edges.values() for other in others}
    if not awaited:
        return _stalled(ranks, blocked, members)
    # A rank that waits for one of which nothing is known is not to blame.
    waits_elsewhere = {
        number for number, rank in blocked.items()
        if not edges[number] and any(wait.known for wait in rank.waits)
    }  # fmt: skip
    ends = {other for other in awaited if not edges.get(other)}
    sinks = tuple(sorted(ends - waits_elsewhere))
    # Of what is not there nobody knows whether it waits for somebody.
    sinks = tuple(other for other in sinks if other in ranks) or sinks
    if sinks:
        waiting = sorted(number for number in blocked if _reaches(number, set(sinks), edges))
        led = [wait for number in waiting for wait in edges[number].values()]
        longest = max(led, key=lambda wait: wait.age_s)
        missing = tuple(number for number in sinks if number not in ranks)
        return Stuck("rank_never_arrived", sinks, tuple(waiting), longest, missing=missing)
    if ends:
        # Those for whom the transfer has ended wait further on.
        first = _stalled(ranks, {number: blocked[number] for number in ends}, members)
        return first and replace(first, waiting=tuple(sorted(blocked)))
    circle = _circle(edges)
    within = {number: _wait_within(edges[number], circle) for number in circle}
    asked = {number: str(wait) for number, wait in within.items()}
    messages = all(wait.operation in MESSAGES for wait in within.values())
    kind = "unmatched_send" if messages else "crossed_collectives"
    longest = max(within.values(), key=lambda wait: wait.age_s)
    return Stuck(kind, circle, tuple(sorted(blocked)), longest, asked)


def _wait_within(edges: Mapping[int, Wait], circle: Sequence[int]) -> Wait:
    return next(wait for other, wait in edges.items() if other in circle)


def _stalled(
    ranks: Mapping[int, Rank], blocked: Mapping[int, Rank], members: Mapping[str, Sequence[int]]
) -> Stuck | None:
    """Return that a transfer stands, if all ranks are known to have come to it."""
    waits = [wait for rank in blocked.values() for wait in rank.waits if wait.known]
    whole = [
        wait for wait in waits
        if wait.group is not None and wait.operation not in MESSAGES
        and _complete(wait.group, ranks, members)
        and all(_arrived(ranks.get(other), wait) for other in members[wait.group])
    ]  # fmt: skip
    if not waits or len(whole) < len(waits):
        return None
    longest = max(whole, key=lambda wait: wait.age_s)
    return Stuck("stalled_transfer", (), tuple(sorted(blocked)), longest)


def _members(ranks: Mapping[int, Rank], world_size: int | None) -> dict[str, list[int]]:
    """Return the ranks of each group, in its order, as far as they are known.

    A group of the whole job has those, too, that no process is known of.
    """
    members: dict[str, list[int]] = {}
    for number in sorted(ranks):
        for name in ranks[number].groups:
            members.setdefault(name, []).append(number)
    for name in members:
        if world_size == _size(name, ranks) <= MOST_RANKS:
            members[name] = list(range(world_size))
    return members


def _size(name: str, ranks: Mapping[int, Rank]) -> int:
    return max(rank.groups[name].size for rank in ranks.values() if name in rank.groups)


def _complete(name: str, ranks: Mapping[int, Rank], members: Mapping[str, Sequence[int]]) -> bool:
    """Say whether all ranks of a group are known."""
    return name in members and len(members[name]) == _size(name, ranks)


def _mismatch(ranks: Mapping[int, Rank], blocked: Mapping[int, Rank]) -> Stuck | None:
    """Return the first collective that ranks have asked for differently."""
    waits = {
        (wait.group, wait.sequence): wait
        for rank in blocked.values()
        for wait in rank.waits
        if wait.group is not None and wait.operation not in MESSAGES
    }
    for (name, sequence), wait in sorted(waits.items(), key=lambda one: -one[1].age_s):
        asked = {
            number: _described(group, with_sizes=wait.known)
            for number, rank in ranks.items()
            if name is not None
            and (group := rank.groups.get(name)) is not None
            and group.asked == sequence
        }
        counts = Counter(asked.values())
        if len(counts) < 2:
            continue
        (usual, most), (_, second) = counts.most_common(2)
        # Of two ranks nobody knows which one is right; ranks of which nothing is known may be many.
        unknown = _size(name, ranks) - sum(name in rank.groups for rank in ranks.values())
        even = most <= second + unknown
        wrong = [number for number, what in asked.items() if even or what != usual]
        return Stuck(
            "collective_mismatch", tuple(sorted(wrong)), tuple(sorted(blocked)), wait, asked
        )
    return None


def _described(group: Group, *, with_sizes: bool) -> str:
    text = group.operation
    if with_sizes and group.operation in _EQUAL and group.elements:
        text += f" of {group.elements} elements"
    if with_sizes and group.type is not None and group.operation in _EQUAL:
        text += f" of {group.type}"
    if group.root is not None:
        text += f", root {group.root}"
    return text


def _awaited(
    number: int, rank: Rank, ranks: Mapping[int, Rank], members: Mapping[str, Sequence[int]]
) -> dict[int, Wait]:
    """Return the ranks that a blocked one waits for, each with the longest wait for it."""
    found: dict[int, Wait] = {}
    for wait in rank.waits:
        name = wait.group or ""
        those = members.get(name, ())
        if wait.operation in MESSAGES:
            # Numbers in a group say who that is only if all of it is known.
            if wait.peer is None or not _complete(name, ranks, members):
                continue
            those = those[wait.peer : wait.peer + 1]
        elif wait.operation in _FROM_ROOT and wait.peer is not None:
            root = those[wait.peer : wait.peer + 1] if _complete(name, ranks, members) else ()
            late = [other for other in root if not _arrived(ranks.get(other), wait)]
            those = late or those
        for other in those:
            there = ranks.get(other)
            # What may have ended long ago is no wait for those that nothing is known of.
            if not wait.known and (there is None or name not in there.groups):
                continue
            if other != number and not _arrived(there, wait):
                found.setdefault(other, wait)
    return found


def _arrived(rank: Rank | None, wait: Wait) -> bool:
    """Say whether a rank is known to have asked for what another one waits in."""
    if rank is None or wait.group is None or wait.operation in MESSAGES:
        return False
    group = rank.groups.get(wait.group)
    return group is not None and group.asked >= wait.sequence


def _reaches(start: int, those: set[int], edges: Mapping[int, Mapping[int, Wait]]) -> bool:
    seen: set[int] = set()
    ahead = [start]
    while ahead:
        at = ahead.pop()
        if at in those:
            return True
        if at not in seen:
            seen.add(at)
            ahead += edges.get(at, ())
    return False


def _circle(edges: Mapping[int, Mapping[int, Wait]]) -> tuple[int, ...]:
    """Return the ranks of a circle; there is one, since whoever is waited for waits, too."""
    at = min(other for others in edges.values() for other in others)
    path: list[int] = []
    while at not in path:
        path.append(at)
        at = min(edges[at])
    return tuple(sorted(path[path.index(at) :]))
