"""How a process gets further, from the columns of a ring."""

from __future__ import annotations

import array

from haiprof import _core
from haiprof.common.advance import Advance

SECOND = 10**9


def spans(*rows: tuple[str, float, float]) -> dict[str, tuple[int, int, bytes, bytes | None]]:
    """Return columns: category, start and duration, s, of each span."""
    columns = {
        "category": array.array("I", [_core.CATEGORIES.index(name) for name, _, _ in rows]),
        "start": array.array("q", [int(start * SECOND) for _, start, _ in rows]),
        "duration": array.array("q", [int(lasts * SECOND) for _, _, lasts in rows]),
    }
    return {name: (len(rows), 0, values.tobytes(), None) for name, values in columns.items()}


def test_the_first_steps_and_spans_of_other_kinds_do_not_count() -> None:
    advance = Advance()
    assert advance.standing(SECOND) is None
    advance.read({})
    advance.read(spans(("step", 0, 100), ("step", 100, 300)))
    assert advance.standing(500 * SECOND) is None
    advance.read(spans(("gc", 401, 1), ("step", 400, 3), ("phase", 403, 2)))
    first = advance.standing(410 * SECOND)
    assert first is not None
    assert (first.age_s, first.longest_s) == (5.0, 2.0)
    advance.read(spans(("gc", 406, 9)))
    assert advance.standing(410 * SECOND) == first
    advance.read(spans(("inference_step", 405, 7)))
    later = advance.standing(413 * SECOND)
    assert later is not None
    assert (later.age_s, later.longest_s) == (1.0, 7.0)
    assert later.number != first.number


def test_steps_of_training_are_counted_or_else_those_of_inference() -> None:
    advance = Advance()
    assert advance.steps == 0
    advance.read(spans(("inference_step", 0, 1), ("phase", 1, 1), ("inference_step", 2, 1)))
    assert advance.steps == 2
    advance.read(spans(("step", 3, 1)))
    assert advance.steps == 1


def test_steps_are_taken_once_and_in_order_by_whoever_asks_for_them() -> None:
    advance = Advance()
    advance.read(spans(("step", 0, 1)))
    assert advance.take_steps() == []
    rows = [("step", 20, 5), ("step", 10, 9), ("phase", 21, 1), ("inference_step", 0, 9)]
    advance.read(spans(*rows))
    advance.read(spans(("phase", 30, 1)))
    assert advance.take_steps() == [(10 * SECOND, 9 * SECOND), (20 * SECOND, 5 * SECOND)]
    assert advance.take_steps() == []
