"""The user's ranges: their kernels are those launched within them, counted one by one."""

from __future__ import annotations

from typing import Any

import hta
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_rows import kernel, span, table

from haiprof.views.trace.annotations import user_annotations
from haiprof.views.trace.linking.linked import Linked, link


def trace(spans: list[dict[str, Any]], ran: list[dict[str, Any]], device: Any = ()) -> Linked:
    return link(
        table("spans", spans), table("kernels", ran), device_spans=table("device_spans", [*device])
    )


def by_name(linked: Linked, *columns: str) -> dict[str, tuple[Any, ...]]:
    frame = user_annotations(linked).with_columns(pl.col("name").cast(pl.String))
    return {row["name"]: tuple(row[c] for c in columns) for row in frame.iter_rows(named=True)}


@pytest.fixture
def nested() -> Linked:
    """Two calls of ``block``, the first with ``inner``; its kernels run on two streams at once."""
    spans = [
        span("user", "block", 0, 100),
        span("user", "inner", 10, 50),
        span("op", "aten::mm", 12, 40),
        span("runtime", "launch", 20, 25, correlation=1),
        span("runtime", "launch", 60, 65, correlation=2),
        span("user", "block", 200, 300),
        span("runtime", "launch", 250, 255, correlation=3),
        span("runtime", "launch", 400, 405, correlation=4),
    ]
    ran = [
        kernel("a", 100, 200, stream=7, correlation=1),
        kernel("b", 150, 250, stream=8, correlation=2),
        # Of the second call, long after: the device's range of both is one with a hole.
        kernel("a", 500, 510, stream=7, correlation=3),
        kernel("outside", 600, 620, stream=7, correlation=4),
    ]
    seen = [
        {"category": "user", "name": "block", "start": start, "duration": duration,
         "device": 0, "stream": stream}
        for start, duration, stream in ((100, 100, 7), (150, 100, 8), (500, 10, 7))
    ]  # fmt: skip
    return trace(spans, ran, seen)


def test_ranges_have_what_was_launched_within_them(nested: Linked) -> None:
    columns = ("count", "host", "kernels", "kernel_time", "busy", "device_count", "device")
    assert by_name(nested, *columns) == {
        # The device's ranges, one for each stream, count the time of two streams twice.
        "block": (2, 200, 3, 210, 160, 3, 210),
        "inner": (1, 40, 1, 100, 100, None, None),
    }


def test_kernels_belong_to_the_innermost_range(nested: Linked) -> None:
    frame = user_annotations(nested, by="kernel").cast({"name": pl.String, "kernel": pl.String})
    assert frame.select("name", "kernel", "calls", "total").rows() == [
        ("block", "b", 1, 100),
        ("inner", "a", 1, 100),
        (None, "outside", 1, 20),
        ("block", "a", 1, 10),
    ]


#: Begin and length of a range; when within it something is launched, and when and how long it runs.
RANGE = st.tuples(
    st.sampled_from("xyz"), st.integers(0, 30), st.integers(1, 30),
    st.lists(st.tuples(st.integers(0, 29), st.integers(0, 40), st.integers(0, 20)), max_size=3),
)  # fmt: skip


@given(st.lists(RANGE, max_size=6))
def test_busy_is_what_painting_every_instant_gives(
    drawn: list[tuple[str, int, int, list[tuple[int, int, int]]]],
) -> None:
    spans, ran, wanted = [], [], dict[str, int]()
    for thread, (name, start, length, launches) in enumerate(drawn, 1):
        spans.append(span("user", name, start, start + length, thread=thread))
        painted = set()
        for at, wait, lasts in launches:
            number, call = len(ran) + 1, start + at % length
            spans.append(span("runtime", "l", call, call, thread=thread, correlation=number))
            ran.append(kernel("k", call + wait, call + wait + lasts, correlation=number))
            painted |= set(range(call + wait, call + wait + lasts))
        wanted[name] = wanted.get(name, 0) + len(painted)
    found = by_name(trace(spans, ran), "busy")
    assert {name: busy for name, (busy,) in found.items()} == wanted


def test_every_kernel_of_a_real_trace_is_in_one_row() -> None:
    (worker,) = hta.workers("hta_nccl_data")
    frame = user_annotations(worker.whole, by="kernel")
    assert frame["calls"].sum() == worker.whole.busy.sum()
    named = frame.filter(pl.col("name").is_not_null())
    assert 0 < named.height < frame.height


def test_without_ranges_or_kernels_there_is_nothing() -> None:
    empty = trace([], [])
    assert user_annotations(empty).height == user_annotations(empty, by="kernel").height == 0
    alone = trace([], [kernel("k", 0, 5)])
    assert user_annotations(alone, by="kernel")["name"].to_list() == [None]
