"""How soon a verdict of ``haiprof mcp`` on an imported run is there, and how long it is.

Each round opens the run anew, as for the first question on it; the imports of Python are done.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import pytest
from figures import Figure, Measured, Unit, at_most, median_in_range
from real_data import DATA
from reporting import Report

from haiprof.agents.below import Below
from haiprof.agents.catalog import VERDICT, call
from haiprof.cli.importing import import_traces

TRACES: Final = DATA / "traces" / "dlrm_8rank"
ROUNDS: Final = 5
#: s.
LONGEST: Final = 1.0


def test_a_verdict_on_an_imported_run(report: Report, tmp_path: Path) -> None:
    if not TRACES.exists():
        pytest.skip(f"{TRACES} is not there: set HAIPROF_TEST_DATA")
    import_traces(str(TRACES), tmp_path / "run")
    times, cpus = [], []
    for _ in range(ROUNDS + 1):
        begin, cpu = time.perf_counter(), time.process_time()
        text = call(Below(tmp_path), "verdict", {"run": "run"})
        times.append(time.perf_counter() - begin)
        cpus.append(time.process_time() - cpu)
    assert '"kind":"straggler"' in text
    what = "a verdict of haiprof mcp, imported traces of 8 ranks"
    report(
        Figure(what, Unit.SECONDS, median_in_range(times[1:]), target=at_most(LONGEST)),
        Figure(f"{what}, CPU time", Unit.SECONDS, median_in_range(cpus[1:])),
        # Four bytes a token, as characters of ASCII are.
        Figure(
            f"{what}: its size", Unit.BYTES, Measured(len(text.encode())), None, at_most(VERDICT)
        ),
    )
