"""What the show functions return: text, notebook HTML and a figure, for few ranks and for many."""

from __future__ import annotations

from pathlib import Path

import pytest
import runs

from haiprof import schema
from haiprof.analyzer import Analyzer
from haiprof.show import colours
from haiprof.show.grid import cell
from haiprof.show.one_rank import POINTS


def test_the_overview_has_a_row_for_each_rank_and_node(tmp_path: Path) -> None:
    shown = Analyzer(runs.make_run(tmp_path / "r", ranks=3, slow_rank=1)).show_overview()
    text = str(shown)
    assert repr(shown) == text  # what Python's prompt shows
    assert text.count("18 ms") == 2
    assert "640 MiB" in text
    assert "psi.cpu_some" in text
    assert "gpu" not in text
    steps, tree, nodes, pressure = shown.grids
    assert [len(g.rows) for g in (steps, tree, nodes, pressure)] == [3, 3, 1, 1]
    lines = [t.name for t in shown.figure.data if t.type == "scatter"]
    assert lines == ["rank 0", "rank 1", "rank 2"]


def test_gpu_columns_stand_only_where_gpus_were_sampled(tmp_path: Path) -> None:
    assert "gpu util" in str(Analyzer(runs.make_run(tmp_path / "r", gpus=2)).show_overview())


def test_many_ranks_are_a_heat_map_and_the_extremes(tmp_path: Path) -> None:
    run = runs.make_run(tmp_path / "r", ranks=70, steps=6, slow_rank=33)
    shown = Analyzer(run).show_overview()
    names = [t.name for t in shown.figure.data if t.type == "scatter"]
    assert names[0] == "slowest: rank 33"
    assert len(names) == 3
    heat = next(t for t in shown.figure.data if t.type == "heatmap")
    assert len(heat.y) == 70
    assert len(shown.grids[0].rows) == 24


def test_steps_without_phases_have_no_shares(tmp_path: Path) -> None:
    run = runs.write_run(tmp_path / "r")
    runs.write_closed(runs.write_process(run, 0), schema.SPANS, runs.loop(9, phases=[], rest=5.0))
    analyzer = Analyzer(run)
    overview = analyzer.show_overview()
    assert "other" not in overview.grids[0].heads
    assert overview.grids[0].note == ""
    assert [t.type for t in overview.figure.data] == ["scatter"]
    assert list(overview.figure.data[0].y) == [5.0] * 9
    assert not analyzer.show_one_rank(0).figure.data


def test_attempts_of_one_rank_are_two_rows(tmp_path: Path) -> None:
    run = runs.make_run(tmp_path / "r")
    (run / "n0#0").rename(run / "n0#0.1000")
    later = [{**row, "start": row["start"] + 9 * runs.SECOND} for row in runs.loop(9)]
    runs.write_closed(runs.write_process(run, 0, attempt=1, pid=5), schema.SPANS, later)
    analyzer = Analyzer(run)
    assert analyzer.ranks == [0]
    steps = analyzer.show_overview().grids[0]
    assert [row[steps.heads.index("steps")] for row in steps.rows] == ["118", "9"]
    shown = analyzer.show_one_rank(0)
    assert shown.title == "Rank 0"
    assert len(shown.grids[0].rows) == 2
    forward = next(t for t in shown.figure.data if t.name == "forward")
    # Each attempt ends with one point at 0.
    assert list(forward.y) == [4.0] * 118 + [0.0] + [4.0] * 9 + [0.0]
    assert forward.x[119] == 9.0


def test_processes_of_one_rank_each_have_a_line(tmp_path: Path) -> None:
    run = runs.make_run(tmp_path / "r")
    (run / "n0#0").rename(run / "n0#0.1000")
    runs.write_closed(runs.write_process(run, 0, pid=5), schema.SPANS, runs.loop(9))
    figure = Analyzer(run).show_overview().figure
    names = {t.name for t in figure.data if t.type == "scatter"}
    assert names == {"rank 0, pid 5", "rank 0, pid 1000"}
    assert set(next(t for t in figure.data if t.type == "bar").y) == names


def test_of_thousands_of_user_ranges_the_longest_are_shown_by_name(tmp_path: Path) -> None:
    run = runs.write_run(tmp_path / "r")
    spans = [runs.span(0, 10_000, "step", "step", 0)]
    spans += [runs.span(i * 3, 1 + i / 1000, "user", f"layer.{i}", 0) for i in range(1_000)]
    runs.write_closed(runs.write_process(run), schema.SPANS, spans)
    analyzer = Analyzer(run)
    shown = analyzer.show_one_rank(0)
    names = [t.name for t in shown.figure.data]
    assert len(names) == 22
    assert {"layer.999", "smaller ranges", "other"} <= set(names)
    assert sum(float(t.y[0]) for t in shown.figure.data) == pytest.approx(10_000, rel=1e-4)
    assert {"layer.999", "smaller ranges"} <= set(shown.grids[0].heads)
    assert len(analyzer.show_overview().grids[0].heads) < 40


def test_the_launched_command_is_no_part_of_a_rank(tmp_path: Path) -> None:
    run = runs.make_run(tmp_path / "r")
    command = [{**row, "instance": "command"} for row in runs.host_samples(5)]
    runs.write_closed(run / "n0", schema.SAMPLES, runs.node_samples(5) + command)
    figure = Analyzer(run).show_one_rank(0).figure
    assert not [t.name for t in figure.data if "command" in t.name]
    assert "cpu.util · cpu0" in {t.name for t in figure.data}


