"""Deep traces in the report: every view or why not, its numbers, names as text, a bounded size."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import traces
from browser import BROWSER, Browser
from page_documents import texts_in

from haiprof.analyzer import Analyzer
from haiprof.export import csv
from haiprof.show import deep
from haiprof.show.deep.figure import Bars, Curves, Flames
from haiprof.show.deep.section import Figure, Section, spread
from haiprof.show.grid import Grid, cell

HOSTILE = "</script><img src=x onerror=boom()>"
#: How the report shows each view: how the title of its table or figure begins, and what it says
#: where the view has no rows.
SHOWN = {
    "steps": ("Steps", "steps"),
    "overview": ("GPUs", "which GPU it was"),
    "operators": ("Operators", "operators"),
    "operators_by_shapes": ("Operators by shapes", "shapes"),
    "kernels": ("Kernels", "kernels"),
    "kernels_by_launch": ("Kernels by launch", "kernels"),
    "memory": ("Memory in use", "memory"),
    "modules": ("Modules", "modules"),
    "flames": ("Flame graph of Python functions", "Python functions"),
    "distributed": ("Computing and communicating", "communication between ranks"),
    "stragglers": ("Stragglers", "stragglers"),
    "temporal": ("Busy and idle", "work on a GPU"),
    "idle": ("Why streams were idle", "gaps of streams"),
    "idle_by_device": ("Why GPUs were idle", "gaps of GPUs"),
    "overlap": ("Overlap", "overlap"),
    "launches": ("Launches", "launches"),
    "full_queue": ("Full queues", ""),
    "operator_kernels": ("Kernels of operators", "kernels of operators"),
    "annotations": ("Ranges", "ranges of the user"),
    "annotations_by_kernel": ("Kernels by range", "kernels of ranges"),
    "queue_length": ("Launches that wait on each stream", "lengths of queues"),
    "bandwidth": ("Bandwidth of copies", "bandwidth of copies"),
    "kernel_kinds": ("Kinds of work", "kinds of work"),
    "hardware_counters": ("Hardware counters", "hardware counters"),
    "sequences": ("Sequences of kernels", "sequences of kernels"),
    "step_trace": ("Steps on the GPU", "steps on a GPU"),
    "op_statistics": ("Units that operators ran on", "units that operators ran on"),
    "roofline": ("Roofline", "FLOPs and bytes of operators"),
    "critical_path": ("What it consists of", "a critical path"),
    "what_if": ("What less work would save", "a critical path"),
    "recommendations": ("What would save time", ""),
    "unknown": ("What these traces lack", ""),
}
#: Views of the export that are of no deep trace alone: the rest of the report has them.
OTHERS = {
    "flame",
    "stacks",
    "collectives",
    "nccl",
    "waits",
    "processes",
    "phases",
    "device_phases",
    "metrics",
    "samples",
    "events",
    "pipeline",
    "slowdown",
    "imbalance",
    "clock",
    "efficiency",
    "goodput",
    "ledger",
    "findings",
}


def opened(run: str) -> Analyzer:
    return Analyzer(traces.files(run)[0].parent)


def answers(run: Analyzer) -> list[Section]:
    return list(deep.show(run).values())


def grid(sections: Iterable[Section], title: str) -> Grid:
    (found,) = [g for section in sections for g in section.grids if g.title == title]
    return found


def figure(sections: Iterable[Section], title: str) -> Figure:
    (found,) = [f for s in sections for f in s.figures if f.title.startswith(title)]
    return found


def column(table: Grid, head: str) -> list[str]:
    return [row[list(table.heads).index(head)] for row in table.rows]


def many_ranks(folder: Path, count: int) -> Path:
    """The traces of the two ranks made by hand, as those of many."""
    documents = [
        json.loads(gzip.decompress(file.read_bytes())) for file in traces.files("handmade_modern")
    ]
    for rank in range(count):
        document = documents[rank % len(documents)]
        document["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": count}
        traces.write(folder / f"w{rank}.pt.trace.json.gz", document)
    return folder


def test_a_trace_without_a_device_has_no_columns_for_one() -> None:
    sections = answers(opened("hta_cpu_only"))
    heads = {
        head
        for section in sections
        if section.title in ("Operators", "Modules and calls")
        for each in section.grids
        for head in each.heads
    }
    assert {"host self", "host total"} <= heads
    assert not {h for h in heads if any(word in h for word in ("device", "tensor", "kernel"))}


def test_the_findings_come_first() -> None:
    first, *_ = answers(opened("tb_resnet50_num_workers_0"))
    assert first.lines[0].startswith("The device was idle for 33 % of the time")
    assert "resnet50_profiler_api.py(42)" in first.lines[0]
    assert first.grids[0].title == "What would save time"


def test_every_view_of_the_export_has_its_place() -> None:
    assert set(SHOWN) | OTHERS == set(csv.VIEWS)


@pytest.mark.parametrize(
    "run",
    [
        "dlrm_8rank",
        "handmade_modern",
        "hta_amd_mi250",
        "hta_cpu_only",
        "hta_cupti_counters",
        "hta_df_index_resolver",
        "hta_mtia_inference",
        "tb_resnet50_num_workers_0",
        "tl_mi210_gpu_only",
        "tl_vllm_prefilldecode",
    ],
)
def test_no_view_is_silently_absent(run: str) -> None:
    found = opened(run)
    sections = answers(found)
    titles = [g.title for section in sections for g in section.grids]
    titles += [f.title for section in sections for f in section.figures]
    line = sections[-1].lines[0]
    for name, (title, missing) in SHOWN.items():
        frames = [frame for _, frame in csv._frames(name, csv.VIEWS[name](found))]
        shown = any(t.startswith(title) for t in titles)
        if not any(frame.height for frame in frames):
            assert not shown, name
        if not shown:
            assert not missing or missing in line, name
    assert line.startswith("Not in this trace: ")


@pytest.mark.parametrize("run", ["hta_cpu_only", "tl_mi210_gpu_only", "hta_mtia_inference"])
def test_without_a_device_or_steps_there_is_a_report(tmp_path: Path, run: str) -> None:
    text = texts_in(opened(run).report(tmp_path / "r.html").read_text("utf-8"))
    assert "Deep trace: why the steps take as long as they do" in text
    assert "Not in this trace: " in text


def test_tables_have_the_numbers_of_their_views_with_units() -> None:
    run = opened("dlrm_8rank")
    sections = answers(run)
    slowest = run.overview().ranks.sort("duration", descending=True)["rank"][0]
    collectives = run.distributed().collectives.filter(pl.col("rank") == slowest)
    longest = collectives.sort("total", descending=True)
    table = grid(sections, f"Collectives (rank {slowest})")
    assert column(table, "op") == longest["op"].to_list()
    bandwidth = longest["bus_bandwidth"].to_list()
    assert column(table, "bus bandwidth") == [cell("x_gb_per_s", value) for value in bandwidth]
    assert all(text.endswith(("GB/s", "MB/s")) for text in column(table, "bus bandwidth"))
    late = run.stragglers()
    assert column(grid(sections, "Stragglers"), "rank") == list(map(str, late["rank"]))


def test_operators_are_shown_beside_what_the_device_can_do(tmp_path: Path) -> None:
    document = traces.small(None)
    for event in document["traceEvents"]:
        if event["name"] == "aten::mm":
            event["args"] |= {
                "Input Dims": [[4096, 2048], [2048, 8192]],
                "Input type": ["c10::BFloat16", "c10::BFloat16"],
            }
        elif event["name"] == "gemm":
            event["dur"], event["name"] = 300, "nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NNT"
            event["args"]["grid"] = [66, 1, 1]
    document["deviceProperties"] = [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "numSms": 132}]
    run = Analyzer(traces.write(tmp_path / "w.pt.trace.json", document))
    sections = answers(run)
    # 2 · 4096 · 2048 · 8192 operations in 300 µs, of 989.4 TFLOP/s.
    roofline, products = (
        grid(sections, title) for title in ("Roofline", "Multiplications of matrices")
    )
    assert column(roofline, "operator") == ["aten::mm"]
    assert column(roofline, "TFLOP/s") == ["458"]
    assert column(roofline, "of the peak") == column(roofline, "efficiency") == ["46 %"]
    assert column(roofline, "bound by") == ["compute"]
    shape = [column(products, name) for name in ("m", "n", "k", "type", "calls")]
    assert shape == [["4096"], ["8192"], ["2048"], ["bf16"], ["2"]]
    assert column(products, "waves") == ["0.5"]
    (section,) = [each for each in sections if roofline in each.grids]
    assert section.lines == [
        "What operators compute and move is known for 100 % of the device's time."
    ]
    document["deviceProperties"] = []
    unnamed = Analyzer(traces.write(tmp_path / "unnamed" / "w.pt.trace.json", document))
    (line,) = next(each.lines for each in answers(unnamed) if "can do" in each.title)
    assert line.endswith("their efficiency is not either.")


def test_a_bar_of_each_rank_is_its_average_step() -> None:
    run = opened("dlrm_8rank")
    bars = figure(answers(run), "Computing and communicating")
    steps = run.distributed().steps.with_columns(pl.col("communication") - pl.col("waiting"))
    parts = ("compute", "overlap", "communication", "waiting", "other")
    assert isinstance(bars, Bars)
    for bar, part in zip(bars.parts, parts, strict=True):
        means = steps.group_by("rank", maintain_order=True).agg(pl.col(part).mean())
        assert bars.categories == [f"rank {rank}" for rank in means["rank"]]
        assert bar.values == pytest.approx((means[part] / 1e9).to_list())
    moved = figure(answers(run), "Moving data and waiting")
    assert isinstance(moved, Bars)
    waiting = run.distributed().transfers["waiting"]
    assert moved.parts[1].values == pytest.approx((waiting / 1e9).to_list())


def test_every_launch_is_in_the_distribution_of_delays() -> None:
    run = opened("hta_df_index_resolver")
    delays = figure(answers(run), "How long after its launch")
    assert isinstance(delays, Bars)
    assert sum(sum(part.values) for part in delays.parts) == run.launches().height


def test_queues_are_as_long_as_their_view_says() -> None:
    run = opened("hta_df_index_resolver")
    queues = figure(answers(run), "Launches that wait on each stream")
    assert isinstance(queues, Curves)
    longest = run.queue_length()["length"].to_numpy().max()
    assert max(float(curve.values.max()) for curve in queues.curves) == longest
    assert all((np.diff(curve.times) >= 0).all() for curve in queues.curves)


def test_a_flame_graph_is_as_wide_as_its_calls() -> None:
    run = opened("tl_vllm_prefilldecode")
    flames = figure(answers(run), "Flame graph")
    assert isinstance(flames, Flames)
    found = run.flames()
    roots = found.filter(pl.col("parent").is_null())["total"].sum()
    assert flames.paths["self"].sum() == pytest.approx(roots, rel=1e-6)


@pytest.mark.jobs
def test_a_hundred_ranks_are_a_small_page(tmp_path: Path) -> None:
    run = Analyzer(many_ranks(tmp_path / "job", 100))
    sections = answers(run)
    for section in sections:
        assert all(len(g.rows) <= 64 for g in section.grids)
        assert all(len(f.categories) <= 64 for f in section.figures if isinstance(f, Bars))
    assert "Of 100, 64 from the longest waiting to the shortest." in (
        grid(sections, "Transfer and waiting").note
    )
    assert run.report(tmp_path / "r.html").stat().st_size < 10e6


def test_rows_are_spread_from_the_greatest_to_the_least() -> None:
    frame = pl.DataFrame({"v": [3, None, 9, 1, 7]})
    assert spread(frame, "v", 5).equals(frame)
    assert spread(frame, "v", 3)["v"].to_list() == [9, 3, None]


@pytest.mark.skipif(BROWSER is None, reason="no chromium here")
def test_names_from_a_trace_are_text(tmp_path: Path) -> None:
    document = traces.small()
    for event in document["traceEvents"]:
        if event.get("cat") in ("cpu_op", "kernel"):
            event["name"] = HOSTILE
    traces.write(tmp_path / "t" / "w.pt.trace.json", document)
    report = Analyzer(tmp_path / "t").report(tmp_path / "r.html")
    assert HOSTILE not in report.read_text("utf-8")
    assert HOSTILE in texts_in(report.read_text("utf-8"))
    with Browser(tmp_path / "profile") as page:
        page.open(f"file://{report}#tab=operators")
        until = "document.body.innerText.includes('onerror')"
        shown = (
            f"(async () => {{ for (let n = 0; n < 600 && !({until}); n++)"
            " await new Promise((done) => setTimeout(done, 50)); })()"
        )
        page.evaluate(shown)
        assert page.evaluate(until)
        assert page.evaluate("document.querySelectorAll('img').length") == 0
        assert page.complaints == []
