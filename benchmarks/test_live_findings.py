"""What it costs the recorder to see that steps become slower, and a look at what costs time."""

from __future__ import annotations

import array
import time
from pathlib import Path
from typing import Final

import runs
from figures import Figure, Unit, at_most, median, median_in_range
from recording import wait_for
from reporting import Report

from haiprof import _core
from haiprof.common.advance import Advance
from haiprof.recorder.finding_look import Look
from haiprof.recorder.step_watch import StepWatch

#: Of a core, for each rank; only the steps of one are watched.
BUDGET: Final = 0.001
#: Steps a second of the job, each with so many other spans.
RATE: Final = 100
SPANS: Final = 8
ROUNDS: Final = 20
#: Of a round, s of the job.
SECONDS: Final = 60
#: A look takes this much CPU time, s, at most: it is then made every three minutes for eight ranks.
LOOK: Final = 4.0


def written(second: int) -> dict[str, tuple[int, int, bytes, bytes | None]]:
    """Return the spans that a recorder writes in one second."""
    step, phase = (_core.CATEGORIES.index(name) for name in ("step", "phase"))
    codes = [step if n % (SPANS + 1) == 0 else phase for n in range(RATE * (SPANS + 1))]
    took = 1_000_000_000 // RATE
    starts = [second * 1_000_000_000 + n // (SPANS + 1) * took for n in range(len(codes))]
    # Blocks vary, or there would be nothing to compare.
    durations = [took + n * 7919 % (took // 10) for n in range(len(codes))]
    columns = {
        "category": array.array("I", codes),
        "start": array.array("q", starts),
        "duration": array.array("q", durations),
    }
    return {name: (len(codes), 0, column.tobytes(), None) for name, column in columns.items()}


def test_watching_steps(report: Report) -> None:
    watch, shares = StepWatch(), []
    for number in range(ROUNDS):
        batches = [written(number * SECONDS + second) for second in range(SECONDS)]
        advance, changes = Advance(), 0
        advance.take_steps()
        begun = time.process_time()
        for batch in batches:
            advance.read(batch)
            changes += sum(1 for _ in watch.add(advance.take_steps()))
        shares.append((time.process_time() - begun) / SECONDS)
        assert not changes
    what = f"steps watched, {RATE} a second with {SPANS} spans each, of one core"
    report(Figure(what, Unit.SHARE, median(shares), target=at_most(BUDGET)))


def test_one_look(report: Report, tmp_path: Path) -> None:
    run = runs.make_run(tmp_path / "run", ranks=8, steps=5000)
    costs = []
    for _ in range(5):
        look = Look(run, "n0", [(runs.T0, runs.T0 + 60_000_000_000)])
        wait_for(look.over, what="the look")
        assert isinstance(look.answer(), list)
        costs.append(look.cost)
    what = "a look at a minute of 8 ranks, 5 000 steps each, CPU time"
    report(Figure(what, Unit.SECONDS, median_in_range(costs), target=at_most(LOOK)))
