"""The meaning of NVTX ranges by their texts, and NCCL's details in them."""

from __future__ import annotations

import json
from pathlib import Path

import nsys_exports
import polars as pl
import pytest
from nsys_exports import START_NS, Export

from haiprof import schema
from haiprof.analyzer import Analyzer
from haiprof.sources import tables


def table(run: Analyzer, which: schema.Table) -> pl.DataFrame:
    (process,) = run.run.processes
    return tables.read_table(process.folder, which).frame


@pytest.mark.parametrize(
    ("text", "category", "name", "sequence", "external", "shapes"),
    [
        ("aten::mm, seq = 21, op_id = 5, sizes = [[2, 3], [3, 4]], input_op_ids = [(1,0), (2,1)]",
         "op", "aten::mm", 21, 5, "[[2, 3], [3, 4]]"),
        ("aten::add, op_id = 7", "op", "aten::add", None, 7, None),
        ("aten::add", "op", "aten::add", None, None, None),
        ("AddmmBackward0, seq = 4, op_id = 9", "op", "AddmmBackward0", 4, 9, None),
        ("autograd::engine::evaluate_function: MulBackward0, seq = 3", "op",
         "autograd::engine::evaluate_function: MulBackward0", 3, None, None),
        ("flash_attn::_flash_attn_forward, op_id = 3", "op", "flash_attn::_flash_attn_forward",
         None, 3, None),
        ("FSDP::pre_forward (block.1), op_id = 4", "user", "FSDP::pre_forward (block.1)",
         None, 4, None),
        ("mylib::solve", "user", "mylib::solve", None, None, None),
        ("forward, op_id = 3", "user", "forward", None, 3, None),
        ("load, then train", "user", "load, then train", None, None, None),
    ],
)  # fmt: skip
def test_ranges_of_torch(
    tmp_path: Path,
    text: str,
    category: str,
    name: str,
    sequence: int | None,
    external: int | None,
    shapes: str | None,
) -> None:
    export = Export(tmp_path / "a.sqlite")
    export.range(text, 5, 25)
    spans = table(Analyzer(export.done()), schema.SPANS)
    wanted = ("category", "name", "sequence", "external", "shapes", "start", "duration")
    ranges = spans.select(wanted).cast(
        {"category": pl.String, "name": pl.String, "shapes": pl.String}
    )
    assert ranges.rows() == [(category, name, sequence, external, shapes, START_NS + 5, 20)]


def test_a_text_may_stand_elsewhere_and_a_range_in_a_domain(tmp_path: Path) -> None:
    export = Export(tmp_path / "a.sqlite")
    export.range("aten::mm", 0, 9)
    export.range("cub::Reduce", 10, 19, eventType=60, domainId=3)
    export.range(None, 20, 29, textId=export.text("aten::sum, op_id = 2"))
    export.range("CCCL", 0, None, eventType=75, domainId=3)
    spans = table(Analyzer(export.done()), schema.SPANS).sort("start")
    assert spans["name"].cast(pl.String).to_list() == ["aten::mm", "cub::Reduce", "aten::sum"]
    assert spans["category"].cast(pl.String).to_list() == ["op", "user", "op"]
    assert spans["attributes"].to_list() == [None, '{"domain": "CCCL"}', None]


def steps(tmp_path: Path, *ranges: tuple[str, int, int]) -> list[tuple[int, int]]:
    """Which of the ranges are steps: number and duration, by start."""
    export = Export(tmp_path / "a.sqlite")
    for text, start, end in ranges:
        export.range(text, start, end)
    spans = table(Analyzer(export.done()), schema.SPANS)
    found = spans.filter(pl.col("category") == "step").sort("start")
    return list(zip(found["step"], found["duration"], strict=True))


