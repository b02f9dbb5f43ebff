"""Late ranks of whole runs: by their hosts' phases, their GPUs' phases, and their deep traces."""

from __future__ import annotations

from pathlib import Path

import nsys_exports
import polars as pl
import runs
import traces

from haiprof import schema
from haiprof.analyzer import Analyzer

STEPS = 60
#: A step takes 12 ms, on the GPU from 1.5 ms on; all ranks leave backward together.
LATE = 3.0


def gpu_run(folder: Path) -> Path:
    """Four ranks on two nodes; of rank 2 forward takes longer on the GPU from step 20 on."""
    run = runs.write_run(folder)
    for rank in range(4):
        node = f"n{rank // 2}"
        gpu = {"device": 0, "uuid": f"GPU-{rank:08x}", "name": "NVIDIA H100"}
        process = runs.write_process(run, rank, node, world_size=4, gpus=[gpu])
        runs.write_closed(process, schema.SPANS, runs.loop(STEPS))
        rows = []
        for step in range(STEPS):
            more = LATE if rank == 2 and step >= 20 else 0.0
            begin = 12 * step + 1.5
            rows += [
                runs.device_span(begin, 4 + more, "forward", step),
                runs.device_span(begin + 4 + more, 5 - more, "backward", step),
                runs.device_span(begin + 9, 1, "optimizer", step),
            ]
        runs.write_closed(process, schema.DEVICE_SPANS, rows)
    for number in range(2):
        gpus = [
            {"instance": f"gpu{n}", "index": n, "uuid": f"GPU-{2 * number + n:08x}"}
            for n in range(2)
        ]
        node = runs.write_node(run, f"n{number}", gpus=gpus)
        rows = []
        for tenth in range(1, 8):
            for gpu in range(2):
                slow = number == 1 and gpu == 0 and tenth > 2
                for metric, value in (
                    ("gpu.sm_clock.hertz", 1.2e9 if slow else 1.9e9),
                    ("gpu.throttle_thermal.percent", 80.0 if slow else 0.0),
                ):
                    rows.append(runs.sample(tenth / 10, metric, value, f"gpu{gpu}"))
        runs.write_closed(node, schema.SAMPLES, rows)
    return run


def test_a_slow_gpu_is_found_with_what_slowed_it(tmp_path: Path) -> None:
    analyzer = Analyzer(gpu_run(tmp_path / "r"))
    (row,) = analyzer.imbalance().to_dicts()
    assert (row["node"], row["rank"], row["part"], row["kind"]) == ("n1", 2, "forward", "compute")
    assert (row["since"], row["until"], row["persistent"]) == (20, STEPS - 1, True)
    assert (row["late"], row["in_part"]) == (3_000_000, 3_000_000)
    assert row["evidence"] == (
        "its GPU ran at 1.20 GHz (the others 1.90); "
        "its GPU was slowed for heat 80 % of the time (the others 0)"
    )
    # Nothing bounds the clocks of the two nodes.
    assert analyzer.clock()["corrected"].to_list() == [False, False]
    lines = analyzer.show_overview().lines
    assert any(line.startswith("Rank 2 is late by 3 ms a step") for line in lines)
    assert any(line.startswith("Nothing shows how far the clock of n1 is") for line in lines)
    third = analyzer.headline()[2]
    assert third.startswith("Rank 2 is late by 3 ms a step (")
    assert " since step 20, in forward (its GPU ran at 1.20 GHz" in third


def test_ranks_that_are_alike_are_not_late(tmp_path: Path) -> None:
    run = runs.make_run(tmp_path / "r", ranks=4)
    assert Analyzer(run).imbalance().height == 0
    assert Analyzer(runs.make_gpu_run(tmp_path / "g", ranks=4)).imbalance().height == 0
    assert Analyzer(runs.make_run(tmp_path / "one")).imbalance().height == 0


def test_of_a_rank_that_was_started_again_the_last_counts(tmp_path: Path) -> None:
    run = runs.make_run(tmp_path / "r", ranks=3, slow_rank=1)
    assert Analyzer(run).imbalance()["rank"].to_list() == [1]
    again = runs.write_process(
        run, 1, world_size=3, attempt=1, pid=7000, started_ns=runs.T0 + 10 * runs.SECOND
    )
    moved = run / "n0#1.a1"
    again.rename(moved)
    runs.make_run(run, ranks=3, slow_rank=1)  # what the rename took away
    runs.write_closed(moved, schema.SPANS, runs.loop(118))
    assert Analyzer(run).imbalance().height == 0


def test_files_without_a_rank_are_compared_where_they_are_of_the_same_time(tmp_path: Path) -> None:
    def late(folder: Path, begins: tuple[int, int]) -> list[int]:
        for name, pid, begin in zip(("one", "two"), (10, 20), begins, strict=True):
            export = nsys_exports.Export(folder / f"{name}.sqlite")
            export.call("cudaLaunchKernel", begin, begin + 10_000, pid, 1)
            export.kernel("gemm", begin + 20_000, begin + pid * 10_000_000, pid, correlationId=1)
            export.done()
        return Analyzer(folder).imbalance()["pid"].to_list()

    assert late(tmp_path / "together", (0, 1_000_000)) == [20]
    assert late(tmp_path / "apart", (0, 3600 * runs.SECOND)) == []


def test_the_late_ranks_of_a_trace_are_those_that_others_wait_for() -> None:
    traces.files("dlrm_8rank")  # skips where there is no data
    analyzer = Analyzer(traces.TRACES / "dlrm_8rank")
    late = analyzer.imbalance()
    assert late.height
    # One step cannot show a change.
    assert late["since"].null_count() == late.height
    last = analyzer.stragglers().filter(pl.col("last") > 0)
    assert set(late["rank"]) == set(last["rank"])
