"""Bandwidth of copies: HTA's where the file's own numbers are there, and against brute force."""

from __future__ import annotations

import dataclasses

import hta
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_frames import kernels_of, spans_of

from haiprof.views.trace.bandwidth import bandwidth, summary
from haiprof.views.trace.linking.linked import Linked, link


def as_long_as_hta_has_them(linked: Linked) -> Linked:
    """The trace with copies that HTA rounds to no time lasting a microsecond, as it has them."""
    least = pl.when(pl.col("duration") == 0).then(pl.col("start") + 1000).otherwise("end")
    return dataclasses.replace(linked, activities=linked.activities.with_columns(end=least))


#: Where HTA is wrong even with the file's numbers and times rounded its way, and why.
WRONG = {
    ("hta_df_index_resolver", "Memcpy DtoD", True): "copies that touch count as at the same time",
    ("hta_ns_resolution", "Memcpy DtoD", False): "the error of a sum of floats is bandwidth",
    ("hta_ns_resolution", "Memcpy DtoD", True): "copies that touch count as at the same time",
    ("hta_trace_diff_test", "Memcpy DtoD", False): "copies that touch are at the same time, and "
    "the error of the sum is bandwidth",
    ("hta_trace_diff_test", "Memcpy DtoD", True): "the same",
    ("param_resnet", "Memcpy DtoD", False): "copies that touch count as at the same time",
    ("param_resnet", "Memset", False): "the same",
    ("tl_mi300_resnet_act_checkpoint", "Memcpy DtoD", False): "rounding makes copies of negative "
    "length",
    ("tl_mi300_resnet_act_checkpoint", "Memcpy DtoD", True): "the same",
}

#: Traces for which HTA reports nothing, and why.
NOTHING = {
    "hta_amd_mi250": "the file tells no bandwidth; bytes by duration are given",
    "hta_cpu_only": "no device",
    "hta_cupti_counters": "no activity was recorded, only ranges of counters",
    "hta_mtia_inference": "the file tells no bandwidth, and copies count as kernels",
    "hta_triton": "no copies",
    "tl_mi210_gpu_only": "no copies",
}


@pytest.mark.parametrize(("run", "last"), hta.cases("memory_bw_summary"))
def test_is_htas_with_the_bandwidth_that_the_file_tells(run: str, last: bool) -> None:
    theirs = hta.result(run, "memory_bw_summary", last) or ()
    assert (not theirs) is (run in NOTHING)
    for worker in hta.workers(run):
        seen = as_long_as_hta_has_them(worker.seen(last))
        found = {row["kind"]: row for row in summary(bandwidth(seen)).rows(named=True)}
        for row in (row for row in theirs if row["rank"] == worker.rank):
            kind = row["name"].replace("Memcpy ", "").replace("Memset", "memset")
            mine = found.get(kind)
            equal = mine is not None and all(
                hta.close(mine[name], row[f"memory_bw_gbps.{its}"])
                for name, its in (("count", "count"), ("mean", "mean"), ("std", "std"),
                                  ("min", "min"), ("p25", "25%"), ("p50", "50%"), ("p75", "75%"),
                                  ("max", "max"))
            )  # fmt: skip
            assert equal is ((run, row["name"], last) not in WRONG), (mine, row)


piece = st.tuples(st.integers(0, 20), st.integers(0, 6), st.integers(1, 9))


@given(st.lists(piece, max_size=8))
def test_copies_at_the_same_time_add_up_and_none_is_none(drawn: list[tuple[int, int, int]]) -> None:
    kernels = kernels_of(
        [
            {"start": s, "duration": d, "bytes": d * speed, "kind": "memcpy", "copy_kind": "HtoD"}
            for s, d, speed in drawn
        ]
    )
    series = bandwidth(link(spans_of([]), kernels))
    final = dict(zip(series["time"].to_list(), series["bandwidth"].to_list(), strict=True))
    for time, speed in final.items():
        assert speed == pytest.approx(sum(v for s, d, v in drawn if s <= time < s + d))
    assert series.height == 2 * sum(d > 0 for _, d, _ in drawn)
    if series.height:
        assert series["bandwidth"][-1] == 0.0


def test_kinds_and_devices_are_apart() -> None:
    copy = {"start": 0, "duration": 10, "bytes": 100, "kind": "memcpy"}
    kernels = kernels_of(
        [
            {**copy, "copy_kind": "HtoD"},
            {**copy, "copy_kind": "HtoD", "device": 1},
            {**copy, "copy_kind": None},
            {**copy, "kind": "memset"},
            {**copy, "copy_kind": "DtoH", "bytes": None},
        ]
    )
    found = summary(bandwidth(link(spans_of([]), kernels)))
    assert found.select("device", "kind", "mean").rows() == [
        (0, "HtoD", 10.0),
        (0, "memcpy", 10.0),
        (0, "memset", 10.0),
        (1, "HtoD", 10.0),
    ]
