"""The document of a recorded run: what it says is what was recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import runs
from page_documents import check, decoded, parts, section

from haiprof import schema
from haiprof.analyzer import Analyzer
from haiprof.show.grid import SENTENCE
from haiprof.show.page.build import Built, build

HOSTILE = '<img src=x onerror="document.title=1"></script><script>boom()</script>'
STEP = 0.012


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """A run of two ranks with GPUs, kernels and collectives; every tenth step has stacks."""
    run = runs.make_gpu_run(tmp_path_factory.mktemp("page") / "r", ranks=2)
    for rank in range(2):
        gpu = {"device": 0, "uuid": f"GPU-{rank:08x}", "name": "NVIDIA H100"}
        runs.write_process(run, rank, world_size=2, gpus=[gpu], stacks={"hz": 10.0})
    return build(Analyzer(run))


def shapes(lane: dict[str, Any], blobs: list[str]) -> list[tuple[float, float]]:
    """When each shape of a lane begins, and how long it is."""
    begins, lengths = (decoded(lane[name], blobs).tolist() for name in ("from", "length"))
    return list(zip(begins, lengths, strict=True))


def test_a_document_is_consistent(two_ranks: Built) -> None:
    check(two_ranks)
    assert [tab["id"] for tab in two_ranks.document["tabs"]] == [
        *("wrong", "run", "ranks", "step", "code", "machine", "missing")
    ]
    assert two_ranks.document["ranks"] == two_ranks.document["chosen_ranks"] == [0, 1]
    assert two_ranks.document["headline"][0].startswith("118 steps on each of 2 ranks")


def test_steps_are_as_long_as_they_took(two_ranks: Built) -> None:
    steps = section(two_ranks, "run", "steps")
    assert [line["name"] for line in steps["lines"]] == ["rank 0", "rank 1"]
    for line in steps["lines"]:
        assert np.allclose(decoded(line["y"], two_ranks.blobs), 1e3 * STEP, rtol=1e-4)
        begins = decoded(line["x"], two_ranks.blobs)
        assert np.allclose(np.diff(begins), STEP, atol=2e-3)


def test_phases_of_a_step_add_up_to_it(two_ranks: Built) -> None:
    phases = section(two_ranks, "run", "phases-1")
    assert (phases["stacked"], phases["rank"]) == (True, 1)
    heights = [decoded(line["y"], two_ranks.blobs) for line in phases["lines"]]
    assert np.allclose(np.sum(heights, axis=0)[:-1], 1e3 * STEP, rtol=1e-3)
    assert np.sum(heights, axis=0)[-1] == 0, "it ends with the last step"


def test_the_heat_map_has_each_step_of_each_rank(two_ranks: Built) -> None:
    heat = section(two_ranks, "ranks", "heat")
    assert [row["rank"] for row in heat["rows"]] == [0, 1]
    assert decoded(heat["steps"], two_ranks.blobs).tolist() == list(range(118))
    assert np.allclose(decoded(heat["values"], two_ranks.blobs), 1e3 * STEP, rtol=1e-3)
    assert "more" not in heat


def test_lanes_have_phases_kernels_and_collectives_of_the_chosen_steps(two_ranks: Built) -> None:
    lanes = section(two_ranks, "step", "lanes-0")
    names = {lane["name"]: lane for lane in lanes["lanes"]}
    assert {"phases", "device phases", "collectives", "waits for collectives"} <= set(names)
    assert "sampled stacks" in names
    kernels = names["stream 7"]
    assert "layer_kernel" in " ".join(kernels["names"])
    begins = decoded(lanes["steps"]["from"], two_ranks.blobs)
    ends = decoded(lanes["steps"]["to"], two_ranks.blobs)
    assert np.allclose(ends - begins, STEP, atol=3e-6)
    start = decoded(kernels["from"], two_ranks.blobs)
    windows = list(zip(begins, ends, strict=True))
    inside = [int(((start >= low) & (start < high)).sum()) for low, high in windows]
    assert max(inside) == 6, "four layers, backward and optimizer in a recorded step"
    assert sum(inside) == len(start), "nothing but the chosen steps"


def test_one_sample_is_drawn_no_longer_than_its_phase(two_ranks: Built) -> None:
    lanes = {lane["name"]: lane for lane in section(two_ranks, "step", "lanes-0")["lanes"]}
    sampled, phases = lanes["sampled stacks"], lanes["phases"]
    inside = [(begin, begin + length) for begin, length in shapes(phases, two_ranks.blobs)]
    drawn = shapes(sampled, two_ranks.blobs)
    assert drawn
    for begin, length in drawn:
        assert any(low <= begin and begin + length <= high + 2e-6 for low, high in inside)


def test_a_flame_graph_has_all_samples_and_those_of_each_phase(two_ranks: Built) -> None:
    flame = section(two_ranks, "code", "flame-0-0")
    trees = {tree["name"]: tree for tree in flame["trees"]}
    assert {"all", "forward", "backward"} <= set(trees)
    whole = decoded(trees["all"]["self"], two_ranks.blobs).sum()
    assert whole == pytest.approx(12 * 0.1, rel=1e-3)
    of_phases = [decoded(t["self"], two_ranks.blobs).sum() for n, t in trees.items() if n != "all"]
    assert sum(of_phases) == pytest.approx(whole, rel=1e-3)
    assert "Model.forward (/job/model.py:12)" in flame["names"]
    assert flame["places"][flame["names"].index("Model.forward (/job/model.py:12)")] == (
        "/job/model.py:12"
    )


def test_a_finding_leads_to_its_rank_its_steps_and_its_line(tmp_path: Path) -> None:
    run = runs.make_run(tmp_path / "r", ranks=4, slow_rank=2)
    found = build(Analyzer(run))
    check(found)
    items: list[Any] = section(found, "wrong", "findings")["items"]
    assert len(items) == len(Analyzer(run).findings())
    for item, finding in zip(items, Analyzer(run).findings(), strict=True):
        assert item["text"] == finding.problem
        assert item.get("lost") == (None if finding.lost_ns is None else finding.lost_ns / 1e9)
        assert item.get("ranks", []) == list(finding.ranks)


def test_series_that_do_not_move_are_closed(tmp_path: Path) -> None:
    run = runs.write_run(tmp_path / "r")
    process = runs.write_process(run)
    still = runs.steady(20, {("mem.used.bytes", None): 5e9})
    moving = [
        runs.sample(second, "cpu.util.percent", 10.0 + 80 * (second % 2)) for second in range(20)
    ]
    runs.write_closed(process, schema.SAMPLES, still + moving)
    found = build(Analyzer(run))
    check(found)
    machine = {tab["id"]: tab["sections"] for tab in found.document["tabs"]}["machine"]
    opened = {each["title"]: each.get("open") for each in machine if each["kind"] == "series"}
    assert opened == {"CPU of the node (% of all cores)": True, "Memory of the node (bytes)": False}


def test_a_run_without_steps_says_so(tmp_path: Path) -> None:
    run = runs.write_run(tmp_path / "r")
    runs.write_process(run)
    found = build(Analyzer(run))
    check(found)
    assert section(found, "run", "steps")["empty"] == "No step was recorded"
    assert section(found, "step", "lanes")["empty"] == "No step was recorded."
    assert "stack-hz" in section(found, "code", "code")["empty"]


def test_a_run_of_a_process_without_a_rank_is_shown(tmp_path: Path) -> None:
    run = runs.write_run(tmp_path / "r")
    process = runs.write_process(run, None)
    runs.write_closed(process, schema.SPANS, runs.loop(30))
    found = build(Analyzer(run))
    check(found)
    assert found.document["ranks"] == []
    lanes = next(tab for tab in found.document["tabs"] if tab["id"] == "step")["sections"]
    assert [each["kind"] for each in lanes] == ["lanes"]
    assert "rank" not in lanes[0]


def test_texts_of_a_run_are_shortened(tmp_path: Path) -> None:
    name = HOSTILE + 5_000 * "x"
    run = runs.make_run(tmp_path / "r", phases=[(name, 4.0), ("forward", 5.0)])
    process = runs.write_process(run)
    events = [runs.event(1, f"kind{number}" + name, name) for number in range(50)]
    runs.write_closed(process, schema.EVENTS, events)
    found = build(Analyzer(run))
    check(found)
    texts = [value for _, value in parts(found.document) if isinstance(value, str)]
    assert max(map(len, texts)) <= SENTENCE


def test_of_many_ranks_the_slowest_have_sections_and_one_line_stands_for_all(
    tmp_path: Path,
) -> None:
    run = runs.make_run(tmp_path / "r", ranks=20, steps=12, slow_rank=19)
    found = build(Analyzer(run))
    check(found)
    assert len(found.document["chosen_ranks"]) == 16
    assert 19 in found.document["chosen_ranks"]
    (line,) = section(found, "run", "steps")["lines"]
    assert line["name"] == "median of 20 ranks"
    assert decoded(line["high"], found.blobs).max() == pytest.approx(18.0, rel=1e-3)
    assert decoded(line["low"], found.blobs).min() == pytest.approx(12.0, rel=1e-3)
