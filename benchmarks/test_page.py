"""The report's page, of few ranks, of a thousand and of a long trace: how large it is, how soon one
sees it, and how long the frames take in which it is moved.

Its peer is a page of plotly's with the same values of each step and rank, opened in the same
browser and moved in the same way.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import concatenate
import numpy as np
import plotly.graph_objects as go
import pyarrow as pa
import pytest
import runs
from browser import BROWSER, Browser
from figures import Figure, Measured, Reference, Unit, at_most, median_in_range
from page.chromium import Chromium
from real_data import DATA
from recording import wait_for
from reporting import Report

from haiprof import schema
from haiprof.analyzer import Analyzer

ONE_RANK = DATA / "traces" / "hta_df_index_resolver" / "worker0.pt.trace.json.gz"

PHASES = ("dataloader", "forward", "backward", "optimizer")
#: Shares of a step that these take on average; the rest is in none.
SHARES = (0.1, 0.3, 0.45, 0.1)
STEP_NS = 250_000_000


def write_many(folder: Path, ranks: int, steps: int) -> Path:
    """Write a run whose steps and phases vary at random, as those of real jobs do."""
    run = runs.write_run(folder)
    drawn = np.random.default_rng(1)
    for rank in range(ranks):
        process = runs.write_process(run, rank, world_size=ranks)
        runs.write_closed(process, schema.SAMPLES, runs.host_samples(60))
        _write_spans(process, drawn, steps)
    runs.write_closed(runs.write_node(run), schema.SAMPLES, runs.node_samples(60))
    return run


def _write_spans(process: Path, drawn: np.random.Generator, steps: int) -> None:
    duration = (STEP_NS * drawn.lognormal(0.0, 0.1, steps)).astype(np.int64)
    start = runs.T0 + np.concatenate(([0], np.cumsum(duration)[:-1]))
    parts = duration * np.array(SHARES)[:, None] * drawn.uniform(0.7, 1.0, (len(SHARES), steps))
    begins = start + np.concatenate((np.zeros((1, steps)), np.cumsum(parts, axis=0)[:-1]))
    names = np.repeat(np.array(["step", *PHASES]), steps)
    columns: dict[str, Any] = {
        "start": np.concatenate([start, *begins.astype(np.int64)]),
        "duration": np.concatenate([duration, *parts.astype(np.int64)]),
        "category": np.where(names == "step", "step", "phase"),
        "name": names,
        "thread": np.ones(len(names), np.uint32),
        "step": np.tile(np.arange(steps, dtype=np.uint32), len(SHARES) + 1),
    }
    arrow = schema.arrow_schema(schema.SPANS)
    arrays = []
    for field in arrow:
        values = columns.get(field.name)
        if values is None:
            arrays.append(pa.nulls(len(names), field.type))
        elif pa.types.is_dictionary(field.type):
            arrays.append(pa.array(values, pa.utf8()).dictionary_encode().cast(field.type))
        else:
            arrays.append(pa.array(values, field.type))
    batch = pa.record_batch(arrays, schema=arrow)
    file = process / f"{schema.SPANS.name}-0{schema.CLOSED_SUFFIX}"
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, arrow, options=options) as out:
        out.write_batch(batch)


@pytest.mark.parametrize(
    ("ranks", "steps", "most"),
    [
        pytest.param(2, 1_000, 400 << 10),
        pytest.param(64, 1_000, 3 << 20),
        pytest.param(1_000, 10_000, 5_000_000, marks=pytest.mark.large),
    ],
)
def test_a_page_stays_small(
    benchmark: Any, report: Report, tmp_path: Path, ranks: int, steps: int, most: int
) -> None:
    run = write_many(tmp_path / "r", ranks, steps)
    page = tmp_path / "report.html"
    benchmark.pedantic(lambda: Analyzer(run).report(page), rounds=1, iterations=1)
    size = Measured(page.stat().st_size)
    what = f"the report of {ranks:,} ranks with {steps:,} steps each"
    report(Figure(what, Unit.BYTES, size, target=at_most(most)))


#: What is zoomed, in which tab, and what it is called.
FIGURES = (
    ("run", "[data-kind=series] .u-over", "series"),
    ("ranks", "[data-kind=heat] .scrolled", "heat map"),
    ("step", "[data-kind=lanes] canvas", "lanes"),
)
#: Zooms in and out with the wheel, once in each frame, and waits for what is drawn afterwards;
#: returns how long the frames took, s.
_FRAMES = """(async () => {
  const place = document.querySelector(%s);
  place.scrollIntoView({ block: "center" });
  const { left, top, width, height } = place.getBoundingClientRect();
  const frame = () => new Promise(requestAnimationFrame);
  await frame();
  let before = await frame();
  const lasted = [];
  for (let turn = 0; turn < 75; turn++) {
    if (turn < 60)
      place.dispatchEvent(new WheelEvent("wheel", {
        clientX: left + 0.6 * width, clientY: top + 0.5 * height, bubbles: true, cancelable: true,
        deltaY: turn < 30 ? -60 : 60, ctrlKey: true }));
    const now = await frame();
    lasted.push((now - before) / 1e3);
    before = now;
  }
  return lasted;
})()"""
_PAINTED = "performance.getEntriesByName('first-contentful-paint').map((each) => each.startTime)"
#: The lanes of a step are there once its data is unpacked.
_THERE = "document.querySelector(%s)?.getBoundingClientRect().width > 100"


def first_paints(page: Path, browser: Browser, rounds: int = 3) -> Measured:
    """How soon after it was asked for one sees anything of a page."""
    times = []
    for _ in range(rounds):
        browser.open("about:blank")
        browser.open(page.as_uri())
        while not (found := browser.evaluate(_PAINTED)):
            browser.evaluate("new Promise(requestAnimationFrame)")
        times.append(found[0] / 1e3)
    return median_in_range(times)


def frames(browser: Browser, place: str) -> tuple[Measured, Measured]:
    """How long a frame takes while a figure is zoomed: the median, and the longest."""
    wait_for(lambda: browser.evaluate(_THERE % json.dumps(place)), 60, place)
    lasted = browser.evaluate(_FRAMES % json.dumps(place))
    return median_in_range(lasted), Measured(max(lasted))


def write_plotly(run: Path, page: Path) -> Path:
    """Write the heat map of a run's steps and ranks as plotly does."""
    spans = Analyzer(run).spans(category="step").sort("rank", "start")
    times = [each["duration"].to_numpy() / 1e6 for each in spans.partition_by("rank")]
    figure = go.Figure(go.Heatmap(z=np.array(times), colorscale="Viridis"))
    figure.write_html(page, include_plotlyjs=True, config={"scrollZoom": True})
    return page


