"""The report's page, of few ranks and of a thousand: how large it is, how soon one sees it, and how
long the frames take in which it is moved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import runs
from browser import BROWSER, Browser
from figures import Figure, Measured, Unit, at_most, median_in_range
from page.chromium import Chromium
from reporting import Report

from haiprof import schema
from haiprof.analyzer import Analyzer

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


#: What is zoomed in each tab.
FIGURES = {
    "run": "[data-kind=series] .u-over",
    "ranks": "[data-kind=heat] .scrolled",
}
#: Zooms in and out with the wheel, once in each frame; returns how long the frames took, s.
_FRAMES = """(async () => {
  const place = document.querySelector(%s);
  place.scrollIntoView({ block: "center" });
  const { left, top, width, height } = place.getBoundingClientRect();
  const frame = () => new Promise(requestAnimationFrame);
  await frame();
  let before = await frame();
  const lasted = [];
  for (let turn = 0; turn < 60; turn++) {
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
        report(Figure(f"{ranks:,} ranks: first paint", Unit.SECONDS, painted, target=at_most(0.5)))
        for tab, figure in FIGURES.items():
            browser.show(page, f"#tab={tab}")
            lasted = browser.evaluate(_FRAMES % json.dumps(figure))
            what = f"{ranks:,} ranks, {tab}: a frame while it is zoomed"
            frames = median_in_range(lasted)
            report(Figure(what, Unit.SECONDS, frames, target=at_most(0.05)))
            report(
                Figure(
                    f"{what}, the longest",
                    Unit.SECONDS,
                    Measured(max(lasted)),
                    target=at_most(0.05),
                )
            )
