"""A deep trace in the report: what was found, names only as text, and a bounded size."""

from __future__ import annotations

from pathlib import Path

import pytest
import traces
from browser import BROWSER, Browser

from haiprof.analyzer import Analyzer
from haiprof.show import deep

HOSTILE = "</script><img src=x onerror=boom()>"


def test_the_findings_come_first() -> None:
    run = Analyzer(traces.files("tb_resnet50_num_workers_0")[0].parent)
    shown = deep.show(run)
    assert shown.lines[0].startswith("The device had nothing to do for 33 % of the time")
    assert "resnet50_profiler_api.py(42)" in shown.lines[0]
    titles = [grid.title for grid in shown.grids]
    assert titles[:3] == ["What would win time back", "GPUs", "Where the GPU's time goes"]


@pytest.mark.parametrize("run", ["hta_cpu_only", "tl_mi210_gpu_only", "hta_mtia_inference"])
def test_without_a_device_or_steps_there_is_a_report(tmp_path: Path, run: str) -> None:
    folder = traces.files(run)[0].parent
    page = Analyzer(folder).report(tmp_path / "r.html").read_text("utf-8")
    assert "<h2>Deep trace</h2>" in page


@pytest.mark.skipif(BROWSER is None, reason="no chromium here")
def test_names_from_a_trace_are_text(tmp_path: Path) -> None:
    document = traces.small()
    for event in document["traceEvents"]:
        if event.get("cat") in ("cpu_op", "kernel"):
            event["name"] = HOSTILE
    traces.write(tmp_path / "t" / "w.pt.trace.json", document)
    report = Analyzer(tmp_path / "t").report(tmp_path / "r.html")
    assert HOSTILE not in report.read_text("utf-8")
    with Browser(tmp_path / "profile") as page:
        page.open(f"file://{report}")
        assert page.evaluate("document.querySelectorAll('img').length") == 0
        assert page.evaluate("document.body.innerText").count("onerror") >= 2
        assert page.complaints == []