@pytest.mark.skipif(BROWSER is None, reason="no chromium on PATH")
@pytest.mark.parametrize(
    ("ranks", "steps"), [(64, 1_000), pytest.param(1_000, 10_000, marks=pytest.mark.large)]
)
def test_a_page_is_there_soon_and_moves(
    benchmark: Any, report: Report, tmp_path: Path, ranks: int, steps: int
) -> None:
    run = write_many(tmp_path / "r", ranks, steps)
    page = Analyzer(run).report(tmp_path / "report.html")
    with Chromium(tmp_path / "profile") as browser:
        painted = benchmark.pedantic(first_paints, args=(page, browser), rounds=1, iterations=1)
        moved = {}
        for tab, place, name in FIGURES:
            browser.show(page, f"#tab={tab}")
            moved[name] = frames(browser, place)
        peers: dict[str, Reference] = {}
        if steps * ranks < 1_000_000:  # plotly's page of more takes gigabytes
            plotly = write_plotly(run, tmp_path / "plotly.html")
            peers["paint"] = Reference("plotly's", first_paints(plotly, browser))
            usual, longest = frames(browser, ".nsewdrag")
            peers["usual"] = Reference("plotly's heat map", usual)
            peers["longest"] = Reference("plotly's heat map", longest)
    of = f"{ranks:,} ranks"
    report(
        Figure(f"{of}: first paint", Unit.SECONDS, painted, peers.get("paint"), at_most(0.5)),
        *(
            Figure(f"{of}, {name}: {what}", Unit.SECONDS, took, peers.get(which), at_most(0.05))
            for name, both in moved.items()
            for which, what, took in zip(
                ("usual", "longest"),
                ("a frame while it is zoomed", "the longest of them"),
                both,
                strict=True,
            )
        ),
    )


@pytest.mark.skipif(BROWSER is None, reason="no chromium on PATH")
@pytest.mark.parametrize(
    "copies", [pytest.param(1, id="200k"), pytest.param(20, id="4M", marks=pytest.mark.large)]
)
def test_the_page_of_a_trace_opens(
    benchmark: Any, report: Report, tmp_path: Path, copies: int
) -> None:
    if not ONE_RANK.exists():
        pytest.skip(f"{ONE_RANK} is not there: set HAIPROF_TEST_DATA")
    trace = tmp_path / "worker0.pt.trace.json.gz"
    events = concatenate.write(ONE_RANK, copies, trace)
    page = Analyzer(trace).report(tmp_path / "report.html")
    with Chromium(tmp_path / "profile") as browser:
        painted = benchmark.pedantic(first_paints, args=(page, browser), rounds=1, iterations=1)
        browser.show(page, "#tab=step")
        usual, longest = frames(browser, "[data-kind=lanes] canvas")
    of = f"a trace of {events / 1e6:.1f} million events"
    size = Measured(page.stat().st_size)
    report(
        Figure(f"{of}: its page", Unit.BYTES, size, target=at_most(5_000_000)),
        Figure(f"{of}: first paint", Unit.SECONDS, painted, target=at_most(1)),
        Figure(
            f"{of}, lanes: a frame while they are zoomed", Unit.SECONDS, usual, target=at_most(0.05)
        ),
        Figure(f"{of}, lanes: the longest of them", Unit.SECONDS, longest, target=at_most(0.05)),
    )
