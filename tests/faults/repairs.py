"""Whether ``slowdown()`` predicts what repairing a rank saves: its gain beside the measured one.

    PYTHONPATH=tests python -m faults.repairs --runs 20 --keep FOLDER

Each job has a rank that is slowed down in its first steps, and in none of the later ones: its
model (data-parallel jobs), or its stage (pipelines). The first steps alone are asked how long a
step takes without that rank, the later ones say how long it does.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import polars as pl
from faults.cases import Case
from faults.drawn import PIPELINE, TRANSFORMER, job, task
from faults.record import record

from haiprof.analyzer import Analyzer

#: Steps that the rank is slow in, from the first of them on, and as many after them.
FIRST, STEPS = 20, 80
#: What the gains may differ by, as a share of the measured one: of each job, and of the median one.
EACH, MEDIAN = 0.10, 0.05
_NS: Final = 1_000_000_000


class Seen(NamedTuple):
    """A job: a step before and after the repair, and what was predicted; ns."""

    what: str
    slow: float
    repaired: float
    predicted: float
    first: bool

    @property
    def error(self) -> float:
        """By which share of the measured gain the predicted one differs from it."""
        gain = self.slow - self.repaired
        return abs((self.slow - self.predicted) - gain) / gain if gain > 0 else math.inf


def drawn(seed: int) -> Case:
    """Return a job whose last or other rank is slow at first.

    Ranks mostly sleep: on a core of its own each, one that is repaired takes nothing from others.
    """
    draw = random.Random(f"repairs {seed}")
    world = draw.choice([2, 3])
    late = draw.randrange(world)
    piped = seed % 2 == 1
    # Of a pipeline it is done for each microbatch.
    usual, more = (8.0, draw.uniform(4, 16)) if piped else (40.0, draw.uniform(25, 100))
    slow = task("forward", "pause", more, since=FIRST, until=FIRST + STEPS, ranks=[late])
    settings: dict[str, Any]
    if piped:
        extras = {"schedule": draw.choice(["gpipe", "1f1b"])}
        settings = {**PIPELINE, "extras": extras, "microbatches": 4, "batch": 4}
    else:
        settings = {**TRANSFORMER, "width": 64, "layers": 1, "batch": 2}
    settings |= {"seed": seed, "steps": FIRST + 2 * STEPS + 10}
    tasks = task("forward", "pause", usual), slow
    style = "staged" if piped else "parallel"
    return Case("repaired", None, seed, style, job(settings, *tasks), world, ranks=(late,))


def seen(run: Path, late: int, what: str) -> Seen:
    """Ask the first steps of a run how long one takes without a rank, and the later ones."""
    whole = Analyzer(run)
    steps = whole.steps().filter(pl.col("rank") == late).sort("start")
    first = steps.filter(pl.col("step").is_between(FIRST + 2, FIRST + STEPS - 2))
    later = steps.filter(pl.col("step").is_between(FIRST + STEPS + 2, FIRST + 2 * STEPS - 2))
    begin = min(p.started_ns for p in whole.run.processes if p.started_ns is not None)
    start, end = first["start"][0], first["start"][-1] + first["duration"][-1]
    found = whole.between((start - begin) / _NS, (end - begin) / _NS).slowdown()
    if found.why is not None:
        raise ValueError(f"{run}: {found.why}")
    ours = found.causes.filter(pl.col("rank") == late)
    if not ours.height:
        raise ValueError(f"{run}: nothing is said of rank {late}")

    def usual(rows: pl.DataFrame) -> float:
        value = rows["duration"].mean()
        assert isinstance(value, float)
        return value

    return Seen(
        what,
        usual(first),
        usual(later),
        usual(first) - float(ours["gain"][0]),
        found.causes["rank"][0] == late,
    )


def shown(rows: Sequence[Seen]) -> str:
    """Return a table of jobs in Markdown, with what it comes to."""
    lines = ["| job | step, ms | repaired | predicted | gain off by | named first |"]
    lines.append("|---|---:|---:|---:|---:|---|")
    for row in rows:
        cells = [f"{ns / 1e6:.1f}" for ns in (row.slow, row.repaired, row.predicted)]
        named = "yes" if row.first else "no"
        lines.append(f"| {row.what} | {' | '.join(cells)} | {row.error:.1%} | {named} |")
    errors = [row.error for row in rows]
    within = sum(error <= EACH for error in errors)
    lines.append("")
    lines.append(
        f"{within} of {len(rows)} within {EACH:.0%}, median {statistics.median(errors):.1%} "
        f"(target {MEDIAN:.0%}), {sum(row.first for row in rows)} named first"
    )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Record the jobs, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=20, help="how many jobs")
    parser.add_argument("--keep", type=Path, help="keep their runs in this folder")
    given = parser.parse_args(arguments)
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        keep = (given.keep or Path(temporary)).absolute()
        for seed in range(given.runs):
            case = drawn(seed)
            record(case, keep)
            run = keep / case.name / "logs" / "run"
            [late] = case.ranks
            what = f"{case.style}, rank {late} of {case.world}"
            rows.append(seen(run, late, what))
            print(shown(rows[-1:]).splitlines()[2], flush=True)
    print(shown(rows))
    return int(any(row.error > EACH for row in rows))


if __name__ == "__main__":
    sys.exit(main())
