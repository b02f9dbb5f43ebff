"""Modules and flames, against the plugin's module view and against counting by hand."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_frames import frame, kernels_of, spans_of
from traces import Trace, expected, files, load, runs

from haiprof import schema
from haiprof.views.trace import modules as views
from haiprof.views.trace.linking.linked import Linked, link

COLUMNS = ("occurrences", "operators", "host", "self_host", "device", "self_device")
Key = tuple[str, int]

#: Where the plugin's device times are not those of the trace, and why. Held against
#: :func:`counted` instead.
OTHER_DEVICE_TIME = {
    "tl_b200_eager": "the plugin knows no launches of the driver: cuLaunchKernelEx",
    "tl_h100_Qwen_Qwen1_5_0_5B_Chat": "cuLaunchKernel",
    "tl_h100_facebook_timesformer_base_finetuned_k400": "cuLaunchKernel",
    "tl_vllm_prefilldecode": "hipGraphLaunch has no operator's External id",
    "tl_mi300_resnet_act_checkpoint": "modules run again in the backward pass",
}
#: Where the plugin leaves calls out: those that run again within the backward pass.
OTHER_CALLS = {"tl_mi300_resnet_act_checkpoint"}


def plugin(run: str, file: Path) -> dict[Key, list[float]] | None:
    """The plugin's figures for each module, times in us; None without a module view."""
    views_ = expected(run, "tb_tip")
    worker = file.name.removesuffix(".pt.trace.json.gz")
    folder = worker if f"{worker}/module" in views_ else f"{worker.split('.')[0]}.span1"
    if f"{folder}/module" not in views_:
        return None
    found: dict[Key, list[float]] = {}

    def walk(row: dict[str, Any]) -> None:
        times = ("host_duration", "self_host_duration", "device_duration", "self_device_duration")
        found[row["name"], row["id"]] = [
            row["occurences"], row["operators"], *(row[time] for time in times)
        ]  # fmt: skip
        for child in row["children"]:
            walk(child)

    for row in views_[f"{folder}/module"]["data"]:
        walk(row)
    return found


def linked(trace: Trace) -> Linked:
    return link(trace.spans, trace.kernels, trace.collectives, trace.flows)


def by_module(frame: pl.DataFrame) -> dict[Key, list[float]]:
    sums = frame.group_by("name", "id").agg(pl.col(COLUMNS).sum())
    return {
        (row["name"], row["id"]): [
            row["occurrences"],
            row["operators"],
            *(row[name] / 1000 for name in COLUMNS[2:]),
        ]
        for row in sums.iter_rows(named=True)
    }


def counted(trace: Trace) -> dict[Key, list[float]]:
    """Calls and device time of each module, by looking at each launch: all that it is within."""
    spans = trace.spans.with_columns(pl.col("name", "category").cast(pl.String))
    calls = spans.filter(pl.col("category") == "python", pl.col("module").is_not_null())
    start, end = calls["start"].to_numpy(), (calls["start"] + calls["duration"]).to_numpy()
    thread = calls["thread"].to_numpy()
    keys = [
        (name.removeprefix("nn.Module: "), number)
        for name, number in calls.select("name", "module").rows()
    ]
    found: dict[Key, list[float]] = defaultdict(lambda: [0, 0.0, 0.0, 0.0])
    for key, duration in zip(keys, calls["duration"].to_list(), strict=True):
        found[key][0] += 1
        found[key][1] += duration / 1000
    launches = spans.filter(pl.col("category") == "runtime", pl.col("correlation") > 0)
    launched = {
        row["correlation"]: (row["thread"], row["start"])
        for row in launches.select("correlation", "thread", "start").iter_rows(named=True)
    }
    busy = trace.kernels.filter(pl.col("kind").cast(pl.String) != "sync")
    for correlation, duration in busy.select("correlation", "duration").rows():
        if correlation not in launched:
            continue
        on, at = launched[correlation]
        around = np.flatnonzero((thread == on) & (start <= at) & (at < end))
        for call in around:
            found[keys[call]][2] += duration / 1000
        if len(around):
            found[keys[around[np.argmax(start[around])]]][3] += duration / 1000
    return found


@pytest.mark.parametrize("run", runs())
def test_modules_are_the_plugins_or_what_the_events_say(run: str) -> None:
    for file in files(run):
        trace, theirs = load(file), plugin(run, file)
        modules = views.modules(linked(trace))
        if theirs is None:
            # Not applicable: no call of a module was recorded.
            assert trace.spans["module"].null_count() == trace.spans.height
            assert not modules.height
            continue
        ours = by_module(modules)
        assert set(ours) == set(theirs)
        for key, (calls, host, device, own) in counted(trace).items():
            assert ours[key][0] == calls
            assert ours[key][2] == pytest.approx(host)
            assert ours[key][4] == pytest.approx(device)
            assert ours[key][5] == pytest.approx(own)
        if run not in OTHER_CALLS:
            for key, row in theirs.items():
                assert ours[key][:2] == row[:2]
                # The plugin's instants are doubles: good for some tenths of a ns
                # each, and every call and callee adds its own.
                near = {"rel": 1e-6, "abs": 0.001 * (row[0] + row[1])}
                assert ours[key][2] == pytest.approx(row[2], **near)
                # It subtracts what overlaps as often as it does, down to below nothing.
                assert ours[key][3] >= 0
                assert ours[key][3] == pytest.approx(row[3], **near) or ours[key][3] > row[3]
        for column in (4, 5) if run not in OTHER_DEVICE_TIME else ():
            assert {key: row[column] for key, row in ours.items()} == pytest.approx(
                {key: row[column] for key, row in theirs.items()}
            )


