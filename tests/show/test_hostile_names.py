"""Names in a trace are HTML, end a script, or drive a terminal: they are shown, and do nothing."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import traces

from haiprof.analyzer import Analyzer

HOSTILE = "</script><img src=x onerror=alert(1)>\x1b[31m\u202e"


def test_names_of_a_trace_do_nothing_where_they_are_shown(tmp_path: Path) -> None:
    document = traces.small(0)
    events = document["traceEvents"]
    for event in events:
        if event["name"] in ("aten::mm", "gemm"):
            event["name"] += HOSTILE
    host = {"ph": "X", "pid": 41, "tid": 42, "dur": 5}
    module = {"Python id": 1, "Python module id": 0}
    events += [
        {**host, "cat": "user_annotation", "name": HOSTILE, "ts": 1011},
        {**host, "cat": "python_function", "name": f"nn.Module: {HOSTILE}_0", "ts": 1012,
         "args": module},
    ]  # fmt: skip
    document["deviceProperties"] = [{"id": 0, "name": HOSTILE}]
    document["host_name"] = HOSTILE
    document["distributedInfo"]["backend"] = HOSTILE
    run = tmp_path / HOSTILE.replace("/", "_")
    traces.write(run / f"{HOSTILE.replace('/', '_')}.pt.trace.json", document)
    traces.write(run / "other.pt.trace.json", traces.small(1))
    analyzer = Analyzer(run)
    page = analyzer.report(tmp_path / "report.html").read_text("utf-8")
    assert "onerror=alert(1)" in page
    assert "<img src=x" not in page
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        print(analyzer.show_overview())
        print(analyzer.show_one_rank(0))
    assert "\x1b[31m" not in out.getvalue()
    assert "\u202e" not in out.getvalue()
    assert all(line.isprintable() for line in analyzer.headline())
