"""How soon somebody who has torch has a first report: from a wheel, with no compiler."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from built_wheels import built_wheels
from figures import Figure, Measured, Unit, at_most
from first_report import first_report
from reporting import Report

#: s, the job of a few seconds and the download of what haiprof depends on included.
LONGEST: Final = 60.0


def test_from_nothing(report: Report, tmp_path: Path) -> None:
    [(_, wheel)] = built_wheels([sys.executable])
    page, took = first_report(wheel, tmp_path)
    assert page.stat().st_size > 100_000
    parts = zip(("a virtual environment", "pip install", "haiprof run --report"), took, strict=True)
    report(
        Figure("from nothing to the first report", Unit.SECONDS, Measured(sum(took)),
               target=at_most(LONGEST)),
        *(Figure(f"of which {what}", Unit.SECONDS, Measured(part)) for what, part in parts),
    )  # fmt: skip
