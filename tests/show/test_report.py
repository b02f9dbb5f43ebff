"""The report: one file, offline, names as data, and drawn by a real browser."""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import runs
from browser import BROWSER, Browser
from page_documents import document_in, parts, texts_in

from haiprof import schema
from haiprof.analyzer import Analyzer
from haiprof.errors import HaiprofError

HOSTILE = '<img src=x onerror="document.title=1"></script><script>boom()</script>'


def page_of(run: Path, tmp_path: Path) -> str:
    return Analyzer(run).report(tmp_path / "report.html").read_text("utf-8")


def test_the_report_holds_every_part(tmp_path: Path) -> None:
    run = runs.make_run(tmp_path / "r", ranks=2, gpus=1)
    missing = {"name": "nvml", "state": "denied", "reason": "no device", "mend": "add the device"}
    runs.write_node(run, sources=[missing])
    runs.write_closed(run / "n0#1", schema.EVENTS, [runs.event(1, "lost", "40 records gone")])
    text = texts_in(page_of(run, tmp_path))
    for part in (
        "118 steps on each of 2 ranks",
        "Process tree",
        "Rank 0",
        "Rank 1",
        "gpu.util · gpu0",
        "40 records gone",
        "What was not collected, and why",
        "add the device",
        "What the sampling cost",
        "haiprof.cost.ratio): 0.12 % of one core",
    ):
        assert part in text


def test_nothing_is_loaded_from_elsewhere(tmp_path: Path) -> None:
    page = page_of(runs.make_run(tmp_path / "r"), tmp_path)
    assert not re.search(r"""<[^>]+(src|href)\s*=\s*["']?(https?:)?//""", page)
    assert "@import" not in page
    assert "plotly" not in page


def test_names_from_a_run_are_data(tmp_path: Path) -> None:
    run = runs.make_run(tmp_path / "r")
    runs.write_run(run, run=HOSTILE, command=["python", HOSTILE])
    runs.write_closed(run / "n0#0", schema.SPANS, runs.loop(5, [(HOSTILE, 3.0)]))
    runs.write_closed(run / "n0#0", schema.EVENTS, [runs.event(1, HOSTILE, HOSTILE)])
    runs.write_closed(run / "n0#0", schema.SAMPLES, [runs.sample(1, "x.y.count", 1, HOSTILE)])
    page = page_of(run, tmp_path)
    assert "boom()" in page
    assert "<script>boom()" not in page
    assert HOSTILE.split("</")[0] not in page
    assert HOSTILE in texts_in(page)


def test_a_run_without_steps_or_samples_still_gives_a_report(tmp_path: Path) -> None:
    run = runs.write_run(tmp_path / "r")
    runs.write_process(run)
    text = texts_in(page_of(run, tmp_path))
    assert "No step was recorded" in text
    assert "Not measured in this run" in text


def test_the_cost_of_all_sources_is_added_though_they_are_read_at_different_times(
    tmp_path: Path,
) -> None:
    run = runs.make_run(tmp_path / "r")
    (run / "n0#0" / "samples-0.arrow").unlink()
    often = [runs.sample(s, "haiprof.cost.ratio", 0.002, "cpu") for s in range(1, 9)]
    seldom = [runs.sample(4, "haiprof.cost.ratio", 0.005, "disk")]
    runs.write_closed(run / "n0", schema.SAMPLES, often + seldom)
    text = texts_in(page_of(run, tmp_path))
    assert "0.7 % of one core; the most expensive source was 'disk'" in text


def test_of_many_ranks_the_slowest_get_sections(tmp_path: Path) -> None:
    run = runs.make_run(tmp_path / "r", ranks=20, steps=5, slow_rank=19)
    chosen = document_in(page_of(run, tmp_path))["chosen_ranks"]
    assert len(chosen) == 16
    assert 19 in chosen


def test_what_is_missing_is_listed(tmp_path: Path) -> None:
    run = runs.make_run(tmp_path / "r", ranks=2)
    runs.write_process(run, 0, lost={"records": 7, "overwritten": 7}, state="died")
    (run / "n0#1" / "process.json").write_text("{")
    text = texts_in(page_of(run, tmp_path))
    assert "rank 0: 7 records were lost (overwritten 7)" in text
    assert "n0#1/process.json: cut off or not JSON" in text
    assert "ended without closing its profile" in text


def test_a_place_that_cannot_be_written_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    analyzer = Analyzer(runs.make_run(tmp_path / "r"))
    with pytest.raises(HaiprofError, match="cannot be written"):
        analyzer.report(tmp_path / "nowhere" / "report.html")
    (tmp_path / "taken").mkdir()
    with pytest.raises(HaiprofError, match="cannot be written"):
        analyzer.report(tmp_path / "taken")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["r", "taken"]