@pytest.mark.parametrize("run", runs())
def test_flames_add_up(run: str) -> None:
    for file in files(run):
        trace = linked(load(file))
        for of in ("python", "calls"):
            flames = views.flames(trace, of)
            chosen = trace.of("python") if of == "python" else ~trace.of("python")
            assert flames["calls"].sum() == np.count_nonzero(chosen)
            assert flames["self"].sum() == int(trace.ops["self"].to_numpy()[chosen].sum())
            roots = flames.filter(pl.col("parent").is_null())
            assert set(roots["depth"]) <= {0}
            inner = flames.filter(pl.col("parent").is_not_null())
            above = flames["depth"].gather(inner["parent"])
            assert (inner["depth"] == above + 1).all()
            assert (inner["parent"] < inner["path"]).all()


def module(name: str, number: int, start: int, duration: int, **more: Any) -> dict[str, Any]:
    return {
        "name": f"nn.Module: {name}", "module": number, "start": start, "duration": duration,
        "category": "python", **more,
    }  # fmt: skip


def test_an_empty_trace_has_no_modules_and_no_flames() -> None:
    trace = link(spans_of([]), kernels_of([]))
    assert views.modules(trace).height == 0
    assert views.flames(trace).height == views.flames(trace, "calls").height == 0


def test_a_module_owns_what_no_module_beneath_it_ran() -> None:
    spans = [
        module("Net", 0, 0, 100, python_id=1),
        module("Linear", 3, 10, 40, python_id=2, python_parent=1),
        module("Linear", 3, 60, 30, python_id=3, python_parent=1),
        {"name": "aten::linear", "start": 12, "duration": 20},
        {"name": "aten::mm", "start": 14, "duration": 10},
        {"name": "cudaLaunchKernel", "start": 16, "duration": 5, "category": "runtime",
         "correlation": 1},
        {"name": "aten::relu", "start": 52, "duration": 6},
        {"name": "cudaLaunchKernel", "start": 93, "duration": 5, "category": "runtime",
         "correlation": 2},
    ]  # fmt: skip
    kernels = kernels_of(
        [
            {"start": 100, "duration": 7, "correlation": 1},
            {"start": 110, "duration": 9, "correlation": 2},
        ]
    )
    modules = views.modules(link(spans_of(spans), kernels))
    assert modules.select("module", "parent", "depth", "name", "id", *COLUMNS).rows() == [
        (0, None, 0, "Net", 0, 1, 1, 100, 24, 16, 9),
        (1, 0, 1, "Linear", 3, 2, 1, 70, 50, 7, 7),
    ]
    assert modules["backward_host"].null_count() == 2


def test_backward_work_belongs_to_the_forward_module() -> None:
    spans = [
        module("Linear", 0, 0, 100),
        {"name": "aten::linear", "start": 10, "duration": 50, "sequence": 5},
        {"name": "engine", "start": 200, "duration": 60, "thread": 2, "sequence": 5,
         "forward_thread": 1},
        {"name": "LinearBackward", "start": 210, "duration": 40, "thread": 2, "sequence": 5,
         "forward_thread": 1},
        {"name": "cudaLaunchKernel", "start": 220, "duration": 5, "category": "runtime",
         "correlation": 9, "thread": 2},
    ]  # fmt: skip
    kernels = kernels_of([{"start": 230, "duration": 33, "correlation": 9}])
    flows = frame(
        schema.FLOWS,
        [
            {"time": 10, "kind": "fwdbwd", "side": "start", "id": 1, "thread": 1},
            {"time": 200, "kind": "fwdbwd", "side": "end", "id": 1, "thread": 2},
        ],
    )
    for arrows in (flows, None):
        modules = views.modules(link(spans_of(spans), kernels, flows=arrows))
        assert modules.select("backward_host", "backward_device").rows() == [(60, 33)]


def test_parents_that_go_round_in_circles_are_survived() -> None:
    spans = [
        module("A", 0, 0, 100, python_id=1, python_parent=2),
        module("B", 0, 10, 50, python_id=2, python_parent=1),
        module("C", 0, 20, 10, python_id=3, python_parent=3),
    ]
    trace = link(spans_of(spans), kernels_of([]))
    assert views.modules(trace)["occurrences"].sum() == 3
    assert views.flames(trace)["calls"].sum() == 3


def test_steps_are_one_in_a_flame_graph_whatever_their_numbers() -> None:
    spans = [
        {"name": f"ProfilerStep#{step}", "start": 100 * step, "duration": 90, "category": "step"}
        for step in (3, 4)
    ]
    spans += [{"name": "aten::mm", "start": 100 * step + 10, "duration": 50} for step in (3, 4)]
    flames = views.flames(link(spans_of(spans), kernels_of([])), "calls")
    assert flames.select("parent", "name", "calls", "total", "self").rows() == [
        (None, "step", 2, 180, 80),
        (0, "aten::mm", 2, 100, 100),
    ]


TREES = st.lists(st.tuples(st.integers(-1, 30), st.sampled_from("abc")), max_size=40)


@given(TREES)
def test_folding_joins_calls_of_the_same_path(rows: list[tuple[int, str]]) -> None:
    from haiprof import _core

    parents = [parent if parent < row else -1 for row, (parent, _) in enumerate(rows)]
    paths: list[tuple[str, ...]] = []
    for parent, (_, name) in zip(parents, rows, strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), name))
    path, above, name, depth = _core.fold(
        np.array(parents, np.int32), np.array([ord(name) for _, name in rows], np.uint32)
    )
    assert len(above) == len(set(paths))
    for row, whole in enumerate(paths):
        number = int(path[row])
        assert depth[number] == len(whole) - 1
        names = []
        while number >= 0:
            names.append(chr(name[number]))
            number = int(above[number])
        assert tuple(reversed(names)) == whole
