"""What costs a recorded job time, or ended it, and who is to blame.

Tests: tests/findings/recorded/test_rules.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import polars as pl

from haiprof import schema
from haiprof.answers import collectives as collective_answers
from haiprof.answers import ledger as ledger_answers
from haiprof.answers.chosen_ranks import in_detail, keeping_tables
from haiprof.answers.devices import devices
from haiprof.answers.one_process import read_events, read_phase_spans
from haiprof.answers.rank_columns import stacked
from haiprof.answers.ranks import Ranks
from haiprof.answers.recorded import RecordedAnswers
from haiprof.common.frame_texts import SEPARATOR
from haiprof.common.numbers import milliseconds
from haiprof.findings import hardware
from haiprof.findings.deep import as_findings, recommendation
from haiprof.findings.finding import Finding, ordered
from haiprof.findings.recorded import (
    as_recommendations,
    baseline_rules,
    end_rules,
    hang_rules,
    kernel_log_rules,
    memory_rules,
    pcie_rules,
    rules,
)
from haiprof.findings.recorded import case as case_view
from haiprof.findings.recorded.doing import doing
from haiprof.runs import ROLE_RANK, Process
from haiprof.sources import tables
from haiprof.sources.hangs import read_hangs
from haiprof.views.run import collectives as collective_view
from haiprof.views.run import stacks as stack_views
from haiprof.views.run.late_places import of_job
from haiprof.views.run.ledger import Ledger
from haiprof.views.run.overview import Summary

#: Events of one kind that are looked at.
_MOST_FACTS: Final = 256
#: Of so many steps the size of the inputs must be known.
_MOST_STEPS: Final = 0.9
_EXCHANGE: Final = "all_to_all"
#: Samples of its main thread that say where a process ended: these are looked at, and so many in a
#: row are needed.
_NEWEST: Final = 256
_STAYED: Final = 4


def recorded(ranks: Ranks, records: RecordedAnswers) -> list[Finding]:
    """Return the findings of a recorded run, the most important first; made once."""

    def found() -> list[Finding]:
        # Several of the answers that they rest on read the same tables.
        with keeping_tables(ranks):
            return _recorded(ranks, records)

    return list(ranks.once("findings", found))


def against(
    ranks: Ranks, records: RecordedAnswers, good: Ranks, good_records: RecordedAnswers
) -> list[Finding]:
    """Return the findings with what takes longer than in a good run before all but the end."""
    found = recorded(ranks, records)
    longer = baseline_rules.slower(case(ranks, records), case(good, good_records), good.run.name)
    ended = sum(finding.ended for finding in found)
    return [*found[:ended], *longer, *found[ended:]]


def recommendations(
    ranks: Ranks, records: RecordedAnswers, of_kernels: pl.DataFrame, rank: int | None
) -> pl.DataFrame:
    """Return the findings of a recorded run with the columns of those of deep traces.

    There is a row for each rank that one concerns: what costs most first.

    Args:
        ranks: of the run.
        records: of the same.
        of_kernels: what the rules for traces find in the kernels that were recorded; of a kind of
            which there is a finding, that counts.
        rank: of this one only.
    """
    ranks.choose(rank)
    lived = ledger_answers.charged(looked_at(ranks, records))
    latest = {p.rank if p.rank is not None else p.folder: p for p, _ in lived}
    mine = [process for process in latest.values() if rank is None or process.rank == rank]
    rows = stacked(as_recommendations.by_process(recorded(ranks, records), mine))
    if not rows.height:
        return of_kernels
    kind = pl.col("kind").replace_strict(as_findings.KINDS, default="unexplained")
    others = of_kernels.filter(~kind.is_in(rows["kind"].unique().implode()))
    return recommendation.ordered(pl.concat([rows, others]))


def _recorded(ranks: Ranks, records: RecordedAnswers) -> list[Finding]:
    seen = case(ranks, records)
    end = records.end()
    raised = None if end.first is None else _raised(ranks, end.first)
    # An exception says where it was raised.
    stayed = None if end.first is None or raised is not None else _stayed_at(ranks, end.first)
    ends = end_rules.endings_of(
        ranks.run.processes, end.sentence, end.first, raised, seen.devices, stayed
    )
    hangs, unread = read_hangs(ranks.run.folder)
    ranks.note(unread)
    stood = max((each.ledger.spent("hang") for each in seen.ranks), default=0)
    went_on = any(_last_step(each) > hangs[-1].seen_ns for each in seen.ranks) if hangs else True
    ended = end.sentence is not None and not went_on
    hung = hang_rules.hangs_of(hangs, ended=ended, waited_ns=0 if went_on else stood)
    if end.awaited is not None and not (hung and hung[-1].ended):
        hung.append(hang_rules.timed_out(*end.awaited))
    # How a job that hung was ended comes after that.
    ends = [*hung, *ends, *_restarts(ranks, records)]
    # An error of a GPU that ended the job is said with that.
    said = {finding.kind for finding in ends}
    return ordered([*ends, *(one for one in rules.findings(seen) if one.kind not in said)])


def _raised(ranks: Ranks, first: Process) -> end_rules.Raised | None:
    """Return what a process reported of the exception that ended it, if one did."""
    if first.ending is None or first.ending.reason != "exception":
        return None
    read = read_events(first, "exception")
    ranks.note(read.problems)
    return end_rules.raised(read.frame["attributes"].to_list())


def _stayed_at(ranks: Ranks, first: Process) -> str | None:
    """Return the line of the job at which a process ended; None: it was there for too short."""
    spans = read_phase_spans(first)
    stacks, frames = (tables.read(first, table) for table in (schema.STACKS, schema.FRAMES))
    ranks.note([*spans.problems, *stacks.problems, *frames.problems])
    if not spans.frame.height:
        return None
    # A loop comes to the same line again and again: only since its last phase ended it stayed.
    ended = spans.frame.select((pl.col("start") + pl.col("duration")).max()).item()
    mine = pl.col("process") == first.pid, pl.col("thread") == first.pid
    tree = stack_views.Tree(frames.frame)
    newest = stacks.frame.filter(*mine, pl.col("start") >= ended).sort("start").tail(_NEWEST)
    newest = stack_views.rooted(newest, tree).reverse()
    lines = [of_job(text.split(SEPARATOR)) for text in tree.texts(newest["row"].to_numpy())]
    here = 0
    while here < len(lines) and lines[here] == lines[0]:
        here += 1
    # Between two samples a process can come anywhere.
    stayed = newest["samples"].head(here).sum() >= _STAYED
    if not stayed or lines[0] is None or first.ending is None:
        return None
    lasted = first.ending.failed_ns - newest["start"][here - 1]
    return f"it had been at {lines[0]} for {milliseconds(max(lasted, 0))}"


def _restarts(ranks: Ranks, records: RecordedAnswers) -> list[Finding]:
    """Return a finding for each time that the job was started again."""
    processes = [p for p in ranks.run.processes if p.role == ROLE_RANK]
    if len({p.attempt or 0 for p in processes}) < 2:
        return []
    return end_rules.restarts_of(records.goodput().restarts.iter_rows(named=True))


def _last_step(rank: case_view.Rank) -> int:
    """Return when the last step of a rank ended, ns UTC."""
    return int(rank.ledger.start[-1] + rank.ledger.duration[-1]) if len(rank.ledger.start) else 0


def case(ranks: Ranks, records: RecordedAnswers) -> case_view.Case:
    """Return what the rules look at; read once. Of very many ranks some are looked at."""

    def made() -> case_view.Case:
        some = looked_at(ranks, records)
        return _case(some, records if some is ranks else RecordedAnswers(some))

    return ranks.once("case", made)


def looked_at(ranks: Ranks, records: RecordedAnswers) -> Ranks:
    """Return the ranks that findings rest on."""
    return in_detail(ranks, records.summaries, records.imbalance)


def _case(ranks: Ranks, records: RecordedAnswers) -> case_view.Case:
    charged = ledger_answers.charged(ranks)
    # A rank that was started again is as it is now.
    latest = {
        p.rank if p.rank is not None else p.folder: (p, own)
        for p, own in sorted(charged, key=lambda pair: pair[1].ledger.begin)
    }
    summaries, nodes = records.summaries()
    by_folder = {summary.process.folder: summary for summary in summaries}
    work = [(p, (own, by_folder.get(p.folder))) for p, own in latest.values()]
    found = []
    for _, read in ranks.map(_rank, work):
        ranks.note(read.problems)
        found.append(read.rank)
    several = sum(process.role == ROLE_RANK for process, _ in latest.values()) > 1
    operations = collective_view.by_kind(collective_answers.matched(ranks)) if several else None
    events = records.events(
        kind=(hardware.LINK_EVENTS, kernel_log_rules.KERNEL_LOG, pcie_rules.PCIE_LINK)
    ).select(pl.col(name).cast(kind) for name, kind in case_view.LINKS_SCHEMA.items())
    of_links = pl.col("kind") == hardware.LINK_EVENTS
    return case_view.Case(
        [rank for rank in found if rank.ledger.stepped],
        nodes,
        pl.DataFrame() if operations is None else operations,
        devices(ranks),
        events.filter(of_links),
        events.filter(~of_links),
    )


class _Read(NamedTuple):
    rank: case_view.Rank
    problems: list[str]


def _rank(item: tuple[Process, tuple[ledger_answers.Charged, Summary | None]]) -> _Read:
    process, (charged, summary) = item
    events = read_events(process, *case_view.FACTS)
    metrics = [
        memory_rules.MEMORY,
        memory_rules.DEVICE_MEMORY,
        case_view.DEVICE_FREES,
        case_view.MAIN_FAULTS,
        case_view.MAIN_SYSTEM,
        case_view.INPUT_ELEMENTS,
    ]
    samples = tables.read(process, schema.SAMPLES, ("time", "metric", "value"), {"metric": metrics})
    rank = case_view.Rank(
        process,
        charged.ledger,
        doing(charged.lines),
        charged.slow,
        summary,
        _facts(events.frame),
        _exchanged(process),
        memory=_summed(samples.frame, memory_rules.MEMORY),
        device_memory=_summed(samples.frame, memory_rules.DEVICE_MEMORY),
        device_frees=_summed(samples.frame, case_view.DEVICE_FREES),
        main_thread=_main_thread(samples.frame),
        elements=_elements(samples.frame, charged.ledger),
    )
    return _Read(rank, [*events.problems, *samples.problems])


def _summed(samples: pl.DataFrame, metric: str) -> pl.DataFrame:
    """Return ``time`` and ``value`` of a metric, its instances added up."""
    rows = samples.filter(pl.col("metric").cast(pl.String) == metric)
    return rows.group_by("time").agg(pl.col("value").sum()).sort("time")


def _main_thread(samples: pl.DataFrame) -> pl.DataFrame:
    """Return what was sampled of the main thread at one time, as ``MAIN_SCHEMA`` has it."""
    both = (_summed(samples, m) for m in (case_view.MAIN_FAULTS, case_view.MAIN_SYSTEM))
    faults, system = both
    joined = faults.rename({"value": "faults"}).join(system.rename({"value": "system"}), on="time")
    return joined.select(pl.col(name).cast(kind) for name, kind in case_view.MAIN_SCHEMA.items())


def _elements(samples: pl.DataFrame, ledger: Ledger) -> case_view.Numbers:
    """Return the size of the inputs of each group of steps; empty: it is not known of most."""
    rows = samples.filter(pl.col("metric").cast(pl.String) == case_view.INPUT_ELEMENTS)
    count, none = len(ledger.start), np.zeros(0, np.int64)
    if not rows.height or not count:
        return none
    time = rows["time"].to_numpy()
    at = np.searchsorted(ledger.start, time, "right") - 1
    inside = (at >= 0) & (time < (ledger.start + ledger.duration)[np.maximum(at, 0)])
    sums = np.bincount(at[inside], rows["value"].to_numpy()[inside], count)
    known = np.count_nonzero(sums) >= _MOST_STEPS * count
    return sums.astype(np.int64) if known else none


def _exchanged(process: Process) -> int:
    """Return how many bytes a rank got in all_to_all, as its inputs' elements have them."""
    columns = ("side", "op", "elements_in", "elements_out", "bytes")
    rows = tables.read(process, schema.COLLECTIVES, columns, {"op": [_EXCHANGE]}).frame
    rows = rows.filter(pl.col("side").cast(pl.String).is_in(["work", "host"]))
    got = pl.col("bytes") / pl.col("elements_in") * pl.col("elements_out")
    return int(rows.filter(pl.col("elements_in") > 0).select(got.sum()).item() or 0)


def _facts(events: pl.DataFrame) -> Mapping[str, list[Mapping[str, Any]]]:
    found: dict[str, list[Mapping[str, Any]]] = {}
    for kind, time, text in events.select("kind", "time", "attributes").iter_rows():
        several = found.setdefault(str(kind), [])
        if text is None or len(several) >= _MOST_FACTS:
            continue
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):  # of a damaged file
            continue
        if isinstance(value, dict):
            several.append({**value, "time": time})
    return found
