"""Deep traces in the page: tabs of their own, figures with the values of their views."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import runs
import traces
from page_documents import check, decoded, section

from haiprof.analyzer import Analyzer
from haiprof.show.page.build import Built, build


def opened(run: str) -> Analyzer:
    return Analyzer(traces.files(run)[0].parent)


@pytest.fixture(scope="module")
def eight_ranks() -> tuple[Analyzer, Built]:
    analyzer = opened("dlrm_8rank")
    return analyzer, build(analyzer)


def test_a_trace_has_the_tabs_of_what_it_recorded(eight_ranks: tuple[Analyzer, Built]) -> None:
    _, built = eight_ranks
    check(built)
    assert [tab["id"] for tab in built.document["tabs"]] == [
        *("wrong", "run", "ranks", "step", "gpus", "communication", "path", "operators"),
        *("kernels", "launches", "modules", "missing"),
    ]
    assert section(built, "missing", "trace-lacking")["lines"][0].startswith("Not in this trace: ")


def test_without_a_device_there_is_no_tab_of_one() -> None:
    built = build(opened("hta_cpu_only"))
    check(built)
    assert not {"gpus", "machine", "code"} & {tab["id"] for tab in built.document["tabs"]}


def test_bars_are_those_of_the_view(eight_ranks: tuple[Analyzer, Built]) -> None:
    analyzer, built = eight_ranks
    bars = section(built, "communication", "trace-communication-0")
    steps = analyzer.distributed().steps
    (computing,) = [part for part in bars["parts"] if part["name"] == "computing alone"]
    means = steps.group_by("rank", maintain_order=True).agg(steps["compute"].mean() * 0)
    assert bars["categories"] == [f"rank {rank}" for rank in means["rank"]]
    whole = sum(value for part in bars["parts"] for value in part["values"])
    assert whole == pytest.approx(steps["duration"].sum() / 1e9, rel=1e-6)
    assert sum(computing["values"]) == pytest.approx(steps["compute"].sum() / 1e9)


def test_curves_are_those_of_the_view(eight_ranks: tuple[Analyzer, Built]) -> None:
    analyzer, built = eight_ranks
    found = [
        each
        for tab in built.document["tabs"]
        if tab["id"] == "launches"
        for each in tab["sections"]
        if each["kind"] == "series" and each["title"].startswith("Launches that wait")
    ]
    (curves,) = found
    assert curves["axis"].startswith("time:")
    assert all(line["stepped"] for line in curves["lines"])
    rank = int(curves["title"].partition("(rank ")[2][:-1])
    longest = analyzer.queue_length(rank)["length"].to_numpy().max()
    highest = [decoded(line["y"], built.blobs).max() for line in curves["lines"]]
    assert max(highest) == longest


def test_a_flame_graph_is_as_wide_as_its_calls() -> None:
    analyzer = opened("tl_vllm_prefilldecode")
    built = build(analyzer)
    (flame,) = [
        each
        for tab in built.document["tabs"]
        if tab["id"] == "modules"
        for each in tab["sections"]
        if each["kind"] == "flame"
    ]
    own = decoded(flame["trees"][0]["self"], built.blobs)
    assert np.sum(own) == pytest.approx(analyzer.flames()["self"].sum() / 1e9, rel=1e-3)


def test_lanes_are_those_of_the_slowest_step(tmp_path: Path) -> None:
    built = build(Analyzer(traces.write(tmp_path / "rank0.pt.trace.json", traces.small(0))))
    lanes: Any = section(built, "step", "lanes-0")
    names = {text for lane in lanes["lanes"] for text in lane["names"]}
    assert {"aten::mm", "gemm"} <= names


def test_long_sentences_are_whole(eight_ranks: tuple[Analyzer, Built]) -> None:
    analyzer, built = eight_ranks
    assert built.document["headline"] == analyzer.headline()
    assert any(len(line) > 300 for line in analyzer.headline())


def test_a_page_has_no_name_of_this_program_s_libraries(
    eight_ranks: tuple[Analyzer, Built],
) -> None:
    assert "plotly" not in json.dumps(eight_ranks[1].document)


def test_a_recorded_run_has_the_lanes_of_its_deep_trace_beside_its_own(tmp_path: Path) -> None:
    run = runs.make_run(tmp_path / "r")
    traces.write(run / "n0#0" / "rank0.1000.1.pt.trace.json", traces.small(0))
    built = build(Analyzer(run))
    check(built)
    own: Any = section(built, "step", "lanes-0")
    traced: Any = section(built, "step", "trace-lanes-0")
    assert (own["axis"], traced["axis"]) == ("run", "time:trace")
    names = {text for lane in traced["lanes"] for text in lane["names"]}
    assert {"aten::mm", "gemm"} <= names
    assert {"wrong", "code", "machine", "operators"} <= {t["id"] for t in built.document["tabs"]}
