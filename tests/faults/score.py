"""Compares what was found in runs with what is true of them, and counts."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from faults.cases import KINDS

Truth = dict[str, Any]
Findings = list[dict[str, Any]]
#: How far a lost time may be from the true one.
TOLERANCE = 0.25
#: Below this share of the time a loss need not be found.
SMALLEST = 0.05
#: Above this share of the time, waiting for a core or an exchange is a loss of its own.
SHARED = 0.03
#: What a loader may cost in a run in which nothing is wrong.
CHEAP_LOADER = 0.03
#: Kinds that are themselves about who has the cores: no other name is excused for them.
ABOUT_CORES = frozenset(
    ("cpu_neighbour", "cpu_quota", "cpu_affinity", "too_many_threads", "starved_communication")
)
#: Kinds that are themselves about how long exchanges take.
ABOUT_EXCHANGES = frozenset(
    (
        "exposed_communication", "small_collectives", "slow_link", "packet_loss",
        "starved_communication",
    )
)  # fmt: skip
VALIDATION = "validation"
TUNING = "tuning"


def split(seed: int) -> str:
    """Return which half a seed belongs to: rules may be tuned on the even ones only."""
    return VALIDATION if seed % 2 else TUNING


def wilson(right: int, of: int, z: float = 1.96) -> tuple[float, float]:
    """Return the 95 % interval of a share by Wilson's score."""
    if not of:
        return 0.0, 1.0
    share = right / of
    middle = share + z * z / (2 * of)
    half = z * math.sqrt(share * (1 - share) / of + z * z / (4 * of * of))
    low, high = ((middle + sign * half) / (1 + z * z / of) for sign in (-1, 1))
    return max(0.0, low), min(1.0, high)


@dataclasses.dataclass(frozen=True)
class Row:
    """How a run was judged; None where the question does not arise.

    Attributes:
        usable: why the run says nothing, if so.
        first: whether the true cause was the first that was said.
        named: whether it was said at all.
        lost: whether the lost time is right, where it was named and is known.
        ranks: whether the ranks are right, where it was named and not all are alike.
        place: whether the line is, where it was named and is known.
        alarm: whether something was said of a run in which nothing is wrong.
        said: the kinds that were said, those that are excused left out.
        sure: the confidence of each of these.
        wanted: the kinds that name the true cause.
    """

    label: str
    kind: str | None
    seed: int
    usable: str | None = None
    first: bool | None = None
    named: bool | None = None
    lost: bool | None = None
    ranks: bool | None = None
    place: bool | None = None
    alarm: bool | None = None
    said: tuple[str, ...] = ()
    sure: tuple[float, ...] = ()
    wanted: tuple[str, ...] = ()
    lost_ns: int | None = None
    true_ns: tuple[int, int] | None = None


def unusable(truth: Truth) -> str | None:
    """Return why a run cannot be judged, if so."""
    if truth["kind"] is None:
        if truth["exit_code"]:
            return f"it ended with {truth['exit_code']}"
        if truth["fetch_share"] > CHEAP_LOADER:
            return f"its loader costs {truth['fetch_share']:.1%}"
        return None
    if truth["measure"]:
        if truth["lost_high_ns"] is None:
            return "its loss was not measured"
        # What is done before the first step is no part of the time of the steps.
        base = truth["time_ns"] + (truth["lost_high_ns"] if truth["measure"] == "start" else 0)
        if truth["lost_high_ns"] < SMALLEST * base:
            return f"it cost {truth['lost_high_ns'] / base:.1%} only"
    return None


def excused(finding: dict[str, Any], truth: Truth) -> bool:
    """Whether something that was said is true, although it was not planted.

    Cores that other programs take are a loss wherever the machine does other work as well, also to
    the ranks that wait for one that has none, and an exchange that all ranks wait for is one
    wherever it is not hidden.
    """
    kind = finding["kind"]
    about_cores = kind in ("cpu_neighbour", "starved_communication") or (
        kind == "straggler" and finding.get("phase") == "cpu_queue"
    )
    if about_cores and truth["kind"] not in ABOUT_CORES:
        return bool(truth["ready_ns"] > SHARED * truth["time_ns"])
    if kind == "exposed_communication" and truth["kind"] not in ABOUT_EXCHANGES:
        return bool(truth["blocked_share"] > SHARED)
    return False


def right_loss(found: float | None, low: float, high: float) -> bool:
    """Whether a lost time is as near to the true one as it must be."""
    return found is not None and (1 - TOLERANCE) * low <= found <= (1 + TOLERANCE) * high