def test_events_that_are_not_drawn_are_counted(tmp_path: Path) -> None:
    run = runs.make_run(tmp_path / "r")
    marks = [runs.event(i / 100, "mark", "x") for i in range(2_005)]
    runs.write_closed(run / "n0#0", schema.EVENTS, marks)
    titles = [a.text for a in Analyzer(run).show_one_rank(0).figure.layout.annotations]
    assert "Events, the first 2,000 of each kind (5 more are not drawn)" in titles


def test_throttling_is_not_called_a_share_of_the_time(tmp_path: Path) -> None:
    run = runs.make_run(tmp_path / "r")
    rows = [runs.sample(s, "cgroup.throttled.percent", 640, "command") for s in (1, 2)]
    runs.write_closed(run / "n0", schema.SAMPLES, runs.node_samples(5) + rows)
    text = " ".join(str(Analyzer(run).show_overview()).split())
    assert "100 % is one core throttled all the time" in text


def test_of_interfaces_the_busiest_is_shown_and_called_so(tmp_path: Path) -> None:
    text = str(Analyzer(runs.make_run(tmp_path / "r")).show_overview())
    assert "net busiest rx" in text
    assert "the interface with the most traffic" in text


def test_text_is_text_also_where_a_notebook_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = Analyzer(runs.make_run(tmp_path / "r")).show_overview()
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    assert "118" in str(shown)


def test_the_name_of_a_range_is_a_whole_column_head(tmp_path: Path) -> None:
    run = runs.make_run(tmp_path / "r")
    runs.write_closed(run / "n0#0", schema.SPANS, runs.loop(3, [("model.layer_1", 2.0)]))
    assert "model.layer_1" in Analyzer(run).show_overview().grids[0].heads


def test_one_rank_shows_every_kind_of_data_on_one_axis(tmp_path: Path) -> None:
    run = runs.make_run(tmp_path / "r", ranks=2, gpus=1)
    figure = Analyzer(run).show_one_rank(1).figure
    titles = " ".join(a.text for a in figure.layout.annotations)
    for title in ("Phases", "Events", "CPU", "Memory", "IO", "Network", "Pressure", "GPU"):
        assert title in titles
    names = {t.name for t in figure.data}
    assert {"forward", "proc.cpu", "net.rx · eth0", "gpu.util · gpu0", "mark"} <= names


def test_one_colour_has_one_meaning() -> None:
    meanings: dict[str, set[str]] = {}
    for name, colour in (*colours.PHASE_COLOURS.items(), *colours.WORK_COLOURS.items()):
        meanings.setdefault(colour, set()).add(name)
    assert [names for names in meanings.values() if len(names) > 1] == [
        {"gradient_sync", "communication"},
        {"other", "between phases", "idle"},
    ]
    assert len(set(colours.COLOURS)) == len(colours.COLOURS)
    assert not set(colours.COLOURS) & set(meanings)


def test_long_series_are_thinned_and_keep_their_peak(tmp_path: Path) -> None:
    run = runs.write_run(tmp_path / "r")
    folder = runs.write_process(run)
    values = [runs.sample(s / 10, "proc.cpu.percent", 50.0) for s in range(9_000)]
    values[4_321]["value"] = 999.0
    runs.write_closed(folder, schema.SAMPLES, values)
    runs.write_closed(folder, schema.SPANS, runs.loop(5_000))
    figure = Analyzer(run).show_one_rank(0).figure
    series = next(t for t in figure.data if t.name == "proc.cpu")
    assert len(series.x) <= POINTS
    assert max(series.y) == 999.0
    bands = next(t for t in figure.data if t.name == "forward")
    assert len(bands.x) <= POINTS + 1


def test_a_name_cannot_drive_the_terminal(tmp_path: Path) -> None:
    run = runs.make_run(tmp_path / "r")
    runs.write_closed(run / "n0#0", schema.SPANS, runs.loop(3, [("\x1b[2Jwipe [red]", 2.0)]))
    text = str(Analyzer(run).show_overview())
    assert "\x1b" not in text
    assert "wipe [red]" in text


@pytest.mark.parametrize(
    ("column", "value", "written"),
    [
        ("step_median_ms", 12.34, "12.3 ms"),
        ("step_median_ms", 1500.0, "1.5 s"),
        ("step_median_ms", 999.6, "1 s"),
        ("step_median_ms", 0.9996, "1 ms"),
        ("step_median_ms", 999_600.0, "1 000 s"),
        ("rss_max_bytes", 999.7 * 2.0**10, "1000 KiB"),
        ("rss_max_bytes", 1023.7 * 2.0**10, "1 MiB"),
        ("forward_share", 0.384, "38 %"),
        ("forward_share", 0.004, "0.4 %"),
        ("rss_max_bytes", 640 * 2.0**20, "640 MiB"),
        ("net_rx_bytes_per_s", 1010.0, "1010 B/s"),
        ("cpu_mean_percent", None, "\N{EN DASH}"),
        ("cpu_mean_percent", float("nan"), "\N{EN DASH}"),
        ("lost_records", 3, "3"),
    ],
)
def test_values_are_written_in_their_unit(column: str, value: float | None, written: str) -> None:
    assert cell(column, value) == written
