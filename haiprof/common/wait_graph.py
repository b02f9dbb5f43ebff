"""Who waits for whom in a job whose ranks communicate, and who is the first to be waited for.

Each rank that is blocked in a communication waits for ranks that have not come to it. Whoever is
waited for and waits for nobody is the culprit; where all wait in a circle, the circle is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

MESSAGES: Final = ("send", "recv")
#: In these every rank gives the root something, or gets something from it; nobody else is waited
#: for.
_FROM_ROOT: Final = ("broadcast", "scatter")
#: In these all ranks put in as many elements.
_EQUAL: Final = ("all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter")


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
            other = "" if self.peer is None else f" {_TO[self.operation]} its rank {self.peer}"
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
    """Return why ranks of a job wait; None: none waits.

    Args:
        ranks: those whose progress is known.
        world_size: how many there should be; None: those that there are.
    """
    blocked = {number: rank for number, rank in ranks.items() if rank.waits}
    if not blocked:
        return None
    members = _members(ranks, world_size)
    first = max(
        (wait for rank in blocked.values() for wait in rank.waits), key=lambda wait: wait.age_s
    )
    different = _mismatch(ranks, blocked)
    if different is not None:
        return different
    edges = {number: _awaited(number, rank, ranks, members) for number, rank in blocked.items()}
    awaited = {other for others in edges.values() for other in others}
    if not awaited and not any(wait.known for rank in blocked.values() for wait in rank.waits):
        return None
    if not awaited:
        whole = all(
            len(members[wait.group]) >= rank.groups[wait.group].size
            for rank in blocked.values()
            for wait in rank.waits
            if wait.group is not None and wait.group in rank.groups
        )
        return Stuck("stalled_transfer", (), tuple(sorted(blocked)), first) if whole else None
    sinks = tuple(sorted(other for other in awaited if not edges.get(other)))
    # Of what is not there nobody knows whether it waits for somebody.
    sinks = tuple(other for other in sinks if other in ranks) or sinks
    if sinks:
        waiting = sorted(number for number in blocked if _reaches(number, set(sinks), edges))
        of_them = [wait for number in waiting for wait in ranks[number].waits]
        longest = max(of_them, key=lambda wait: wait.age_s)
        missing = tuple(number for number in sinks if number not in ranks)
        return Stuck("rank_never_arrived", sinks, tuple(waiting), longest, missing=missing)
    circle = _circle(edges)
    asked = {number: str(ranks[number].waits[0]) for number in circle}
    messages = all(ranks[number].waits[0].operation in MESSAGES for number in circle)
    kind = "unmatched_send" if messages else "crossed_collectives"
    return Stuck(kind, circle, tuple(sorted(blocked)), first, asked)


def _members(ranks: Mapping[int, Rank], world_size: int | None) -> dict[str, list[int]]:
    """Return the ranks of each group, in its order, as far as they are known.

    A group of the whole job has those, too, that no process is known of.
    """
    members: dict[str, list[int]] = {}
    for number in sorted(ranks):
        for name in ranks[number].groups:
            members.setdefault(name, []).append(number)
    for name, those in members.items():
        size = max(ranks[number].groups[name].size for number in those)
        if world_size is not None and size == world_size:
            members[name] = list(range(world_size))
    return members


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
            number: _described(group)
            for number, rank in ranks.items()
            if name is not None
            and (group := rank.groups.get(name)) is not None
            and group.asked == sequence
        }
        counts = Counter(asked.values())
        if len(counts) < 2:
            continue
        usual, most = counts.most_common(1)[0]
        # Of two ranks nobody knows which one is right.
        even = list(counts.values()).count(most) > 1
        wrong = [number for number, what in asked.items() if even or what != usual]
        return Stuck(
            "collective_mismatch", tuple(sorted(wrong)), tuple(sorted(blocked)), wait, asked
        )
    return None


def _described(group: Group) -> str:
    text = group.operation
    if group.operation in _EQUAL and group.elements:
        text += f" of {group.elements} elements"
    if group.type is not None and group.operation in _EQUAL:
        text += f" of {group.type}"
    if group.root is not None:
        text += f", root {group.root}"
    return text


def _awaited(
    number: int, rank: Rank, ranks: Mapping[int, Rank], members: Mapping[str, Sequence[int]]
) -> set[int]:
    """Return the ranks that a blocked one waits for."""
    found: set[int] = set()
    for wait in rank.waits:
        those = members.get(wait.group or "", ())
        if wait.peer is not None and (wait.operation in MESSAGES or wait.operation in _FROM_ROOT):
            if wait.peer < len(those):
                those = [those[wait.peer]]
            elif wait.operation in MESSAGES:
                continue
        for other in those:
            if other != number and not _arrived(ranks.get(other), wait):
                found.add(other)
    return found


def _arrived(rank: Rank | None, wait: Wait) -> bool:
    """Say whether a rank is known to have asked for what another one waits in."""
    if rank is None or wait.group is None or wait.operation in MESSAGES:
        return False
    group = rank.groups.get(wait.group)
    return group is not None and group.asked >= wait.sequence


def _reaches(start: int, those: set[int], edges: Mapping[int, Iterable[int]]) -> bool:
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


def _circle(edges: Mapping[int, set[int]]) -> tuple[int, ...]:
    """Return the ranks of a circle; there is one, since each of them waits for another one."""
    at = min(edges)
    path: list[int] = []
    while at not in path:
        path.append(at)
        at = min(edges[at])
    return tuple(sorted(path[path.index(at) :]))
