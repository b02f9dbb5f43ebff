"""Overlap of communication and computation: HTA's, the events' own, and against brute force."""

from __future__ import annotations

import hta
import pytest
import traces
from hypothesis import given
from hypothesis import strategies as st
from trace_frames import kernels_of, spans_of

from haiprof.views.trace.linking.linked import link
from haiprof.views.trace.overlap import overlap


@pytest.mark.parametrize(("run", "last"), hta.cases("comm_comp_overlap"))
def test_is_htas_on_what_hta_sees(run: str, last: bool) -> None:
    for worker in hta.workers(run):
        found = overlap(worker.seen(last))["ratio"].drop_nulls().to_list()
        theirs = [
            row["comp_comm_overlap_pctg"]
            for row in hta.result(run, "comm_comp_overlap", last) or ()
            if row["rank"] == worker.rank
        ]
        # HTA writes percent with two digits, and nothing if there is no communication.
        percent = [round(100 * ratio, 2) for ratio in found] or [None]
        assert percent == (theirs or [None])


@pytest.mark.parametrize("run", traces.runs())
def test_is_what_the_events_say(run: str) -> None:
    for worker in hta.workers(run):
        kernels = hta.activities(worker, "kernel")
        moving = [(s, e) for s, e, name in kernels if hta.communicates(name)]
        computing = [(s, e) for s, e, name in kernels if not hta.communicates(name)]
        both = hta.union(moving) + hta.union(computing) - hta.union([*moving, *computing])
        for row in overlap(worker.whole).rows(named=True):
            assert row["communication"] == hta.union(moving)
            assert row["computation"] == hta.union(computing)
            assert row["overlap"] == both
            assert hta.close(row["ratio"], both / hta.union(moving) if moving else None)


piece = st.tuples(st.integers(0, 30), st.integers(0, 10), st.booleans())


@given(st.lists(piece, max_size=12))
def test_overlap_is_the_time_in_which_both_ran(drawn: list[tuple[int, int, bool]]) -> None:
    kernels = kernels_of(
        [
            {"start": s, "duration": d, "name": "ncclDevKernel_AllReduce" if moves else "gemm"}
            for s, d, moves in drawn
        ]
    )
    found = overlap(link(spans_of([]), kernels))
    moving = {t for s, d, moves in drawn if moves for t in range(s, s + d)}
    computing = {t for s, d, moves in drawn if not moves for t in range(s, s + d)}
    if not drawn:
        assert found.height == 0
        return
    (row,) = found.rows(named=True)
    assert row["overlap"] == len(moving & computing)
    assert row["ratio"] == (len(moving & computing) / len(moving) if moving else None)
