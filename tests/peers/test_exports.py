"""What haiprof exports for TensorBoard, in the tools it is for: they load it, and see the same."""

from __future__ import annotations

from pathlib import Path

import peers
import runs
from real_data import DATA, need

from haiprof import schema
from haiprof.analyzer import Analyzer
from haiprof.export import tensorboard

TRACES = DATA / "traces"


def exported(name: str, folder: Path) -> tuple[Path, Path]:
    """Return the folder of a run of traces, and that of its export."""
    traces = TRACES / name
    need(traces)
    tensorboard.write(Analyzer(traces), folder / "out")
    return traces, folder / "out"


def test_the_plugin_s_tables_are_those_of_the_traces(plugin: Path, tmp_path: Path) -> None:
    traces, out = exported("handmade_modern", tmp_path)
    before = peers.drive(plugin, peers.PLUGIN.driver, traces, "--tables").tables
    after = peers.drive(plugin, peers.PLUGIN.driver, out, "--tables").tables
    assert len(before) == len(after) == 2
    assert list(after.values()) == list(before.values())


def test_hta_s_tables_are_those_of_the_traces(hta: Path, tmp_path: Path) -> None:
    traces, out = exported("handmade_modern", tmp_path)
    before = peers.drive(hta, peers.HTA.driver, traces, "--tables").tables
    after = peers.drive(hta, peers.HTA.driver, out, "--tables").tables
    assert before["temporal 0"]
    assert after["temporal 0"] == before["temporal 0"]


def test_the_plugin_loads_memory_of_kinds_that_end_it(plugin: Path, tmp_path: Path) -> None:
    run = runs.make_gpu_run(tmp_path / "run")
    memory = [
        {"time": runs.T0 + n, "kind": "hip", "device": 0, "address": 1, "bytes": size, "thread": 1}
        | {"total_allocated": max(size, 0), "total_reserved": 8}
        for n, size in enumerate((8, -8))
    ]
    (process,) = (each.folder for each in Analyzer(run).run.processes if each.rank == 0)
    runs.write_closed(process, schema.ALLOCATIONS, memory)
    tensorboard.write(Analyzer(run), tmp_path / "out")
    rows = peers.drive(plugin, peers.PLUGIN.driver, tmp_path / "out").rows
    assert rows["memory curve"] >= len(memory)


def test_a_run_of_ours_has_steps_and_kernels_there(plugin: Path, tmp_path: Path) -> None:
    tensorboard.write(Analyzer(runs.make_gpu_run(tmp_path / "run", ranks=2)), tmp_path / "out")
    rows = peers.drive(plugin, peers.PLUGIN.driver, tmp_path / "out").rows
    assert rows["overview"] > 0
    assert rows["kernels"] >= 3
