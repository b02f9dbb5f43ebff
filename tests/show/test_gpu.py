"""GPUs in the overview, one rank and the report: shown where recorded, one line where not."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import runs
from browser import BROWSER, Browser
from page_documents import document_in, texts_in

from haiprof import schema
from haiprof.analyzer import Analyzer
from haiprof.findings import gpus as gpu_findings
from haiprof.show.grid import Grid
from haiprof.show.shown import Shown

HOSTILE = "</script><img src=x onerror=boom()>"


def titles(shown: Shown) -> list[str]:
    return [a.text for a in shown.figure.layout.annotations]


def grid(shown: Shown, title: str) -> Grid:
    return next(g for g in shown.grids if g.title == title)


def column(table: Grid, head: str) -> list[str]:
    return [row[table.heads.index(head)] for row in table.rows]


def replace(folder: Path, table: schema.Table, rows: list[runs.Row]) -> None:
    (folder / f"{table.name}-0.arrow").unlink(missing_ok=True)
    runs.write_closed(folder, table, rows)


def test_the_overview_has_device_times_beside_those_of_the_host(tmp_path: Path) -> None:
    shown = Analyzer(runs.make_gpu_run(tmp_path / "r", ranks=2)).show_overview()
    assert list(shown.lines) == [
        "Kernels recorded in 10 steps of each of 2 processes; "
        "measured overhead 0.4 % (95 %: 0.1 … 0.7 %), the most of 2 processes: rank 0"
    ]
    device = grid(shown, "Steps on the GPU")
    assert column(device, "backward") == ["42 %"] * 2
    assert column(device, "busy") == ["75 %"] * 2
    assert column(device, "recorded steps") == ["10"] * 2
    assert column(grid(shown, "Steps"), "backward") == ["38 %"] * 2
    assert column(grid(shown, "GPUs"), "gpu") == ["gpu0", "gpu1"]
    assert "Where the time of the GPU's main stream goes" in titles(shown)
    assert "between phases" in {t.name for t in shown.figure.data}


def test_a_run_without_gpus_says_nothing_of_them(tmp_path: Path) -> None:
    analyzer = Analyzer(runs.make_run(tmp_path / "r", ranks=2))
    overview, rank = analyzer.show_overview(), analyzer.show_one_rank(0)
    for shown in (overview, rank):
        assert not re.search("gpu|device|kernel|host", str(shown) + "".join(titles(shown)), re.I)
        assert not shown.details
    assert list(overview.lines) == []
    assert len(rank.lines) == 1
    page = texts_in(analyzer.report(tmp_path / "x").read_text())
    assert not re.search("kernels|overhead", page)


def test_without_kernels_one_line_says_what_would_show_them(tmp_path: Path) -> None:
    analyzer = Analyzer(runs.make_gpu_run(tmp_path / "r", windows=False))
    for shown in (analyzer.show_overview(), analyzer.show_one_rank(0)):
        assert list(shown.lines).count(gpu_findings.NO_KERNELS) == 1
        assert "busy" not in grid(shown, "Steps on the GPU").heads
        assert not shown.details
    assert "Kernels and copies" not in {g.title for g in shown.grids}
    assert not [t for t in titles(shown) if "busy" in t]


def test_a_run_that_recorded_no_kernels_though_asked_to_points_to_what_was_in_the_way(
    tmp_path: Path,
) -> None:
    run = runs.make_gpu_run(tmp_path / "r", windows=False)
    for kernels, line in (
        ("windows", gpu_findings.REFUSED.format(kernels="windows")),
        ("all", gpu_findings.REFUSED.format(kernels="all")),
        ("off", gpu_findings.NO_KERNELS),
        (None, gpu_findings.NO_KERNELS),
        (7, gpu_findings.NO_KERNELS),
    ):
        runs.write_run(run, options={"kernels": kernels})
        for shown in (Analyzer(run).show_overview(), Analyzer(run).show_one_rank(0)):
            assert line in shown.lines
    runs.write_run(run, options=["kernels"])
    assert gpu_findings.NO_KERNELS in Analyzer(run).show_overview().lines
    runs.write_run(run, options={"kernels": "windows"})
    events = [runs.recording_begins(120), runs.recording_ends(125, why="handover")]
    replace(run / "n0#0", schema.EVENTS, events)
    line = gpu_findings.REFUSED_WHOLE_STEP.format(kernels="windows")
    assert line in Analyzer(run).show_overview().lines
    assert "--kernels windows records" not in line


def test_kernels_in_no_whole_step_tell_no_share(tmp_path: Path) -> None:
    run = runs.make_gpu_run(tmp_path / "r")
    events = [runs.recording_begins(120), runs.recording_ends(125, why="handover")]
    replace(run / "n0#0", schema.EVENTS, events)
    shown = Analyzer(run).show_one_rank(0)
    assert gpu_findings.NO_WHOLE_STEP in shown.lines
    assert not shown.details
    assert column(grid(shown, "Kernels and copies"), "calls") == ["10", "40", "10", "10"]


def graph_run(folder: Path) -> Path:
    """A run of which the replay of a graph ended the recording of kernels."""
    run = runs.make_gpu_run(folder)
    events = [
        runs.recording_begins(0, why="start"),
        runs.event(0.125, "graphs", "the job replays CUDA graphs", None, {"mode": "windows"}),
        runs.recording_ends(125, why="graphs"),
    ]
    replace(run / "n0#0", schema.EVENTS, events)
    spans = [*runs.device_loop(20)]
    spans += [
        runs.device_span(12 * step + 1, 6, "graph 0", step, category="graph") for step in range(20)
    ]
    replace(run / "n0#0", schema.DEVICE_SPANS, spans)
    return run


def test_replays_of_graphs_are_shown_and_why_kernels_are_not(tmp_path: Path) -> None:
    run = graph_run(tmp_path / "r")
    shown = Analyzer(run).show_one_rank(0)
    assert gpu_findings.GRAPHS.format(where="") in shown.lines
    graphs = grid(shown, "CUDA graphs")
    assert column(graphs, "graph") == ["graph 0"]
    assert column(graphs, "replays") == ["20"]
    assert column(graphs, "p50") == ["6 ms"]
    assert column(graphs, "step") == ["50 %"]
    assert "--graphs kernels records them" in graphs.note
    assert "Replays of CUDA graphs (ms)" in titles(shown)
    # Of the few steps before the graphs nothing is said as if it were of all.
    assert not [t for t in titles(shown) if "busy" in t]
    assert not shown.details
    assert "busy" not in grid(shown, "Device phases, a step").heads
    assert "unlike" in grid(shown, "Kernels and copies").note
    page = Analyzer(run).report(tmp_path / "x").read_text()
    assert gpu_findings.GRAPHS.format(where="") in page
    assert "Replays of CUDA graphs" in page
    assert not [line for line in Analyzer(run).headline() if "idle" in line or "busy" in line]
    assert Analyzer(run).graph_replays()["replays"].to_list() == [20]


def test_a_run_without_graphs_has_no_word_of_them(tmp_path: Path) -> None:
    analyzer = Analyzer(runs.make_gpu_run(tmp_path / "r"))
    shown = analyzer.show_one_rank(0)
    assert "CUDA graphs" not in {g.title for g in shown.grids}
    assert not re.search("graphs", " ".join(shown.lines))
    assert analyzer.graph_replays().is_empty()


def test_kernels_without_device_phases_say_that_phases_are_missing(tmp_path: Path) -> None:
    run = runs.make_gpu_run(tmp_path / "r")
    (run / "n0#0" / "device_spans-0.arrow").unlink()
    shown = Analyzer(run).show_one_rank(0)
    assert gpu_findings.NO_PHASES in shown.lines
    assert column(grid(shown, "Steps on the GPU"), "busy") == ["75 %"]
    assert {t.name for t in shown.details[0].data} == {"kernel", "communication"}


def test_one_rank_shows_phases_busy_steps_lanes_and_kernels(tmp_path: Path) -> None:
    shown = Analyzer(runs.make_gpu_run(tmp_path / "r", ranks=2)).show_one_rank(1)
    assert "Kernels recorded in 10 steps; measured overhead 0.4 %" in shown.lines[1]
    assert titles(shown)[:3] == [
        "Phases of each step (host)",
        "Device phases of each step (main stream, idle time included)",
        "How busy the GPU was in the steps with kernels recorded",
    ]
    busy = next(t for t in shown.figure.data if t.name == "busy")
    assert len(busy.y) == 10
    assert busy.y[-1] == pytest.approx(0.75)
    phases = grid(shown, "Device phases, a step")
    assert column(phases, "phase") == ["forward", "backward", "optimizer", "between phases"]
    assert column(phases, "idle") == ["25 %", "0 %", "0 %", "100 %"]
    kernels = grid(shown, "Kernels and copies")
    assert column(kernels, "name")[0] == "at::native::backward_kernel<float>"
    assert column(kernels, "phases")[0] == "backward"
    (lanes,) = shown.details
    assert [t.name for t in lanes.data] == [
        "forward",
        "backward",
        "optimizer",
        "kernel",
        "communication",
    ]
    assert list(lanes.layout.yaxis.categoryarray) == ["stream 20", "stream 7", "phases"]


def test_a_rank_shows_its_own_gpus_only(tmp_path: Path) -> None:
    names = {
        t.name for t in Analyzer(runs.make_gpu_run(tmp_path / "r", 3)).show_one_rank(1).figure.data
    }
    assert {n for n in names if n.startswith("gpu.util")} == {"gpu.util · gpu1"}


def test_a_part_of_a_gpu_is_shown_with_what_only_the_whole_has(tmp_path: Path) -> None:
    run = runs.make_gpu_run(tmp_path / "r")
    runs.write_process(run, gpus=[{"device": 0, "uuid": "MIG-1"}])
    node = [{"instance": "gpu0", "uuid": "GPU-0"}, {"instance": "gpu0/mig1", "uuid": "MIG-1"}]
    folder = runs.write_node(run, gpus=node)
    rows = [
        runs.sample(s, metric, 50, instance)
        for s in (1, 2)
        for metric, instance in (
            ("gpu.util.percent", "gpu0"),
            ("gpu.util.percent", "gpu0/mig1"),
            ("gpu.power.watts", "gpu0"),
            ("gpu.power.watts", "gpu1"),
        )
    ]
    replace(folder, schema.SAMPLES, rows)
    shown = Analyzer(run).show_one_rank(0)
    names = {t.name for t in shown.figure.data if t.name.startswith("gpu.")}
    assert names == {"gpu.util · gpu0/mig1", "gpu.power · gpu0"}
    assert column(grid(shown, "GPUs"), "gpu") == ["gpu0/mig1"]


def test_another_node_folder_of_the_same_host_names_other_gpus(tmp_path: Path) -> None:
    run = runs.make_gpu_run(tmp_path / "r", ranks=2)
    node = {"gpus": [{"instance": "gpu0", "uuid": "GPU-other"}]}
    process = run / "n0" / schema.PROCESS_FILE
    runs.write_json(run / "n0.2" / schema.PROCESS_FILE, {**json.loads(process.read_text()), **node})
    foreign = [
        runs.sample(s, metric, 99, instance)
        for s in (1, 2, 3)
        for metric, instance in (
            ("gpu.util.percent", "gpu0"),
            ("gpu.power.watts", "gpu0"),
            ("gpu.util.percent", "gpu1"),
        )
    ]
    runs.write_closed(run / "n0.2", schema.SAMPLES, foreign)
    drawn = {t.name: t for t in Analyzer(run).show_one_rank(0).figure.data}
    assert {n for n in drawn if n.startswith("gpu.")} == {
        "gpu.util · gpu0",
        "gpu.memory_used · gpu0",
    }
    assert max(drawn["gpu.util · gpu0"].y) == 64


def test_two_gpus_of_one_rank_each_have_their_panel_and_lanes(tmp_path: Path) -> None:
    run = runs.make_gpu_run(tmp_path / "r", ranks=2)
    gpus = [{"device": n, "uuid": f"GPU-{n:08x}"} for n in range(2)]
    folder = runs.write_process(run, 0, gpus=gpus)
    both = runs.device_loop(118) + runs.device_loop(118, device=1)
    replace(folder, schema.DEVICE_SPANS, both)
    replace(
        folder, schema.KERNELS, runs.kernel_loop(10, 19) + runs.kernel_loop(10, 19, device=1)[:35]
    )
    shown = Analyzer(run).show_one_rank(0)
    assert sum("Device phases of each step of GPU" in t for t in titles(shown)) == 2
    assert {"busy (GPU 0)", "busy (GPU 1)"} <= {t.name for t in shown.figure.data}
    lanes = set(shown.details[0].layout.yaxis.categoryarray)
    assert {"GPU 0: phases", "GPU 1: phases", "GPU 0: stream 7"} <= lanes
    assert column(grid(shown, "GPUs"), "gpu") == ["gpu0, gpu1"]
    assert column(grid(shown, "Steps on the GPU"), "busy") == ["56 %"]


def test_attempts_of_one_rank_are_added(tmp_path: Path) -> None:
    run = runs.make_gpu_run(tmp_path / "r")
    (run / "n0#0").rename(run / "n0#0.1000")
    second = runs.write_process(run, 0, attempt=1, pid=5)
    for table, rows in (
        (schema.SPANS, runs.loop(30)),
        (schema.DEVICE_SPANS, runs.device_loop(30)),
        (schema.KERNELS, runs.kernel_loop(10, 19)),
        (schema.EVENTS, [runs.recording_begins(120), runs.recording_ends(240)]),
    ):
        later = [
            {**row, **{k: row[k] + 9 * runs.SECOND for k in ("start", "time") if k in row}}
            for row in rows
        ]
        runs.write_closed(second, table, later)
    shown = Analyzer(run).show_one_rank(0)
    assert sum(g.title.startswith("Kernels and copies (rank 0") for g in shown.grids) == 2
    forward = [t for t in shown.figure.data if t.name == "forward"][1]
    # Each attempt ends with one point at 0.
    assert list(forward.y) == [4.0] * 118 + [0.0] + [4.0] * 30 + [0.0]
    assert len(next(t for t in shown.figure.data if t.name == "busy").y) == 20


def test_the_allocator_and_pauses_for_garbage_are_series(tmp_path: Path) -> None:
    run = runs.make_gpu_run(tmp_path / "r")
    folder = run / "n0#0"
    of_torch = [("torch.allocated.bytes", 2.0**30), ("torch.alloc_retries.count", 3.0)]
    rows = [runs.sample(s, m, v, "gpu0") for s in (1, 2, 3) for m, v in of_torch]
    replace(folder, schema.SAMPLES, runs.host_samples(5) + rows)
    pauses = [runs.span(100 * n, 3, "gc", "gc 2") for n in range(4)]
    replace(folder, schema.SPANS, runs.loop(118) + pauses)
    shown = Analyzer(run).show_one_rank(0)
    for title in ("Allocator of torch (bytes)", "Allocator of torch (count)"):
        assert title in titles(shown)
    pause = next(t for t in shown.figure.data if t.name == "gc 2")
    assert (pause.mode, list(pause.y)) == ("markers", [3.0] * 4)
    table = grid(shown, "GPUs")
    assert (column(table, "torch allocated max"), column(table, "torch alloc retries")) == (
        ["1 GiB"],
        ["3"],
    )


def test_a_hundred_thousand_kernels_hardly_make_the_report_larger(tmp_path: Path) -> None:
    run = runs.make_gpu_run(tmp_path / "r")
    few = Analyzer(run).report(tmp_path / "few.html").stat().st_size
    rows = [
        runs.activity(120 + i * 1.2e-3, 5e-4, f"_Z{len(str(i % 5_000)) + 6}kernel{i % 5_000}v")
        for i in range(100_000)
    ]
    replace(run / "n0#0", schema.KERNELS, rows)
    analyzer = Analyzer(run)
    assert analyzer.report(tmp_path / "many.html").stat().st_size < few + 200_000
    shown = analyzer.show_one_rank(0)
    assert sum(len(t.y) for t in shown.details[0].data) < 2_100
    table = grid(shown, "Kernels and copies")
    assert len(table.rows) == 20
    assert "The 20 of 5000 names with most time" in table.note


def test_the_report_tells_the_measured_overhead_and_what_followed_from_it(tmp_path: Path) -> None:
    run = runs.make_gpu_run(tmp_path / "r")
    events = [runs.recording_begins(120), runs.recording_ends(240), runs.measured(1)]
    down = runs.measured(2, 0.04, stepped_down_to="off")
    replace(run / "n0#0", schema.EVENTS, [*events, {**down, "text": "Too dear"}])
    page = Analyzer(run).report(tmp_path / "x.html").read_text()
    text = texts_in(page)
    assert "measured overhead 4 % (95 %: 3.7 … 4.3 %), so kernels are now recorded less" in text
    tab = next(tab for tab in document_in(page)["tabs"] if tab["id"] == "wrong")
    events = next(each for each in tab["sections"] if each["id"] == "events")
    assert [column["values"] for column in events["columns"]][2:] == [["budget"], ["Too dear"]]


def test_a_cost_that_was_only_metered_is_not_reported_as_a_comparison_of_steps(
    tmp_path: Path,
) -> None:
    run = runs.make_gpu_run(tmp_path / "r")
    for event, expected in (
        (
            runs.measured(2, None, windows=0, share=1, spent=0.0021, mode="all"),
            "Recording kernels: CUPTI and haiprof's thread took 0.21 % of the time.",
        ),
        (runs.measured(2, None, windows=1), "overhead not measured yet (1 window so far)"),
    ):
        replace(run / "n0#0", schema.EVENTS, [event])
        text = texts_in(Analyzer(run).report(tmp_path / "x.html").read_text())
        assert expected in text
        assert "by comparing steps" not in text
    replace(run / "n0#0", schema.EVENTS, [runs.measured(2)])
    text = texts_in(Analyzer(run).report(tmp_path / "x.html").read_text())
    assert "by comparing steps with and without it: measured overhead 0.4 %" in text


def test_names_of_kernels_are_data(tmp_path: Path) -> None:
    run = runs.make_gpu_run(tmp_path / "r")
    replace(run / "n0#0", schema.KERNELS, [runs.activity(130, 1, HOSTILE)])
    page = Analyzer(run).report(tmp_path / "x.html").read_text()
    assert HOSTILE not in page
    assert HOSTILE in texts_in(page)


@pytest.mark.skipif(BROWSER is None, reason="no chromium on PATH: install it to test the page")
def test_a_browser_draws_the_lanes(tmp_path: Path) -> None:
    shown = Analyzer(runs.make_gpu_run(tmp_path / "r")).show_one_rank(0)
    report = tmp_path / "page.html"
    # So that the test, too, can look into its frame.
    report.write_text(re.sub(r'sandbox="[^"]*"', "", shown._repr_html_()), "utf-8")
    bars = """(async () => {
      const inside = document.querySelector("iframe").contentDocument;
      const place = [...inside.querySelectorAll(".figure")].at(-1);
      place.scrollIntoView();
      for (let i = 0; i < 600 && !place.querySelector(".main-svg"); i++) {
        await new Promise((resolve) => setTimeout(resolve, 50));
      }
      return place.querySelectorAll(".bars .point").length;
    })()"""
    with Browser(tmp_path / "profile") as browser:
        browser.open(report.as_uri())
        drawn = browser.evaluate(bars)
        complaints = browser.complaints
    assert complaints == []
    assert drawn == len(runs.DEVICE_PHASES) + len(runs.STEP_KERNELS)
