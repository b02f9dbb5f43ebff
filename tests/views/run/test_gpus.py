"""A rank's GPUs are found by uuid, also parts of one (MIG), and what was sampled of them added."""

from __future__ import annotations

from pathlib import Path

import pytest
import runs

from haiprof import schema
from haiprof.analyzer import Analyzer
from haiprof.errors import HaiprofError
from haiprof.runs import ROLE_RANK
from haiprof.sources import own
from haiprof.views.run.gpus import instances

MIG = "MIG-00000000-1111"


def run_with(tmp_path: Path, mine: list[runs.Row], node: list[runs.Row]) -> Path:
    run = runs.write_run(tmp_path / "r")
    folder = runs.write_process(run, gpus=mine)
    runs.write_closed(folder, schema.SPANS, runs.loop(5))
    rows = [
        runs.sample(s, metric, value, gpu["instance"])
        for s in (1, 2)
        for n, gpu in enumerate(node)
        for metric, value in (
            ("gpu.util.percent", 50.0 + 10 * n),
            ("gpu.memory_used.bytes", 2.0**30 * (n + 1)),
            ("gpu.power.watts", 300.0),
        )
        if "/" not in gpu["instance"] or metric != "gpu.power.watts"
    ]
    runs.write_closed(runs.write_node(run, gpus=node), schema.SAMPLES, rows)
    return run


def found(run: Path) -> list[str]:
    processes = own.open_run(run).processes
    rank = next(p for p in processes if p.role == ROLE_RANK)
    return [name for names in instances(rank, processes).values() for name in names]


def test_ordinals_of_the_process_need_not_be_those_of_the_node(tmp_path: Path) -> None:
    node = [{"instance": f"gpu{n}", "uuid": f"GPU-{n}"} for n in range(12)]
    mine = [{"device": 0, "uuid": "GPU-10"}, {"device": 1, "uuid": "gpu-2"}]
    run = run_with(tmp_path, mine, node)
    assert found(run) == ["gpu2", "gpu10"]
    summary = Analyzer(run).summaries()[0][0]
    assert set(summary.gpu_stats) == {"gpu2", "gpu10"}


def test_a_part_of_a_gpu_is_no_other_and_not_counted_twice_on_the_node(tmp_path: Path) -> None:
    node = [{"instance": "gpu0", "uuid": "GPU-0"}, {"instance": "gpu0/mig1", "uuid": MIG}]
    run = run_with(tmp_path, [{"device": 0, "uuid": MIG}], node)
    assert found(run) == ["gpu0/mig1"]
    ranks, nodes = Analyzer(run).summaries()
    assert ranks[0].gpu_stats["gpu0/mig1"]["gpu.util.percent"].mean == 60
    assert "gpu.power.watts" not in ranks[0].gpu_stats["gpu0/mig1"]
    assert nodes[0].stats["gpu.memory_used.bytes"].maximum == 2.0**30
    assert nodes[0].stats["gpu.util.percent"].mean == 50


def test_a_gpu_that_no_node_knows_has_no_samples(tmp_path: Path) -> None:
    run = run_with(tmp_path, [{"device": 0, "uuid": None}], [{"instance": "gpu0", "uuid": "a"}])
    assert found(run) == []


@pytest.mark.parametrize("gpus", [3, [3], [{"uuid": 7}], [{"device": "0"}]])
def test_a_list_of_gpus_that_makes_no_sense_is_one_line(tmp_path: Path, gpus: object) -> None:
    run = runs.write_run(tmp_path / "r")
    runs.write_process(run, gpus=gpus)
    with pytest.raises(HaiprofError, match=r"process\.json: field '(gpus|uuid|device)' is "):
        own.open_run(run)