def judge(truth: Truth, findings: Findings) -> Row:
    """Compare what was said of one run with what is true of it."""
    counted = [one for one in findings if not excused(one, truth)]
    said = tuple(str(one["kind"]) for one in counted)
    sure = tuple(float(one.get("confidence", 0.0)) for one in counted)
    kinds = () if truth["kind"] is None else (truth["kind"], *truth["also"])
    row = Row(
        truth["label"], truth["kind"], truth["seed"], unusable(truth), said=said, sure=sure,
        wanted=kinds,
    )  # fmt: skip
    if row.usable is not None:
        return row
    if truth["kind"] is None:
        return dataclasses.replace(row, alarm=bool(said))
    ours = next((one for one in findings if one["kind"] in kinds), None)
    row = dataclasses.replace(row, first=bool(said) and said[0] in kinds, named=ours is not None)
    if ours is None:
        return row
    if truth["lost_high_ns"] is not None:
        low, high = truth["lost_low_ns"], truth["lost_high_ns"]
        found = ours.get("lost_ns")
        right = right_loss(found, low, high)
        row = dataclasses.replace(row, lost=right, lost_ns=found, true_ns=(low, high))
    if truth["ranks"]:
        row = dataclasses.replace(row, ranks=sorted(ours.get("ranks") or ()) == truth["ranks"])
    if truth["places"]:
        line = ours.get("line") or ""
        # A comprehension is a function within a function.
        names = line.partition(" (")[0].split(".")
        row = dataclasses.replace(row, place=not set(truth["places"]).isdisjoint(names))
    return row


def count(rows: Iterable[Row], name: str) -> tuple[int, int]:
    """Return how many rows a question is answered with yes in, and in how many it arises."""
    answers = [value for row in rows if (value := getattr(row, name)) is not None]
    return sum(answers), len(answers)


def _cell(rows: Sequence[Row], name: str, interval: bool = False) -> str:
    right, of = count(rows, name)
    if not of:
        return ""
    if not interval:
        return f"{right} of {of}"
    low, high = wilson(right, of)
    return f"{right} of {of}, {right / of:.0%} ({low:.0%} to {high:.0%})"


ASKED = ("first", "named", "lost", "ranks", "place")
HEAD = """\
| kind | runs | first | named | lost time | ranks | line | said first instead |
|---|---|---|---|---|---|---|---|
"""


HALVES: tuple[tuple[str, Callable[[Row], bool]], ...] = (
    ("all", lambda row: True),
    ("seeds for tuning", lambda row: split(row.seed) == TUNING),
    ("seeds for validation", lambda row: split(row.seed) == VALIDATION),
)


def table(rows: Sequence[Row], not_planted: dict[str, str]) -> str:
    """Return the score of recorded runs, those with faults and the healthy ones, in Markdown."""
    text = by_kind(rows, not_planted, KINDS)
    text += "\n| healthy runs | false alarms |\n|---|---|\n"
    for name, inside in HALVES:
        mine = [r for r in rows if r.kind is None and r.usable is None and inside(r)]
        text += f"| {name} | {_cell(mine, 'alarm', interval=True) or 'none were run'} |\n"
    return text


def by_kind(rows: Sequence[Row], not_planted: dict[str, str], kinds: Iterable[str]) -> str:
    """Return the score as a table of Markdown, one row per kind, and the sums of each half."""
    text = HEAD
    for kind in kinds:
        mine = [row for row in rows if row.kind == kind and row.usable is None]
        if not mine:
            reasons = {row.usable for row in rows if row.kind == kind} - {None}
            reason = "; ".join(sorted(map(str, reasons))) or not_planted.get(kind, "not run")
            text += f"| `{kind}` | 0 | | | | | | {reason} |\n"
            continue
        cells = [_cell(mine, name) for name in ASKED]
        wrong = sorted({row.said[0] if row.said else "nothing" for row in mine if not row.first})
        text += f"| `{kind}` | {len(mine)} | {' | '.join(cells)} | {', '.join(wrong)} |\n"
    for name, inside in HALVES:
        mine = [r for r in rows if r.kind is not None and r.usable is None and inside(r)]
        cells = [_cell(mine, asked, interval=True) for asked in ASKED]
        text += f"| **{name}** | {len(mine)} | {' | '.join(cells)} | |\n"
    return text


def trust(rows: Iterable[Row]) -> str:
    """Return how often each kind was true where it was said, in Markdown, with its confidence.

    What is said besides the planted cause counts as wrong, although some of it may be true.
    """
    found: dict[str, list[tuple[bool, float]]] = {}
    for row in rows:
        if row.usable is None:
            for kind, sure in dict(zip(row.said, row.sure, strict=True)).items():
                found.setdefault(kind, []).append((kind in row.wanted, sure))
    text = "| kind | right when said | mean confidence |\n|---|---|---|\n"
    for kind, each in sorted(found.items()):
        right = sum(true for true, _ in each)
        low, high = wilson(right, len(each))
        mean = sum(sure for _, sure in each) / len(each)
        text += f"| `{kind}` | {right} of {len(each)} ({low:.0%} to {high:.0%}) | {mean:.0%} |\n"
    return text


def alarms(rows: Iterable[Row]) -> list[str]:
    """Return a line for each run that was judged wrongly or not at all."""
    lines = []
    for row in rows:
        what = f"{row.label}, seed {row.seed}"
        if row.usable is not None:
            lines.append(f"not counted: {what}: {row.usable}")
        elif row.alarm:
            lines.append(f"false alarm: {what}: {', '.join(row.said)}")
        elif row.kind is not None and not row.first:
            lines.append(f"not first: {what}: said {', '.join(row.said) or 'nothing'}")
        elif row.lost is False and row.true_ns is not None:
            low, high = (ns / 1e9 for ns in row.true_ns)
            said = "nothing" if row.lost_ns is None else f"{row.lost_ns / 1e9:.2f} s"
            lines.append(f"lost time: {what}: said {said}, true {low:.2f} to {high:.2f} s")
    return lines
