"""The hardware is shown where it was sampled, and nothing of it where it was not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import runs
from page_documents import texts_in

from haiprof import schema
from haiprof.analyzer import Analyzer
from haiprof.show.grid import NOTHING, Grid

#: A step of 12 s: samples of a second lie within its phases.
SLOW = tuple((name, 1000 * ms) for name, ms in runs.PHASES)
TITLES = {
    "Memory bandwidth",
    "Power",
    "InfiniBand and RoCE",
    "Ethernet",
    "Storage",
    "NFS",
    "NUMA placement",
}
OVER_PHASES = "Over the phases of a step (rank 0)"
OF_NODE = {
    **runs.with_sockets("dram.read.bytes_per_s", 100e9, 20e9),
    **runs.with_sockets("dram.write.bytes_per_s", 32e9, 0.0),
    **runs.with_sockets("cpu.power.watts", 150.0, 50.0),
    ("ib.rx.bytes_per_s", "mlx5_0/1"): 20e9,
    ("net.rx.bytes_per_s", "eth0"): 1e9,
    ("net.rx_util.percent", "eth0"): 32.0,
    ("io.nfs_read.bytes_per_s", "/data"): 7e6,
}
OF_RANK = {
    ("io.syscall_read.bytes_per_s", None): 1e6,
    ("proc.cpu_node.percent", "node0"): 100.0,
    ("cgroup.memory_node.bytes", "node1"): 2.0**30,
}


def hardware_run(folder: Path, ranks: int = 1, nodes: int = 1, steps: int = 10) -> Path:
    """Make a run on nodes with all kinds of counters."""
    run = runs.write_run(folder)
    for rank in range(ranks):
        process = runs.write_process(run, rank, node=f"n{rank % nodes}")
        runs.write_closed(process, schema.SPANS, runs.loop(steps, SLOW, 1000.0))
        runs.write_closed(process, schema.SAMPLES, runs.steady(12 * steps, OF_RANK))
    for number in range(nodes):
        node = runs.write_node(run, f"n{number}", machine=runs.MACHINE)
        runs.write_closed(node, schema.SAMPLES, runs.steady(12 * steps, OF_NODE))
    return run


def grid(grids: object, title: str) -> Grid:
    (found,) = (g for g in grids if g.title == title)  # type: ignore[attr-defined]
    return found


def test_the_overview_shows_all_that_was_sampled(tmp_path: Path) -> None:
    shown = Analyzer(hardware_run(tmp_path / "r")).show_overview()
    assert {*TITLES, OVER_PHASES} <= {g.title for g in shown.grids}
    memory = grid(shown.grids, "Memory bandwidth")
    assert memory.note.startswith(
        "Read and written: 38 % of 400.0 GB/s (16 channels of DDR5-3125) on n0."
    )
    assert [row[memory.heads.index("of peak")] for row in memory.rows] == ["38 %", "66 %", "10 %"]
    power = grid(shown.grids, "Power")
    assert power.rows[0][power.heads.index("cpu")] == "24 kJ"
    placement = grid(shown.grids, "NUMA placement")
    assert placement.rows[0][placement.heads.index("memory elsewhere")] == "100 %"
    assert any(line.startswith("CPU packages drew 200 W on average, 24 kJ") for line in shown.lines)


def test_a_machine_without_counters_shows_none_of_it(tmp_path: Path) -> None:
    analyzer = Analyzer(runs.make_run(tmp_path / "r", ranks=2))
    titles = {g.title for g in [*analyzer.show_overview().grids, *analyzer.show_one_rank(1).grids]}
    assert not TITLES & titles
    assert not [title for title in titles if title.startswith("Over the phases")]
    page = texts_in(analyzer.report(tmp_path / "report.html").read_text("utf-8"))
    assert "Memory bandwidth" not in page
    assert "Over the phases" not in page


@pytest.mark.parametrize(("kind", "columns"), [("traffic", 1), ("read", 2)])
def test_one_rank_has_a_mean_for_each_phase(tmp_path: Path, kind: str, columns: int) -> None:
    run = hardware_run(tmp_path / "r")
    # Seconds 2 to 5 of each step are its forward, and only it moves much.
    rows = [
        runs.sample(s, f"dram.{kind}.bytes_per_s", 300e9 if 2 <= (s - 1) % 12 + 1 <= 5 else 100e9)
        for s in range(1, 121)
    ]
    runs.write_closed(run / "n0", schema.SAMPLES, rows)
    shown = Analyzer(run).show_one_rank(0)
    over = grid(shown.grids, OVER_PHASES)
    assert list(over.heads) == [
        "",
        "all steps",
        "dataloader",
        "forward",
        "backward",
        "optimizer",
        "other",
    ]
    (row,) = (r for r in over.rows if r[0] == f"dram.{kind}")
    assert row[over.heads.index("forward")] == "279 GiB/s"
    assert row[over.heads.index("dataloader")] == "93.1 GiB/s"
    assert row[over.heads.index("all steps")] == "155 GiB/s"
    names = [t.name for t in shown.figure.data if t.name and t.name.startswith("dram.")]
    assert f"dram.{kind}" in names


def test_steps_much_shorter_than_samples_are_said_not_to_be_resolved(tmp_path: Path) -> None:
    run = runs.make_run(tmp_path / "r", steps=800)
    runs.write_closed(run / "n0", schema.SAMPLES, runs.steady(9, OF_NODE))
    over = grid(Analyzer(run).show_one_rank(0).grids, OVER_PHASES)
    (row,) = (r for r in over.rows if r[0] == "dram.read")
    assert row == ["dram.read", "112 GiB/s", *[NOTHING] * 5]
    assert "not resolved: the samples are too coarse" in over.note
    assert "(resolution at most 0.01; 0.5 is needed)" in over.note


def test_phases_with_too_few_samples_are_not_called_too_short(tmp_path: Path) -> None:
    over = grid(Analyzer(hardware_run(tmp_path / "r", steps=3)).show_one_rank(0).grids, OVER_PHASES)
    (row,) = (r for r in over.rows if r[0] == "dram.read")
    assert (row[2], row[3]) == (NOTHING, "112 GiB/s")  # 3 samples, and 12
    assert over.note.endswith(f"{NOTHING}: fewer than 5 samples lie in the phase.")


def test_a_job_that_was_over_before_its_first_sample_has_no_phases(tmp_path: Path) -> None:
    run = runs.make_run(tmp_path / "r", steps=20)
    runs.write_closed(run / "n0", schema.SAMPLES, runs.steady(9, OF_NODE))
    titles = {g.title for g in Analyzer(run).show_one_rank(0).grids}
    assert OVER_PHASES not in titles


def test_one_container_of_several_on_a_node_tells_its_counters(tmp_path: Path) -> None:
    run = hardware_run(tmp_path / "r")
    twin = run / "n0.2"
    runs.write_json(twin / schema.PROCESS_FILE, json.loads((run / "n0/process.json").read_text()))
    late = [{**r, "time": r["time"] + runs.SECOND // 2} for r in runs.steady(120, OF_NODE)]
    runs.write_closed(twin, schema.SAMPLES, late)
    over = grid(Analyzer(run).show_one_rank(0).grids, OVER_PHASES)
    (row,) = (r for r in over.rows if r[0] == "cpu.power")
    assert row[1] == "200 W"


def test_panels_of_one_rank_tell_power_from_cpu_use(tmp_path: Path) -> None:
    figure = Analyzer(hardware_run(tmp_path / "r")).show_one_rank(0).figure
    titles = {annotation.text for annotation in figure.layout.annotations}
    assert {"Power (watts)", "Power, by part (watts)", "NFS (bytes/s)"} <= titles
    assert "Memory traffic (bytes/s)" in titles
    assert "InfiniBand (bytes/s)" in titles


def test_of_many_nodes_the_first_rows_are_shown(tmp_path: Path) -> None:
    shown = Analyzer(hardware_run(tmp_path / "r", ranks=70, nodes=35, steps=1)).show_overview()
    memory = grid(shown.grids, "Memory bandwidth")
    assert len(memory.rows) == 64
    assert memory.note.startswith("The first 64 of 105 rows. Read and written: 38 % of 400.0 GB/s")
    assert memory.note.count("on n") == 1
    (line,) = (line for line in shown.lines if "drew" in line)
    assert line.startswith("CPU packages of 35 nodes drew 7000 W on average")
