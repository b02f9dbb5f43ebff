"""From a wheel to the first report, with no compiler: see benchmarks/test_first_report.py, too."""

from __future__ import annotations

import sys
from pathlib import Path

import first_report
import pytest
from built_wheels import built_wheels

from haiprof import Analyzer


@pytest.mark.pythons
def test_a_wheel_and_a_torch_are_enough(tmp_path: Path) -> None:
    [(_, wheel)] = built_wheels([sys.executable])
    report, took = first_report.first_report(wheel, tmp_path)
    assert report.stat().st_size > 100_000
    phases = Analyzer(report.parent).phases(rank=0)["name"].cast(str)
    assert {"dataloader", "forward", "backward", "optimizer"} <= set(phases)
    assert min(took) > 0