@pytest.mark.parametrize(
    ("ranges", "found"),
    [
        ([("step 3", 0, 10), ("step 4", 10, 30)], [(3, 10), (4, 20)]),
        ([("Train iteration: 8", 0, 10), ("Train iteration: 9", 12, 30)], [(8, 10), (9, 18)]),
        ([("ProfilerStep#7, op_id = 4", 0, 10), ("ProfilerStep#7", 20, 30)], [(7, 10)]),
        ([("ProfilerStep#7", 20, 30)], [(7, 10)]),
        # One alone may be anything; so may those that are nested or restart.
        ([("step 3", 0, 10)], []),
        ([("step 0", 0, 10), ("step 1", 5, 15)], []),
        ([("step 0", 0, 10), ("step 1", 10, 20), ("step 0", 20, 30), ("step 1", 30, 40)], []),
        # The larger ones, not those within.
        (
            [
                ("iteration 1", 0, 50),
                ("step 0", 0, 10),
                ("step 1", 10, 20),
                ("iteration 2", 50, 99),
            ],
            [(1, 50), (2, 49)],
        ),
        (
            [
                ("[pl][profile]run_training_batch", 0, 10),
                ("[pl][profile]run_training_batch", 20, 35),
            ],
            [(0, 10), (1, 15)],
        ),
        ([("stepper 1", 0, 10), ("stepper 2", 10, 20)], []),
    ],
)
def test_which_ranges_are_steps(
    tmp_path: Path, ranges: list[tuple[str, int, int]], found: list[tuple[int, int]]
) -> None:
    assert steps(tmp_path, *ranges) == found


def test_modules_of_lightning(tmp_path: Path) -> None:
    export = Export(tmp_path / "a.sqlite")
    export.range("[pl][module]torch.nn.Sequential: model", 0, 100)
    export.range("[pl][module]torch.nn.Linear: model.0, op_id = 4", 10, 60)
    export.range("aten::linear, op_id = 5", 20, 50)
    export.call("cudaLaunchKernel", 30, 35, correlation=3)
    export.kernel("gemm", 200, 270, correlationId=3)
    modules = Analyzer(export.done()).modules()
    assert modules.select("name", "depth", "host", "device").rows() == [
        ("model", 0, 100, 70),
        ("model.0", 1, 50, 70),
    ]


def test_what_nccl_says_of_a_call(tmp_path: Path) -> None:
    payload = {"NCCL communicator ID": 17, "Message size [bytes]": 4096}
    export = Export(tmp_path / "a.sqlite")
    export.range("ncclAllReduce", 10, 50, domainId=1, jsonText=json.dumps({"payload": [payload]}))
    peer = json.dumps({**payload, "Peer rank": 3})
    export.range("ncclSend", 60, 70, domainId=1, jsonText=peer)
    export.range("ncclGroupEnd", 71, 72, domainId=1)
    export.range("nccl:all_gather, op_id = 8", 80, 90)
    export.call("cudaLaunchKernel", 30, 35, correlation=3)
    export.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 100, 300, correlationId=3)
    run = Analyzer(export.done())
    found = table(run, schema.COLLECTIVES).cast({"op": pl.String, "group": pl.String})
    columns = ("op", "group", "bytes", "external", "start", "duration")
    assert found.sort("start").select(columns).rows() == [
        ("all_reduce", "17", 4096, None, START_NS + 10, 40),
        ("send", "17", 4096, None, START_NS + 60, 10),
        ("all_gather", None, None, 8, START_NS + 80, 10),
    ]
    assert json.loads(found.sort("start")["attributes"][1]) == {"peer": 3}
    (seen,) = run.distributed().collectives.select("op", "group", "bytes").rows()
    assert seen == ("all_reduce", "17", 4096)


def test_ranges_that_had_not_ended_are_reported(tmp_path: Path) -> None:
    export = Export(tmp_path / "a.sqlite")
    export.range("train", 0, None)
    export.range("step", 5, 10)
    run = Analyzer(export.done())
    assert run.spans()["name"].cast(pl.String).to_list() == ["step"]
    (line,) = run.problems()
    assert line.endswith("1 ranges of NVTX of pid 10 had not ended: left out")


def test_a_payload_that_is_no_json_is_as_none(tmp_path: Path) -> None:
    export = Export(tmp_path / "a.sqlite")
    export.range("ncclRecv", 10, 50, domainId=1, jsonText="{not json")
    found = table(Analyzer(export.done()), schema.COLLECTIVES)
    assert found["bytes"].to_list() == [None]


def test_small_exports_have_steps(tmp_path: Path) -> None:
    run = Analyzer(nsys_exports.small(tmp_path / "rank0.sqlite"))
    assert run.steps().select("step", "duration").rows() == [(0, 900), (1, 900)]
    (row,) = run.operators().select("name", "calls", "device_total").rows()
    assert row == ("aten::mm", 2, 400)
