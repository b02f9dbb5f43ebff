"""How soon ``haiprof hang`` says who keeps sixteen ranks waiting."""

from __future__ import annotations

import json
import resource
import time
from pathlib import Path
from typing import Any, Final

from commands import haiprof
from figures import Figure, Unit, at_most, median_in_range
from hanging import Job, hanging
from recording import wait_for
from reporting import Report

RANKS: Final = 16
#: Drawn once.
CULPRIT: Final = 11
ROUNDS: Final = 7
#: s, with the second between its two looks.
LONGEST: Final = 2.0

PROGRAM: Final = f"""
joined()
trained()
def naps():
    hangs()
    time.sleep(3600)
if RANK == {CULPRIT}:
    naps()
hangs()
sum_up()
"""


def asked(job: Job) -> tuple[dict[str, Any] | None, float, float]:
    """Return why it hangs, and how long that took: on the wall, and of a CPU, s."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    begun = time.perf_counter()
    done = haiprof("hang", job.script, "--seconds", "1", "--json")
    wall = time.perf_counter() - begun
    uses = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = uses.ru_utime + uses.ru_stime - used.ru_utime - used.ru_stime
    (only,) = json.loads(done.stdout)["jobs"]
    return only["hang"], wall, cpu


def test_sixteen_ranks(report: Report, shm: Path, tmp_path: Path) -> None:
    with hanging(tmp_path, PROGRAM, RANKS) as job:
        wait_for(lambda: asked(job)[0], what="the hang")
        found = [asked(job) for _ in range(ROUNDS)]
    for hang, *_ in found:
        assert hang is not None
        assert (hang["kind"], hang["ranks"]) == ("rank_never_arrived", [CULPRIT])
        assert hang["waiting"] == [rank for rank in range(RANKS) if rank != CULPRIT]
        assert "at naps (" in hang["problem"]
    walls, cpus = ([one[number] for one in found] for number in (1, 2))
    what = f"haiprof hang, {RANKS} ranks"
    report(
        Figure(what, Unit.SECONDS, median_in_range(walls), target=at_most(LONGEST)),
        Figure(f"{what}, CPU time", Unit.SECONDS, median_in_range(cpus)),
    )
