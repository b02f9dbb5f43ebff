"""What a run takes longer for than another one that is known to be good, and what differs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from haiprof.common.numbers import milliseconds, percent, size
from haiprof.findings.finding import LEAST, SURE, Evidence, Finding
from haiprof.findings.recorded.case import Case
from haiprof.views.run.ledger import WORK
from haiprof.views.run.step_changes import StepChange, step_change

#: Causes that are named: those with at least this share of what a step takes longer.
_PART: Final = 0.15
#: Nobody reads more of them, or of the settings that differ.
_MOST: Final = 3
_MOST_SETTINGS: Final = 8
#: Runs send as much a step if their bytes differ by no more than this share.
_AS_MUCH: Final = 0.05
#: A link is slow if what is sent over it takes this many times as long.
_TIMES: Final = 1.25
#: Clocks differ if one is this share of the other.
_CLOCK: Final = 0.95
#: … and explain what takes longer if all work does, as much as that, within this share.
_ALIKE: Final = 0.3
_FREQUENCY: Final = "cpu.frequency.hertz"
#: Kinds of events with settings, each with those that say nothing of how fast a step can be.
_SETTINGS: Final[Mapping[str, Sequence[str]]] = {
    "loader": ("loader", "samples", "batches", "subset_of"),
    "threads": (),
    "ddp": (),
    "autograd": (),
}


def slower(case: Case, good: Case, name: str) -> list[Finding]:
    """Return that steps take longer than in a good run, and in what; empty: they do not.

    Args:
        case: the run.
        good: the one that it is compared with.
        name: of that one.
    """
    if not case.ranks or not good.ranks:
        return []
    change = step_change([r.ledger for r in good.ranks], [r.ledger for r in case.ranks])
    if change is None or change.longer < LEAST * change.after or change.low < SURE * change.after:
        return []
    took, takes = milliseconds(change.before), milliseconds(change.after)
    parts = _parts(change)
    kind, problem, advice, evidence = (
        _slow_link(case, good, change, parts, name)
        or _low_clock(case, good, change, name)
        or (
            "regression",
            f"A step takes {takes} instead of {took} in {name}: {_words(change, parts)}",
            "look at what differs between the runs: haiprof compare names the functions",
            (),
        )
    )
    settings = [
        Evidence("baseline", setting, _shown(now), "setting", _shown(then))
        for setting, (then, now) in _different(case, good).items()
    ]
    return [
        Finding(
            kind=kind,
            problem=problem,
            advice=advice,
            ranks=tuple(sorted(number for rank in case.ranks for number in rank.numbers)),
            lost_ns=int(change.longer * change.steps),
            low_ns=int(change.low * change.steps),
            high_ns=int(change.high * change.steps),
            share=change.longer / change.after,
            confidence=0.9,
            phase=parts[0],
            evidence=(
                Evidence("baseline", "a step", change.after, "ns", change.before),
                *evidence,
                *(
                    Evidence("baseline", f"{part}, a step", now, "ns", then)
                    for part in parts
                    for then, now in (change.causes[part],)
                ),
                *settings[:_MOST_SETTINGS],
            ),
            refuted_by=(("the difference lies within how much steps vary", True),),
            command="haiprof compare",
        )
    ]


def _parts(change: StepChange) -> list[str]:
    """Return the causes that a step takes longer for, the first of them the most."""
    more = {name: now - then for name, (then, now) in change.causes.items()}
    found = sorted(more, key=lambda name: -more[name])[:_MOST]
    return [found[0], *(name for name in found[1:] if more[name] >= _PART * change.longer)]


def _words(change: StepChange, parts: Sequence[str]) -> str:
    """Return what of a step takes longer, and by how much, as the end of a sentence."""
    texts = []
    for part in parts:
        then, now = change.causes[part]
        where = "between the phases" if part == "other" else f"in {part}"
        texts.append(f"{milliseconds(now - then)} more {where}")
    return ", ".join(texts)


_Named = tuple[str, str, str, tuple[Evidence, ...]]


def _slow_link(
    case: Case, good: Case, change: StepChange, parts: Sequence[str], name: str
) -> _Named | None:
    """Say that as many bytes take longer."""
    then, now = change.causes["transfer"]
    sent, before = _bytes_a_step(case), _bytes_a_step(good)
    if parts[0] != "transfer" or now < _TIMES * then or not before or not sent:
        return None
    if abs(sent - before) > _AS_MUCH * before:
        return None
    return (
        "slow_link",
        f"The {size(sent)} that each step transfers take {milliseconds(now)}, and as much took "
        f"{milliseconds(then)} in {name}",
        "look at the network between the ranks: the speed of its links, other traffic, the way "
        "that is chosen (NCCL_SOCKET_IFNAME, NCCL_IB_HCA)",
        (Evidence("baseline", "transferred, a step", sent, "bytes", before),),
    )


def _bytes_a_step(case: Case) -> float:
    steps = max(int(case.ranks[0].ledger.count.sum()), 1)
    if not case.operations.height:
        return 0.0
    rows = case.operations
    return float((rows["operations"] * rows["bytes"].fill_null(0)).sum()) / steps


def _low_clock(case: Case, good: Case, change: StepChange, name: str) -> _Named | None:
    """Say that the CPUs' clock is lower, and all work as much slower."""
    now, then = _clock(case), _clock(good)
    if now is None or then is None or now > _CLOCK * then:
        return None
    slower = then / now
    works = [change.causes[cause] for cause in WORK if change.causes[cause][0] > 0]
    weight = sum(before for before, _ in works)
    alike = sum(
        before for before, after in works
        if abs(after / before - slower) <= _ALIKE * (slower - 1)
    )  # fmt: skip
    if not weight or alike < (1 - _ALIKE) * weight:
        return None
    return (
        "cpu_clock",
        f"The CPUs run at {now / 1e9:.3g} GHz, and ran at {then / 1e9:.3g} GHz in {name}: all that "
        f"they compute takes {percent(slower - 1)} longer",
        "look at the governor, at power limits and at heat (cpupower frequency-info)",
        (Evidence("baseline", _FREQUENCY, now, "Hz", then),),
    )


def _clock(case: Case) -> float | None:
    """Return the mean clock of the nodes' CPUs, Hz."""
    known = [stat.mean for node in case.nodes if (stat := node.stats.get(_FREQUENCY)) is not None]
    return sum(known) / len(known) if known else None


def _different(case: Case, good: Case) -> dict[str, tuple[Any, Any]]:
    """Return the settings that differ between the first ranks: in the good run, and in this one."""
    now, then = _settings(case), _settings(good)
    return {
        name: (then[name], now[name]) for name in now if name in then and now[name] != then[name]
    }


def _settings(case: Case) -> dict[str, Any]:
    facts = case.ranks[0].facts
    found: dict[str, Any] = {}
    for kind, without in _SETTINGS.items():
        # The first loader is that of training; of other settings the last ones hold.
        several = facts.get(kind, ())
        chosen = several[:1] if kind == "loader" else several[-1:]
        for attributes in chosen:
            found |= {
                f"{kind}.{name}": value
                for name, value in attributes.items()
                if name not in without and isinstance(value, (bool, int, float, str, type(None)))
            }
    found["ranks"] = len(case.ranks)
    return found


def _shown(value: Any) -> str:
    return "not set" if value is None else str(value)
