"""Rules on communication: moving data while nothing is computed, and waiting for other ranks.

Waiting is no property of the rank that waits: it is the time of the rank that comes last.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, TypeAlias

import numpy as np
import polars as pl

from haiprof.common.numbers import milliseconds, percent
from haiprof.findings.deep.case import WORTH, Case
from haiprof.findings.deep.recommendation import Finding
from haiprof.views.intervals import intersect, merge
from haiprof.views.trace.critical_path.what_if import Work
from haiprof.views.trace.linking.work import times
from haiprof.views.trace.overview import OTHER, PARTS

#: The plugin's threshold for a job without a device.
COMMUNICATION: Final = 0.10
#: The columns that identify one trace of a run, as in the Analyzer's frames.
TRACE_KEY: Final = ("node", "rank", "pid", "session")
TraceKey: TypeAlias = tuple[object, ...]
#: A rank is late, and not just last by turns, if the others wait for it this many times as long as
#: it waits for them.
_LATE: Final = 2.0
#: What a collective is, for the advice.
_REDUCES: Final = ("all_reduce", "reduce", "broadcast")
_SHARDS: Final = ("all_gather", "reduce_scatter")
_PEERS: Final = ("send", "recv", "send_recv")
_UNSURE: Final = "; trace the other ranks too, to see how much of it is waiting for them"


def exposed_communication(case: Case) -> Iterator[Finding]:
    """Communication that no computation hides, without the waiting for other ranks."""
    if not case.has_device:
        yield from _on_host(case)
        return
    each = case.by_step(*case.transfer)
    lost = int(each.sum())
    if lost < WORTH * case.stepped or not lost:
        return
    op, name, of_op = _mostly(case)
    whole = int(case.by_step(*merge(*times(case.communications))).sum())
    waited = int(case.by_step(*case.waiting).sum())
    unsure = case.waits is None and _several(case)
    kind = f"; {milliseconds(of_op)} of it is {op}" if op else ""
    waiting = f", {milliseconds(waited)} more is waiting for other ranks" if waited else ""
    yield Finding(
        "exposed_communication",
        f"{percent(lost / case.stepped)} of the steps is communication during which nothing is "
        "computed" + (", waiting for other ranks included" if unsure else ""),
        _advice(case, op) + (_UNSURE if unsure else ""),
        f"{milliseconds(lost)} of the {milliseconds(whole)} of communication are not hidden"
        f"{waiting}{kind}",
        case.saved(lost),
        lost / case.stepped,
        case.step(int(each.argmax())),
        name,
        step_saves_ns=case.replayed(each, Work(case.linked.in_role("communication"))),
    )


def _several(case: Case) -> bool:
    """Whether there are other ranks to wait for: unless all groups are known to have one rank."""
    sizes = case.communications["group_size"]
    return bool(sizes.is_null().any() or (sizes > 1).any())


def _mostly(case: Case) -> tuple[str | None, str | None, int]:
    """The collective of which most is not hidden, the name of its kernel or call, and its time."""
    found = case.communications
    best: tuple[str | None, str | None, int] = (None, None, -1)
    for (op,), mine in sorted(
        found.partition_by("op", as_dict=True).items(), key=lambda item: str(item[0][0])
    ):
        time = int(case.by_step(*intersect(*merge(*times(mine)), *case.transfer)).sum())
        if time > best[2]:
            best = (None if op is None else str(op), _name(case, mine), time)
    return best


def _name(case: Case, found: pl.DataFrame) -> str | None:
    """Return the name of the kernels that take longest, or of the calls."""
    linked = case.linked
    kernels = linked.activities["name"].gather(found["activity"]).cast(pl.String)
    calls = (
        linked.ops["name"].gather(found["call"]).cast(pl.String) if len(linked.start) else kernels
    )
    named = pl.DataFrame(
        {
            "name": kernels.zip_with(kernels.is_not_null(), calls),
            "time": found["end"] - found["start"],
        }
    )
    summed = named.group_by("name").agg(pl.col("time").sum()).sort("time", "name", nulls_last=False)
    return None if not summed.height else summed["name"][-1]


def _advice(case: Case, op: str | None) -> str:
    """Say what shortens or hides a collective of this kind in such a job."""
    job = case.job
    if op == "all_to_all":
        return (
            "start it as soon as its input is there and wait for it as late as possible, so that "
            "work that does not need it runs meanwhile (split the batch if there is none); send "
            "less, in a smaller type"
        )
    if op in _PEERS:
        return (
            "use more micro-batches, or a schedule that overlaps sending with computing"
            if job.trains
            else "send while the next part is computed"
        )
    if op in _SHARDS and _shards(case):
        return (
            "prefetch the parameters of the next layer (FSDP: set_modules_to_forward_prefetch, "
            "backward_prefetch=BACKWARD_PRE), or shard within a node only"
        )
    if op in (*_REDUCES, *_SHARDS) and not job.trains:
        return "split the model over fewer GPUs (tensor parallelism), or give each step more tokens"
    if op in _REDUCES and job.ddp:
        return (
            "reduce gradients while backward still runs: smaller first buckets or another "
            "bucket_cap_mb in DistributedDataParallel, static_graph=True; or reduce less often "
            "(gradient accumulation with no_sync()) or in bfloat16 or float16 (a communication "
            "hook)"
        )
    if job.trains:
        return (
            "start it as soon as its input is there and wait for it as late as possible; "
            "communicate less often by gradient accumulation"
        )
    return "start it as soon as its input is there and wait for it as late as possible"


def _shards(case: Case) -> bool:
    """Whether parameters are gathered and gradients scattered, as FSDP does it."""
    ops = set(case.communications["op"].drop_nulls().to_list())
    return case.job.sharded or (case.job.trains and set(_SHARDS) <= ops)


def _on_host(case: Case) -> Iterator[Finding]:
    mean = case.overview.mean
    share = mean.get("communication", 0) / mean["duration"] if mean.get("duration") else 0.0
    waits = case.waits
    waited = 0
    if waits is not None:
        waited = int(case.by_step(*intersect(*merge(*times(case.communications)), *waits)).sum())
    lost = max(int(share * case.stepped) - waited, 0)
    share = lost / case.stepped
    if share > COMMUNICATION:
        unsure = waits is None
        yield Finding(
            "exposed_communication",
            f"{percent(share)} of the steps is communication"
            + (", waiting for other ranks included" if unsure else ""),
            (
                "communicate less often, by gradient accumulation for example, or less at a time"
                if case.job.trains
                else "communicate less often, or less at a time"
            )
            + (_UNSURE if unsure else ""),
            f"{milliseconds(lost)} of {milliseconds(case.stepped)} in the recorded steps",
            case.saved(lost),
            share,
        )


#: Parts of a step in which a rank may take longer than the others: in words, and what to do.
_LATE_IN: Final[Mapping[str, tuple[str, str]]] = {
    "kernel": (
        "its kernels take",
        "give it less of the work (tokens, experts, shards), and check the clocks and the "
        "temperature of its GPU",
    ),
    "memcpy": ("its copies take", "give it less to copy, and check the link of its GPU"),
    "memset": ("its memsets take", "give it less of the work"),
    "runtime": (
        "its calls of the runtime take",
        "check what else runs on its cores, and which cores it is bound to",
    ),
    "dataloader": (
        "its DataLoader takes",
        "check its storage, its DataLoader's workers and the size of its samples",
    ),
    "cpu": (
        "its operators on the host take",
        "check whether it has more to do than the others, what else runs on its cores, and which "
        "cores it is bound to",
    ),
    OTHER: (
        "its code outside of operators takes",
        "check what its Python code does besides, and what else runs on its cores",
    ),
}
_LATE_SOMEHOW: Final = (
    "check what it does before these collectives: its own findings, its share of the work, and "
    "the clocks and temperature of its GPU"
)


def stragglers(late: pl.DataFrame, steps: pl.DataFrame) -> dict[TraceKey, list[Finding]]:
    """Return the finding about each rank that keeps the others waiting, by its identity.

    Args:
        late: :meth:`haiprof.answers.deep.TraceAnswers.stragglers`.
        steps: the steps of all ranks, with :data:`TRACE_KEY`, ``duration`` and, if known, their
            parts (:func:`haiprof.views.trace.overview.overview`).
    """
    by_trace: dict[TraceKey, list[Finding]] = {}
    whole = {
        (node, *who): int(total)
        for node, *who, total in steps.group_by(TRACE_KEY).agg(pl.col("duration").sum()).iter_rows()
    }
    for row in late.iter_rows(named=True):
        key = tuple(row[name] for name in TRACE_KEY)
        label = _label(row, late)
        lost, ran = int(row["caused"]), whole.get(key, 0)
        if not ran or lost < WORTH * ran or lost < _LATE * int(row["waited"]):
            continue
        part, more = _late_in(steps, key)
        words, advice = _LATE_IN[part] if part else ("", _LATE_SOMEHOW)
        longer = f"; {words} {milliseconds(more)} a step longer than the others'" if part else ""
        by_trace.setdefault(key, []).append(
            Finding(
                "straggler",
                f"the other ranks waited for {label}, up to {percent(lost / ran)} of its steps",
                advice,
                f"it came last to {row['last']} of {row['collectives']} collectives, and kept the "
                f"first to come waiting for {milliseconds(lost)}; it waited "
                f"{milliseconds(int(row['waited']))} itself{longer}",
                lost,
                lost / ran,
            )
        )
    return by_trace


def _label(row: Mapping[str, object], ranks: pl.DataFrame) -> str:
    """Return how people call the rank of a row; without a number it may be one of its host's."""
    if row["rank"] is not None:
        return f"rank {row['rank']}"
    several = ranks.filter(pl.col("node") == row["node"]).select("node", "pid").n_unique() > 1
    return f"pid {row['pid']} on {row['node']}" if several else str(row["node"])