def test_problems_that_are_not_listed_are_counted(tmp_path: Path) -> None:
    run = runs.make_run(tmp_path / "r")
    for pid in range(203):
        (run / f"n0#1.{pid}").mkdir()
    text = texts_in(page_of(run, tmp_path))
    assert text.count("process.json: missing") == 200
    assert "and 3 more" in text


def test_what_tells_most_is_kept_of_too_many_events_and_latencies_are_none(tmp_path: Path) -> None:
    run = runs.make_run(tmp_path / "r")
    node = run / "n0"
    read = {"instance": "gpu0", "power_us": 12.5}
    rows = [runs.event(0.1, "source", "reading gpu0 took NVML 90 us", None, read)]
    rows += [runs.event(1 + n, "source", f"source {n} is gone") for n in range(300)]
    rows += [runs.event(500 + n, "hook", f"hook {n} failed") for n in range(3)]
    rows += [runs.event(600, "ecc", "2 errors"), runs.event(601, "gpu_lost", "gpu1 is lost")]
    runs.write_closed(node, schema.EVENTS, [*rows, runs.event(700, "xid", "Xid 79 on gpu1")])
    page = page_of(run, tmp_path)
    assert "took NVML" not in page
    wrong = document_in(page)["tabs"][0]["sections"]
    events = next(each for each in wrong if each["id"] == "events")
    text = "\n".join(each for _, each in parts(events) if isinstance(each, str))
    places = [
        text.find(words)
        for words in ("source 0 is", "source 193 is", "hook 2 failed", "2 errors", "is lost", "Xid")
    ]
    assert -1 not in places
    assert places == sorted(places)
    assert "source 194 is" not in text
    assert "200 of 306" in text


def test_a_run_with_nothing_but_latencies_has_no_events(tmp_path: Path) -> None:
    run = runs.make_run(tmp_path / "r")
    read = {"instance": "gpu0", "gpm_sample_us": 3.0, "gpm_metrics_us": 9.5}
    latency = runs.event(1, "source", "reading the activity counters took NVML 12 us", None, read)
    runs.write_closed(run / "n0", schema.EVENTS, [latency])
    assert "No loss, death, full disk or failed hook" in page_of(run, tmp_path)


def test_a_run_whose_command_is_not_utf8_gives_a_report(tmp_path: Path) -> None:
    run = runs.make_run(tmp_path / "r")
    runs.write_run(run, command=["train.py", "--name", "\udcff"])
    assert "train.py --name ?" in page_of(run, tmp_path)


def test_a_report_is_its_owners_only(tmp_path: Path) -> None:
    report = Analyzer(runs.make_run(tmp_path / "r")).report(tmp_path / "report.html")
    assert report.stat().st_mode & 0o777 == 0o600


def test_a_report_goes_through_a_link_and_into_a_pipe(tmp_path: Path) -> None:
    analyzer = Analyzer(runs.make_run(tmp_path / "r"))
    (tmp_path / "real.html").write_text("old")
    (tmp_path / "link.html").symlink_to("real.html")
    analyzer.report(tmp_path / "link.html")
    assert (tmp_path / "link.html").is_symlink()
    assert "118 steps" in (tmp_path / "real.html").read_text("utf-8")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(pipe.read_text, "utf-8")
        analyzer.report(pipe)
        assert "118 steps" in read.result(60)
    assert pipe.is_fifo()


def test_a_link_in_the_folder_of_a_run_is_not_followed(tmp_path: Path) -> None:
    """A run may be somebody else's."""
    run = runs.make_run(tmp_path / "r")
    (tmp_path / "victim").write_text("untouched")
    (run / "report.html").symlink_to(tmp_path / "victim")
    Analyzer(run).report(run / "report.html")
    assert (tmp_path / "victim").read_text() == "untouched"
    assert "118 steps" in (run / "report.html").read_text("utf-8")


@pytest.mark.skipif(BROWSER is None, reason="no chromium on PATH: install it to test the page")
@pytest.mark.parametrize("ranks", [2, 70])
def test_a_browser_without_a_network_draws_the_page(tmp_path: Path, ranks: int) -> None:
    run = runs.make_run(tmp_path / "r", ranks=ranks, steps=30, gpus=1)
    runs.write_closed(run / "n0#0", schema.EVENTS, [runs.event(0.1, HOSTILE, HOSTILE)])
    report = Analyzer(run).report(tmp_path / "report.html")
    with Browser(tmp_path / "profile") as browser:
        browser.open(report.as_uri())
        drawn = browser.evaluate("document.querySelectorAll('main section').length")
        title = browser.evaluate("document.title")
        complaints = browser.complaints
        asked = browser.requests
    assert complaints == []
    assert asked == [report.as_uri()]
    assert title == "haiprof: r"
    assert drawn > 0
