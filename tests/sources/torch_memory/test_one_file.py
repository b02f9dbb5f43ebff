"""Memory timelines: the curves are those that adding up the events one by one gives."""

from __future__ import annotations

import gzip
import json
import tarfile
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from real_data import DATA, need

from haiprof.analyzer import Analyzer
from haiprof.errors import HaiprofError
from haiprof.sources.torch_memory.one_file import CATEGORIES, LACKS

Events = list[list[int]]


def added(events: Events) -> tuple[list[tuple[int, int]], dict[str, dict[int, int]]]:
    """The bytes in use after each event, and of each category at the end of each instant."""
    first = min((t for t, *_ in events if t >= 0), default=0)
    total, of_all = 0, []
    level: dict[str, int] = defaultdict(int)
    curves: dict[str, dict[int, int]] = defaultdict(dict)
    placed = [(time if time >= 0 else first, *rest) for time, *rest in events]
    for time, action, size, category in sorted(placed, key=lambda event: event[0]):
        level[CATEGORIES[category]] += size
        curves[CATEGORIES[category]][time] = level[CATEGORIES[category]]
        total += size
        if action != 3:
            of_all.append((time, total))
    return of_all, curves


def check(file: Path, events: Events) -> Analyzer:
    run = Analyzer(file)
    assert run.problems() == []
    whole, curves = added(events)
    assert run.memory().curve.select("time", "allocated").rows() == whole
    for category, curve in curves.items():
        found = run.samples(metric=f"memory.{category}.bytes")
        assert dict(found.select("time", "value").iter_rows()) == curve
    return run


SIZES = st.integers(1, 1 << 40)


@settings(max_examples=25)
@given(
    st.lists(
        st.tuples(
            st.integers(-1, 50),
            st.sampled_from([1, 2, 4]),
            SIZES,
            st.integers(0, 7),
            st.integers(0, 7),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_events_add_up(rows: list[tuple[int, int, int, int, int]]) -> None:
    events: Events = []
    for time, action, size, category, other in rows:
        events.append([time, action, -size if action == 4 else size, category])
        if other % 2:  # becomes of another category
            events += [[time, 3, -size, category], [time, 3, size, other]]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "memory.raw.json.gz"
        file.write_bytes(gzip.compress(json.dumps(events).encode()))
        check(file, events)


def test_a_curve_is_in_microseconds(tmp_path: Path) -> None:
    none = [0] * 9
    levels = [none, [0, 512, *none[2:]], [0, 512, 64, *none[3:]], [0, 0, 64, *none[3:]]]
    file = tmp_path / "memory.json"
    file.write_text(json.dumps([[5, 7, 9, 11], levels]))
    run = Analyzer(file)
    assert run.memory().curve.select("time", "allocated").rows() == [
        (7000, 512),
        (9000, 576),
        (11000, 64),
    ]
    found = run.samples(metric="memory.optimizer_state.bytes")
    assert found.select("time", "value").rows() == [(9000, 64.0)]


def test_what_it_cannot_contain_is_explained(tmp_path: Path) -> None:
    file = tmp_path / "memory.raw.json"
    file.write_text("[[3, 1, 512, 7]]")
    run = Analyzer(file)
    (peak,) = run.memory().peaks.to_dicts()
    assert (peak["allocated"], peak["device"], peak["reserved"], peak["told"]) == (512, *[None] * 3)
    assert LACKS["kernels"] in run.unknown("overview")["why"].to_list()
    assert run.headline() == ["The traces contain no work of a host or a device"]


def test_rows_that_are_no_events_are_left_out_and_counted(tmp_path: Path) -> None:
    file = tmp_path / "memory.raw.json"
    rows: list[Any] = [[3, 1, 512, 7], [4, 9, 1, 1], [5, 1, 1, 8], [6, 1, "x", 1], [7, 1]]
    rows.insert(1, [1, 2, 3, 4, 5, 6])
    rows += [[8, 1, 1 << 60, 1], [1 << 70, 1, 1, 1], [2, 2, 64, 0]]
    file.write_text(json.dumps(rows))
    run = Analyzer(file)
    assert run.memory().curve.select("time", "allocated").rows() == [
        (1, 3),
        (2, 67),
        (3, 579),
    ]
    (problem,) = run.problems()
    assert problem.startswith(f"{file}: 6 rows that are not numbers, or out of range")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[[3, 1, 512, 7], [4, 1", "is cut off"),
        ("[[1, 2], [[0, 0, 0, 0, 0, 0, 0, 0, 0]]]", "has 2 times for 1 sizes"),
        ("[[3, 9, 512, 7]]", "has no event of an allocator"),
    ],
)
def test_damage_fails_in_one_line(content: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "memory.json"
    file.write_text(content)
    with pytest.raises(HaiprofError, match=said) as error:
        Analyzer(file)
    assert str(file) in str(error.value)


def test_a_recorded_one(tmp_path: Path) -> None:
    name = "formats/memory_analysis__memory_timeline.raw.gz"
    with tarfile.open(need(DATA / "other" / "formats.tar.xz")) as archive:
        archive.extract(name, tmp_path, filter="data")
    events = json.loads(gzip.decompress((tmp_path / name).read_bytes()))
    run = check(tmp_path / name, events)
    assert run.memory().peaks["allocated"].to_list() == [3_082_832_104]


def test_torch_s_own_of_this_machine(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    layer = torch.nn.Linear(64, 64)
    options: dict[str, Any] = {"profile_memory": True, "record_shapes": True, "with_stack": True}
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], **options) as p:
        layer(torch.rand(8, 64)).sum().backward()
    raw, curve = tmp_path / "a.raw.json.gz", tmp_path / "a.json.gz"
    for file in (raw, curve):
        p.export_memory_timeline(str(file), device="cpu")
    run = check(raw, json.loads(gzip.decompress(raw.read_bytes())))
    times, sizes = json.loads(gzip.decompress(curve.read_bytes()))
    last = {time: sum(row) for time, row in zip(times, sizes, strict=True)}
    found = Analyzer(curve).memory().curve
    assert found["allocated"][-1] == last[times[-1]] == run.memory().curve["allocated"][-1]
    assert found["allocated"].max() == max(last.values())
    assert found.filter(pl.col("allocated") < 0).height == 0