def _late_in(steps: pl.DataFrame, key: TraceKey) -> tuple[str | None, int]:
    """The part of its steps that takes a rank longest, compared with the median of the others."""
    parts = [part for part in (*PARTS, OTHER) if part in steps.columns and part != "communication"]
    if not parts:
        return None, 0
    means = steps.group_by(TRACE_KEY).agg(pl.col(parts).mean())
    mine = np.array([row[:4] == key for row in means.select(TRACE_KEY).iter_rows()])
    if mine.sum() != 1 or len(mine) < 2:
        return None, 0
    more = {
        part: float(means[part].to_numpy()[mine][0])
        - float(np.median(means[part].to_numpy()[~mine]))
        for part in parts
    }
    part = max(more, key=lambda part: more[part])
    whole = float(steps["duration"].mean() or 0)  # type: ignore[arg-type]
    return (part, int(more[part])) if more[part] > WORTH * whole else (None, 0)


def waiting(
    steps: pl.DataFrame, late: Mapping[TraceKey, list[Finding]]
) -> dict[TraceKey, list[Finding]]:
    """Return the finding about ranks that wait for each other, if no late rank explains it.

    Args:
        steps: result of :meth:`haiprof.answers.deep.TraceAnswers.distributed`, of all ranks.
        late: result of :func:`stragglers`.
    """
    if late or "waiting" not in steps.columns or not steps.height:
        return {}
    sums = (
        steps.group_by(TRACE_KEY)
        .agg(pl.col("waiting").sum(), pl.col("duration").sum())
        .sort("waiting", *TRACE_KEY, descending=[True, *(False for _ in TRACE_KEY)])
    )
    best = sums.row(0, named=True)
    if not best["duration"] or best["waiting"] < WORTH * best["duration"]:
        return {}
    share = best["waiting"] / best["duration"]
    others = int(sums["waiting"].sum()) / max(int(sums["duration"].sum()), 1)
    key = tuple(best[name] for name in TRACE_KEY)
    finding = Finding(
        "waiting",
        f"{percent(share)} of the steps is waiting for other ranks in collectives, and no single "
        "rank is the reason",
        "give the ranks equal work in each step: batches of equal numbers of tokens or samples, "
        "balanced experts and shards",
        f"{milliseconds(best['waiting'])} of {milliseconds(best['duration'])} in the recorded "
        f"steps; {percent(others)} on average over the ranks",
        int(best["waiting"]),
        share,
    )
    return {key: [finding]}


def waits_for(steps: pl.DataFrame, late: pl.DataFrame, key: TraceKey) -> list[Finding]:
    """Return the finding about a rank that waits for a late one: it saves nothing of its own.

    Args:
        steps: as in :func:`waiting`.
        late: as in :func:`stragglers`.
        key: the rank's.
    """
    mine = steps.filter(
        pl.all_horizontal(
            pl.col(name).eq_missing(pl.lit(value))
            for name, value in zip(TRACE_KEY, key, strict=True)
        )
    )
    whole, waited = int(mine["duration"].sum()), int(mine["waiting"].sum())
    if not whole or waited < WORTH * whole or not late.height:
        return []
    worst = late.row(0, named=True)
    who = _label(worst, late)
    return [
        Finding(
            "waiting",
            f"{percent(waited / whole)} of the steps is waiting for other ranks in collectives, "
            f"mostly for {who}",
            f"make {who} faster: its own findings say what takes it long",
            f"{milliseconds(waited)} of {milliseconds(whole)} in the recorded steps; {who} came "
            f"last to {worst['last']} of {worst['collectives']} collectives",
            share=waited / whole,
        )
    ]
