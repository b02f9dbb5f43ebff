"""Steps are taken from spans as they are written, in order, and once."""

from __future__ import annotations

import pyarrow as pa

from haiprof import _core
from haiprof.recorder.new_steps import NewSteps


def spans(*rows: tuple[int, int, str]) -> pa.RecordBatch:
    codes = [_core.CATEGORIES.index(category) for _, _, category in rows]
    categories = pa.DictionaryArray.from_arrays(pa.array(codes, pa.uint32()), _core.CATEGORIES)
    columns = [pa.array([row[n] for row in rows], pa.int64()) for n in range(2)]
    return pa.RecordBatch.from_arrays([*columns, categories], ["start", "duration", "category"])


def test_steps_are_taken_once() -> None:
    steps = NewSteps()
    steps.read(spans((20, 5, "step"), (10, 9, "step"), (21, 1, "phase"), (0, 9, "inference_step")))
    steps.read(spans((30, 1, "phase")))
    assert steps.take() == [(10, 9), (20, 5)]
    assert steps.take() == []
    steps.read(spans((30, 1, "step")))
    assert steps.take() == [(30, 1)]
