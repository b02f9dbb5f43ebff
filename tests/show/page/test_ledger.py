"""What the time of all ranks went to, as a table of the page."""

from __future__ import annotations

from pathlib import Path

import runs
import traces
from page_documents import document_in, texts_in

from haiprof import schema
from haiprof.analyzer import Analyzer
from haiprof.show.page.ledger import ledger


def slow_run(folder: Path) -> Path:
    run = runs.write_run(folder)
    process = runs.write_process(run)
    runs.write_closed(
        process, schema.SPANS, runs.loop(400, [("dataloader", 9.0), ("forward", 2.0)])
    )
    evil = {**runs.FRAMES[0], "function": "<script>load</script>"}
    runs.write_closed(process, schema.FRAMES, [evil])
    waits = [runs.stack(12.0 * n + 1, evil["id"]) for n in range(0, 400, 8)]
    runs.write_closed(process, schema.STACKS, waits)
    return run


def test_the_ledger_is_a_table(tmp_path: Path) -> None:
    analyzer = Analyzer(slow_run(tmp_path / "r"))
    rows = {cause: time for cause, time, _ in ledger(analyzer).rows}
    assert rows["input"] == "3.6 s"
    assert rows["forward"] == "800 ms"


def test_parts_of_the_time_between_the_phases_are_rows_of_the_ledger(tmp_path: Path) -> None:
    run = runs.write_run(tmp_path / "r")
    process = runs.write_process(run)
    spans = runs.loop(400, [("forward", 4.0), ("optimizer", 4.0)], rest=2.5)
    begins = [each["start"] + each["duration"] - 2_000_000 for each in spans
              if each["category"] == "step"]  # fmt: skip
    metrics = [
        {**spans[0], "start": at, "duration": 1_000_000, "category": "user", "name": "metrics"}
        for at in begins
    ]
    runs.write_closed(process, schema.SPANS, [*spans, *metrics])
    analyzer = Analyzer(run)
    rows = {cause: time for cause, time, _ in ledger(analyzer).rows}
    assert rows["other: metrics"] == "400 ms"
    one = analyzer.ledger(step=3).filter(part="metrics")
    assert one.select("cause", "duration").rows() == [("other", 1_000_000)]


def test_the_page_begins_with_findings_and_the_ledger(tmp_path: Path) -> None:
    page = Analyzer(slow_run(tmp_path / "r")).report(tmp_path / "r.html").read_text("utf-8")
    first, second, *_ = document_in(page)["tabs"][0]["sections"]
    assert (first["id"], second["id"]) == ("findings", "ledger")
    found = first["items"][0]
    assert (found["title"], found["ranks"]) == ("the DataLoader is too slow", [0])
    assert (found["share"], found["lost"]) == (0.75, 3.6)
    assert "<script>load" not in page
    assert "<script>load" in texts_in(page)


def test_traces_have_it_too(tmp_path: Path) -> None:
    traces.write(tmp_path / "rank0.pt.trace.json", traces.small(0))
    assert ledger(Analyzer(tmp_path)).rows


def test_nothing_is_no_table(tmp_path: Path) -> None:
    runs.write_process(runs.write_run(tmp_path / "r"), None, pid=7)
    page = Analyzer(tmp_path / "r").report(tmp_path / "r.html").read_text("utf-8")
    assert "ledger" not in [each["id"] for each in document_in(page)["tabs"][0]["sections"]]
