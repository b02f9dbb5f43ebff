"""What is wrong: findings with the places that they speak of, and what the time went to.

Tests: tests/show/page/test_build.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from haiprof.common.numbers import milliseconds, percent, size
from haiprof.findings.kinds import KINDS
from haiprof.show.grid import SENTENCE, cut
from haiprof.show.page import document
from haiprof.show.page.context import Context, table
from haiprof.show.page.ledger import ledger

if TYPE_CHECKING:
    from haiprof.findings.finding import Evidence, Finding

#: More are never acted on; `haiprof diagnose --json` has all.
_MOST: Final = 40
_MOST_EVIDENCE: Final = 12
_MOST_RANKS: Final = 64
#: What the page itself is.
_THIS: Final = "haiprof report"
#: Where the figures of each source are shown.
_TABS: Final = {
    "ledger": ("wrong", "ledger"),
    "events": ("run", "marks"),
    "samples": ("machine", ""),
    "collectives": ("ranks", "collectives"),
    "stacks": ("code", ""),
    "kernels": ("step", ""),
    "trace": ("wrong", "trace-why"),
}


def sections(found: Context) -> list[document.Section]:
    """Return the findings, and what the time of all ranks went to."""
    analyzer = found.analyzer
    all_findings = analyzer.findings()
    items = [_finding(found, one) for one in all_findings[:_MOST]]
    first: document.Findings = {
        "kind": "findings",
        "id": "findings",
        "title": "Findings",
        "items": items,
        "note": "What costs less than 5 % of the time, or is not certain, is not listed.",
    }
    if not items:
        first["empty"] = "Nothing costs as much as 5 % of the time for certain."
    spent = ledger(analyzer)
    made: list[document.Section] = [first]
    if spent.rows:
        made.append(table(spent, "ledger"))
    return made


def _finding(found: Context, one: Finding) -> document.Finding:
    since = _moment(found, one)
    place = _place(one, since)
    item: document.Finding = {
        "kind": one.kind,
        "title": KINDS[one.kind].title,
        "text": cut(one.problem, SENTENCE),
        "severity": "problem",
        "evidence": [_evidence(found, one, each) for each in one.evidence[:_MOST_EVIDENCE]],
        "confidence": round(one.confidence, 3),
        "fix": cut(one.advice, SENTENCE),
    }
    if one.lost_ns is not None:
        item["lost"] = one.lost_ns / 1e9
    if one.low_ns is not None and one.high_ns is not None:
        text = f"lost: from {milliseconds(one.low_ns)} to {milliseconds(one.high_ns)} (95 %)"
        item["evidence"].insert(0, {"text": text})
    if one.share is not None:
        item["share"] = round(one.share, 5)
    if one.ranks:
        item["ranks"] = list(one.ranks[:_MOST_RANKS])
    if one.line:
        item["line"] = cut(one.line)
        item["evidence"].append({"text": f"at {cut(one.line)}", "place": _of_line(one)})
    if since is not None:
        steps = f"{one.since}" if one.until is None else f"{one.since} to {one.until}"
        run: document.Place = {"tab": "run", "from": since[0], "to": since[1]}
        item["evidence"].append({"text": f"from step {steps} on", "place": run})
        if one.since is not None:
            inside: document.Place = {"tab": "step", "step": one.since}
            if one.ranks:
                inside["rank"] = one.ranks[0]
            item["evidence"].append({"text": f"inside step {one.since}", "place": inside})
    for what, looked in one.refuted_by:
        text = f"{'looked for and not seen' if looked else 'would refute it'}: {cut(what)}"
        item["evidence"].append({"text": text})
    if one.command and one.command != _THIS:
        item["evidence"].append({"text": f"shown by: {cut(one.command)}"})
    if place:
        item["place"] = place
    return item


def _of_line(one: Finding) -> document.Place:
    place: document.Place = {"tab": "code", "frame": one.line or ""}
    if one.ranks:
        place["rank"] = one.ranks[0]
    return place


def _place(one: Finding, since: tuple[float, float] | None) -> document.Place | None:
    """Return where a finding is seen best: its line, else its time, else its rank."""
    if one.line:
        return _of_line(one)
    place: document.Place = {}
    if one.ranks:
        place["rank"] = one.ranks[0]
    if since is not None:
        place |= {"tab": "run", "from": since[0], "to": since[1]}
        return place
    windows = [each.window for each in one.evidence if each.window is not None]
    if one.ended or windows or not one.ranks:
        place["tab"] = "run"
        return place
    place["tab"] = "ranks"
    return place


def _moment(found: Context, one: Finding) -> tuple[float, float] | None:
    """Return from when to when the steps are that a finding concerns."""
    if one.since is None:
        return None
    rank = one.ranks[0] if one.ranks else None
    summaries = [s for s in found.ranks if s.steps and rank in (None, s.process.rank)]
    if not summaries:
        return None
    summary = summaries[-1]
    after = summary.trend_start[summary.trend_step >= one.since]
    until = summary.trend_step[-1] if one.until is None else one.until
    before = summary.trend_step <= until
    if not len(after) or not before.any():
        return None
    ends = summary.trend_start[before][-1] + summary.trend_ns[before][-1]
    window = (int(after[0]), int(ends))
    found.windows.append((rank, *window))
    return found.second(window[0]), found.second(window[1])


def _evidence(found: Context, one: Finding, each: Evidence) -> document.Evidence:
    value = _figure(each.value, each.unit)
    text = value if each.unit == "" else f"{each.metric}: {value}"
    if each.reference is not None:
        text += f" (compared with {_figure(each.reference, each.unit)})"
    tab, section = _TABS.get(each.source, ("", ""))
    place: document.Place = {}
    if each.window is not None:
        place |= {"from": found.second(each.window[0]), "to": found.second(each.window[1])}
        tab = tab or "run"
        found.windows.append((one.ranks[0] if one.ranks else None, *each.window))
    if not tab:
        return {"text": cut(text, SENTENCE)}
    place["tab"] = tab
    if section:
        place["section"] = section
    if each.source == "samples":
        place["find"] = each.metric
    if one.ranks:
        place["rank"] = one.ranks[0]
    return {"text": cut(text, SENTENCE), "place": place}


def _figure(value: float | int | str, unit: str) -> str:
    if isinstance(value, str):
        return value
    if unit == "ns":
        return milliseconds(value)
    if unit in ("share", "ratio"):
        return percent(value)
    if unit == "percent":
        return f"{value:.3g} %"
    if unit == "bytes":
        return size(value)
    if unit == "bytes_per_s":
        return f"{size(value)}/s"
    number = f"{value:,.4g}" if isinstance(value, float) else f"{value:,}"
    return f"{number} {unit}".replace(" count", "")
