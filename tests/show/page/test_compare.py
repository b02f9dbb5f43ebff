"""Two runs side by side: what differs, with its chance, and the earlier run beside the later."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import runs
import traces
from page_documents import check, decoded, section

from haiprof import schema
from haiprof.analyzer import Analyzer
from haiprof.errors import HaiprofError
from haiprof.show.page.build import Built
from haiprof.show.page.compare import compare


def sampled(folder: Path, loads: int, step_ms: float) -> Analyzer:
    """A run of which so many of a hundred samples are in a loader."""
    run = runs.make_sampled_run(folder, loads, step_ms)
    runs.write_process(run, stacks={"hz": 10.0})
    return Analyzer(run)


@pytest.fixture(scope="module")
def slower(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """A run whose steps take 100 ms, and one of 150 ms with more time in the loader."""
    folder = tmp_path_factory.mktemp("page")
    return compare(sampled(folder / "a", 10, 100.0), sampled(folder / "b", 60, 150.0))


def test_the_page_is_that_of_the_later_run_with_the_changes_first(slower: Built) -> None:
    check(slower)
    document = slower.document
    assert (document["before"]["name"], document["name"]) == ("a", "b")
    assert document["tabs"][0]["id"] == "changes"
    assert [tab["id"] for tab in document["tabs"][1:3]] == ["wrong", "run"]


def test_a_slower_step_is_said_to_be_slower(slower: Built) -> None:
    lines = section(slower, "changes", "changes")["lines"]
    assert lines[0] == "A step is 50 % slower: 100 ms before, 150 ms after"
    columns = {c["name"]: c for c in section(slower, "changes", "changes-phases")["columns"]}
    row = columns["name"]["values"].index("forward")
    assert columns["verdict"]["values"][row] == "slower"
    assert columns["before"]["values"][row] == "100 ms"
    assert columns["difference"]["order"][row] == pytest.approx(50e6)
    assert columns["chance"]["values"][row] == "under 0.01 %"


def test_functions_are_compared_by_their_time_in_a_step(slower: Built) -> None:
    columns = {c["name"]: c for c in section(slower, "changes", "changes-stacks")["columns"]}
    row = columns["function"]["values"].index("load (/job/data.py)")
    assert columns["verdict"]["values"][row] == "slower"
    assert columns["before"]["order"][row] == pytest.approx(10e6)
    assert columns["after"]["order"][row] == pytest.approx(90e6)


def test_the_flame_graph_has_the_earlier_time_of_each_path(slower: Built) -> None:
    flame = section(slower, "code", "flame-0-0")
    tree = flame["trees"][0]
    names = decoded(tree["name_of"], slower.blobs).astype(int)
    before = decoded(tree["before"], slower.blobs)
    found = {flame["names"][name]: was for name, was in zip(names, before, strict=True)}
    # Of a hundred steps, with a sample of 100 ms each.
    assert found["load (/job/data.py:88)"] == pytest.approx(1.0, rel=1e-3)
    assert found["Model.forward (/job/model.py:12)"] == pytest.approx(9.0, rel=1e-3)


def test_steps_are_drawn_beside_those_of_the_earlier_run(slower: Built) -> None:
    (line,) = section(slower, "ranks", "steps-by-number")["lines"]
    assert np.allclose(decoded(line["y"], slower.blobs), 150.0, rtol=1e-4)
    assert np.allclose(decoded(line["before"]["y"], slower.blobs), 100.0, rtol=1e-4)


def test_the_same_run_twice_shows_no_difference(tmp_path: Path) -> None:
    run = Analyzer(runs.make_gpu_run(tmp_path / "r"))
    found = compare(run, run)
    check(found)
    lines = section(found, "changes", "changes")["lines"]
    assert lines[0].startswith("A step takes as long, as far as chance allows to say: 12 ms")
    assert lines[1].startswith("0 of ")


def test_a_run_without_steps_is_refused(tmp_path: Path) -> None:
    run = runs.write_run(tmp_path / "r")
    process = runs.write_process(run)
    runs.write_closed(process, schema.EVENTS, [runs.event(1, "mark", "begin")])
    other = Analyzer(runs.make_run(tmp_path / "s"))
    with pytest.raises(HaiprofError, match="no steps to compare"):
        compare(other, Analyzer(run))


def test_traces_differ_in_their_operators_and_kernels(tmp_path: Path) -> None:
    before = traces.write(tmp_path / "a" / "rank0.pt.trace.json", traces.small(0))
    document = traces.small(0)
    for event in document["traceEvents"]:
        if event["name"] == "gemm":
            event["name"] = "another_gemm"
    after = traces.write(tmp_path / "b" / "rank0.pt.trace.json", document)
    found = compare(Analyzer(before.parent), Analyzer(after.parent))
    check(found)
    assert section(found, "changes", "changes")["lines"][0].startswith("rank 0: ")
    kernels = section(found, "changes", "changes-kernels-rank-0")
    columns = {column["name"]: column["values"] for column in kernels["columns"]}
    verdicts = dict(zip(columns["name"], columns["verdict"], strict=True))
    assert (verdicts["gemm"], verdicts["another_gemm"]) == ("gone", "new")


def test_a_trace_and_a_recorded_run_are_refused(tmp_path: Path) -> None:
    trace = Analyzer(traces.write(tmp_path / "t" / "rank0.pt.trace.json", traces.small(0)))
    run = Analyzer(runs.make_run(tmp_path / "r"))
    for pair in ((trace, run), (run, trace)):
        with pytest.raises(HaiprofError, match="is of traces, r was recorded: give two of a kind"):
            compare(*pair)
