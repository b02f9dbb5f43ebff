"""What each nanosecond went to: by hand, and for any life its causes sum to its length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
from charged_lives import MS, charged, span
from hypothesis import given, settings
from hypothesis import strategies as st

from haiprof.views.run import ledger as views


def spent(found: views.Ledger) -> dict[str, float]:
    """Return the causes with any time, ms."""
    return {
        cause: ns / MS for cause, ns in zip(views.CAUSES, found.total.tolist(), strict=True) if ns
    }


def loop(steps: int, first: float = 10) -> list[Any]:
    """Return steps of 10 ms: loading 1, forward 3, backward 4, optimizer 1."""
    rows = []
    for number in range(steps):
        at = first + 10 * number
        rows += [
            span(at, 10, "step", "step", number),
            span(at, 1, "phase", "dataloader", number),
            span(at + 1, 3, "phase", "forward", number),
            span(at + 4, 4, "phase", "backward", number),
            span(at + 8, 1, "phase", "optimizer", number),
        ]
    return rows


def test_a_loop_is_charged_to_its_phases() -> None:
    found = charged(loop(5), 70)
    assert spent(found) == {
        "startup": 10, "shutdown": 10, "input": 5, "forward": 15, "backward": 20, "optimizer": 5,
        "other": 5,
    }  # fmt: skip
    assert found.group.tolist() == [0, 1, 2, 3, 4]
    assert (found.of("forward", "backward") == 7 * MS).all()


def test_the_collector_is_taken_out_of_the_phase_that_it_stops() -> None:
    found = charged([*loop(5), span(12, 2, "gc", "gc 2"), span(25, 1, "gc", "gc 0")], 70)
    assert spent(found)["collector"] == 3
    assert spent(found)["forward"] == 13
    assert spent(found)["backward"] == 19


def test_compiling_is_charged_to_itself_wherever_it_is() -> None:
    found = charged([*loop(5), span(21, 3, "compile", "f"), span(22, 1, "gc", "gc 0")], 70)
    assert spent(found)["compilation"] == 3
    assert spent(found)["forward"] == 12
    assert "collector" not in spent(found)


def test_a_step_that_compiles_for_long_does_not_hang() -> None:
    rows = loop(30)
    at = rows[-1][0] / MS + 10
    rows += [span(at, 3000, "step", "step", 30), span(at, 2990, "compile", "f", 30)]
    assert spent(charged(rows, at + 3010))["compilation"] == 2990
    assert "hang" not in spent(charged(rows, at + 3010))
    assert "hang" in spent(charged(rows[:-1], at + 3010))


def test_waiting_is_charged_to_the_rank_that_came_last_and_the_rest_to_the_transfer() -> None:
    sync = [span(10 * n + 16, 2, "phase", "gradient_sync", n) for n in range(5)]
    late = [(15 + 10 * n, 17 + 10 * n, 18 + 10 * n, 3) for n in range(5)]
    found = charged([*loop(5), *sync], 70, pending=late)
    assert spent(found)["waiting"] == 5
    assert spent(found)["transfer"] == 5
    assert spent(found)["backward"] == 10
    assert found.culprits.keys() == {3}
    assert (found.culprits[3] == MS).all()
    rows = views.rows(found)
    assert rows.filter(pl.col("cause") == "waiting").row(0) == ("waiting", 3, 5 * MS, 5 / 70, None)


def test_ranges_between_the_phases_are_parts_of_other() -> None:
    rows = []
    for n in range(5):
        at = 10 + 10 * n
        rows += [
            span(at, 10, "user", "whole step", n),  # has phases in it
            span(at + 2, 1, "user", "in forward", n),
            span(at + 9, 0.5, "user", "metrics", n),
            span(at + 9.1, 0.2, "user", "recall", n),  # is in another one
            span(at + 9.5, 0.25, "user", "log", n),
        ]
    found = charged([*loop(5), *rows], 70)
    assert spent(found)["other"] == 5
    assert {name: ns.tolist() for name, ns in found.parts.items()} == {
        "metrics": [MS // 2] * 5, "log": [MS // 4] * 5,
    }  # fmt: skip
    other = views.rows(found, {"is not asked": 0.5}).filter(pl.col("cause") == "other")
    assert other.select("part", "duration").rows() == [
        ("metrics", 5 * MS // 2), ("log", 5 * MS // 4), (None, 5 * MS // 4),
    ]  # fmt: skip
    (wide,) = (views._widened(found, 4),)
    assert wide.parts["metrics"].tolist() == [2 * MS, MS // 2]


def test_a_range_has_no_more_of_other_than_the_thread_ran() -> None:
    rows = [span(10 * n + 19, 1, "user", "metrics", n) for n in range(5)]
    found = charged([*loop(5), *rows], 70, queue=[(10, 0), (60, 20)])
    assert found.parts["metrics"].sum() == found.spent("other") < 5 * MS


def test_stacks_share_out_what_no_range_names() -> None:
    found = views.rows(charged(loop(5), 70), {"framework (lightning)": 0.75, "f (a.py)": 0.2})
    other = found.filter(pl.col("cause") == "other").select("part", "duration")
    assert other.rows() == [
        ("framework (lightning)", 3_750_000), ("f (a.py)", MS), (None, 250_000),
    ]  # fmt: skip
    assert found["duration"].sum() == 70 * MS


def test_stacks_share_out_the_rest_of_what_trackers_take() -> None:
    rows = [span(19 + 10 * n, 0.5, "user", "logging.wandb", n) for n in range(5)]
    found = views.rows(charged([*loop(5), *rows], 70), {"f (a.py)": 0.4})
    other = found.filter(pl.col("cause") == "other").select("part", "duration")
    assert other.rows() == [
        ("logging.wandb", 5 * MS // 2), (None, 3 * MS // 2), ("f (a.py)", MS),
    ]  # fmt: skip


def test_gradients_zeroed_before_backward_are_the_optimizers() -> None:
    found = charged([*loop(5), *(span(10 * n + 13, 1, "phase", "optimizer") for n in range(5))], 70)
    assert spent(found)["optimizer"] == 10
    assert spent(found)["forward"] == 10


def test_blocked_in_what_nobody_else_recorded_is_unmatched() -> None:
    found = charged(loop(2), 40, waits=[(21, 23)], pending=[(21, None, 23, None)])
    assert spent(found)["unmatched"] == 2


def test_a_thread_that_is_not_blocked_does_not_wait() -> None:
    found = charged(loop(2), 40, pending=[(11, 19, 19.5, 1)])
    assert "waiting" not in spent(found)
    assert "transfer" not in spent(found)


def test_the_queue_of_a_cpu_is_taken_out_of_what_would_have_run() -> None:
    found = charged(loop(5), 70, queue=[(10, 0), (60, 20)])
    assert abs(spent(found)["cpu_queue"] - 10) < 1e-3
    assert abs(spent(found)["backward"] - 16) < 1e-3
    assert spent(found)["startup"] == 10


def test_waiting_is_not_in_the_queue() -> None:
    whole = [(10, 60)]
    found = charged(loop(5), 70, waits=whole, queue=[(10, 0), (60, 100)])
    assert "cpu_queue" in spent(found)
    assert spent(found)["unmatched"] == 45


def test_what_a_crash_made_useless_is_what_it_was() -> None:
    found = charged(loop(5), 65, died=True, loses=False)
    assert spent(found)["forward"] == 15
    assert spent(found)["lost"] == 5


def test_a_life_without_steps_is_a_start() -> None:
    assert spent(charged([], 30)) == {"startup": 30}


def test_an_empty_life_has_nothing() -> None:
    found = charged([], 0)
    assert not found.total.any()
    assert found.cause_at(np.array([0, 5])).tolist() == [-1, -1]


def test_the_cause_at_a_time() -> None:
    found = charged(loop(2), 40)
    at = np.array([-1, 5, 10, 12, 15, 18, 19, 35, 40]) * MS
    names = [views.CAUSES[code] if code >= 0 else None for code in found.cause_at(at).tolist()]
    assert names == [
        None, "startup", "input", "forward", "backward", "optimizer", "other", "shutdown", None,
    ]  # fmt: skip


def test_a_long_life_is_added_up_by_groups_that_nest() -> None:
    one, other = (charged(loop(n), 10 * n + 20) for n in (8, 8))
    shared, wide = views.together([views._widened(one, 4), other])
    assert shared.tolist() == [0, 1]
    for each in wide:
        assert each.width == 4
        assert each.duration.tolist() == [40 * MS, 40 * MS]
        assert each.count.tolist() == [4, 4]


SPAN = st.tuples(
    st.integers(-5, 60),
    st.integers(-2, 30),
    st.sampled_from(
        [
            ("phase", "forward"), ("phase", "backward"), ("phase", "optimizer"),
            ("phase", "gradient_sync"), ("phase", "recompute"), ("phase", "dataloader"),
            ("phase", "eval"), ("phase", "deep_trace"), ("gc", "gc 0"), ("compile", "f"),
            ("checkpoint", "checkpoint.save"), ("checkpoint", "checkpoint.load"), ("step", "step"),
            ("user", "metrics"), ("user", "log"),
        ]
    ),
    st.one_of(st.none(), st.integers(0, 5)),
)  # fmt: skip
PAIR = st.tuples(st.integers(-5, 60), st.integers(-5, 60))
ASKED = st.tuples(
    st.integers(-5, 60),
    st.one_of(st.none(), st.integers(-5, 70)),
    st.one_of(st.none(), st.integers(-5, 70)),
    st.one_of(st.none(), st.integers(0, 3)),
)


@settings(max_examples=300)
@given(
    st.lists(SPAN, max_size=25),
    st.integers(0, 60),
    st.lists(PAIR, max_size=6),
    st.lists(ASKED, max_size=6),
    st.lists(st.tuples(st.integers(-5, 70), st.floats(-10, 300)), max_size=6),
    st.booleans(),
    st.booleans(),
)
def test_causes_sum_to_the_life_and_to_each_step(
    rows: Sequence[tuple[int, int, tuple[str, str], int | None]],
    end: int,
    waits: Sequence[tuple[int, int]],
    pending: Sequence[tuple[int, int | None, int | None, int | None]],
    queue: Sequence[tuple[int, float]],
    died: bool,
    live: bool,
) -> None:
    spans = [span(start, duration, *what, step) for start, duration, what, step in rows]
    found = charged(spans, end, waits, pending, queue, died=died, live=live)
    assert (found.total >= 0).all()
    for ns in found.culprits.values():
        assert (ns <= found.of("waiting")).all()
    assert (sum(found.parts.values(), np.int64(0)) <= found.of("other")).all()
    rest = found.total - found.causes.sum(0)
    assert (rest >= 0).all()
