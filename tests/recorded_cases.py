"""Cases for the rules over recorded runs: ranks with written lives, lines and samples."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
from charged_lives import charged, span

from haiprof.findings.finding import Finding
from haiprof.findings.kinds import KINDS
from haiprof.findings.recorded.case import Case, Rank
from haiprof.findings.recorded.doing import doing
from haiprof.findings.recorded.rules import findings
from haiprof.runs import Process
from haiprof.views.run import slow_steps
from haiprof.views.run.hot_lines import LINES_SCHEMA
from haiprof.views.run.overview import Summary
from haiprof.views.run.series import Stat

STEPS = 100
#: A healthy step, ms.
PHASES = {"dataloader": 1.0, "forward": 30.0, "backward": 60.0, "optimizer": 8.0, "other": 1.0}
LINE = "work (/job/train.py:9)"


def process(rank: int | None = 0, role: str = "rank", **more: Any) -> Process:
    given: dict[str, Any] = {
        "folder": Path(f"/run/n0#{rank}"), "role": role, "node": "n0", "host": "n0", "rank": rank,
        "local_rank": rank, "world_size": 1, "attempt": 0, "pid": 1000, "started_ns": 0,
        "process_started_ns": 0, "ended_ns": 1, "state": "closed", "lost": {}, "sources": (),
        "label": f"rank {rank}",
    }  # fmt: skip
    return Process(**{**given, **more})


def line(cause: str, samples: int, text: str | None = LINE, **more: Any) -> dict[str, Any]:
    """Return samples of the training thread in Python code of a line, unless ``more`` differs."""
    row = {
        "cause": cause, "worker": False, "line": text,
        "path": text if text is None else f"main (/job/train.py:1);{text}", "function": "work",
        "file": "/job/train.py", "package": None, "outer": None, "state": "running",
        "waits_in": None, "gil": True, "blocked_by": None, "beside": None, "slow": False,
        "later": False, "samples": samples,
    }  # fmt: skip
    return {**row, **more}


TORCH = {"function": "relu", "file": "x/torch/nn/functional.py", "package": "torch"}


def torch_lines(samples: int) -> list[dict[str, Any]]:
    return [line("forward", samples, "Net.forward (/job/net.py:2)", gil=False, **TORCH)]


def life(
    changes: dict[str, float] | None = None,
    seldom: dict[int, dict[str, float]] | None = None,
    spans: Sequence[Any] = (),
    startup: float = 100.0,
    steps: int = STEPS,
    **more: Any,
) -> Any:
    """Charge steps with these phases, ms; ``seldom``: changes of single steps."""
    rows, at = list(spans), startup
    for number in range(steps):
        phases = {**PHASES, **(changes or {}), **(seldom or {}).get(number, {})}
        begin = at
        for name, ms in phases.items():
            if name == "gc":
                rows.append(span(begin + 10, ms, "gc", "gc 2", number))
            elif name == "eval":
                rows.append(span(at, ms, "phase", "eval", number))
            elif name == "save":
                rows.append(span(at, ms, "checkpoint", "checkpoint.save", number))
            elif name != "other":
                rows.append(span(at, ms, "phase", name, number))
            at += 0 if name == "gc" else ms
        rows.append(span(begin, at - begin, "step", "step", number))
    return charged(rows, at + 10, **more)


def rank(
    own: Any, lines: Sequence[dict[str, Any]] = (), number: int | None = 0, **more: Any
) -> Rank:
    rows = pl.DataFrame(list(lines), LINES_SCHEMA, orient="row")
    return Rank(process(number), own, doing(rows), slow_steps.excess(own), **more)


def found(*ranks: Rank, **more: Any) -> list[Finding]:
    every = findings(Case(list(ranks), **more))
    for each in every:
        assert each.kind in KINDS
        assert not each.problem.endswith(".")
        assert not each.advice.endswith(".")
        if each.low_ns is not None:
            assert each.lost_ns is not None
            assert each.high_ns is not None
            assert each.low_ns <= each.lost_ns * 1.001 <= each.high_ns * 1.002 + 1
    return every


def kinds(*ranks: Rank, **more: Any) -> list[str]:
    return [each.kind for each in found(*ranks, **more)]


def stats(**values: float) -> Summary:
    """Return samples of a process; ``_`` in a name stands for a dot."""
    named = {
        "cpu": "proc.cpu.percent", "threads": "proc.threads.count",
        "throttled": "cgroup.throttled.percent", "limit": "cgroup.cpu_limit.cores",
        "allowed": "proc.allowed_cpus.count", "node": "cpu.util.percent",
        "memory": "psi.memory_some.percent", "sent": "tcp.sent.segments_per_s",
        "resent": "tcp.retransmitted.segments_per_s",
        "talk": "proc.communication_wait.percent", "dropped": "net.softnet_drops.per_s",
        "own_memory": "cgroup.psi_memory_some.percent", "swapped": "mem.swap_in.pages_per_s",
        "reclaim": "mem.reclaim_stalls.per_s", "read_back": "proc.major_faults.per_s",
    }  # fmt: skip
    return Summary(
        process(),
        stats={named[k]: Stat(v, v, 8 if k == "node" else 1, 0, 1, 9) for k, v in values.items()},
    )


def node(util: float, **more: float) -> Summary:
    summary = stats(node=util, **more)
    summary.process = process(None, role="node")
    return summary


def pair(late: dict[str, float] | None, culprit: int | None = 1, **more: Any) -> list[Rank]:
    """Return two ranks: rank 1 has changes, and rank 0 waits for it in its backward."""
    extra = sum((late or {}).values())
    begins = [100 + (100 + extra) * n for n in range(STEPS)]
    waits = [(b + 60, b + 60 + extra) for b in begins]
    pending = [(b + 55, b + 60 + extra, b + 60.5 + extra, culprit) for b in begins]
    changes = {"backward": PHASES["backward"] + extra}
    first = life(changes, waits=waits, pending=pending)
    second = life({name: PHASES[name] + ms for name, ms in (late or {}).items()}, **more)
    return [rank(first, torch_lines(100)), rank(second, torch_lines(100), number=1)]
