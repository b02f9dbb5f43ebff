"""Steps and what they were spent on, from rows of ``step_parts`` as they are written.

Tests: tests/recorder/test_figures.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from haiprof import _core
from haiprof.recorder.arrow_stream import Batch

_KINDS: Final = _core.PART_KINDS
_STEPS: Final = ("step", "inference_step")
#: Of a step: all else is of a device, or in a step or not.
_OF_STEP: Final = ("phase", "user", "gc", "wait", "other")


class Part(NamedTuple):
    """A row.

    Attributes:
        row: its number in the batch.
        kind: one of ``PART_KINDS``.
        name: of the phase, range or operation.
        duration: ns.
    """

    row: int
    kind: str
    name: str
    duration: int


class Step(NamedTuple):
    """A step.

    Attributes:
        whole: the step itself.
        parts: of it, on the host.
    """

    whole: Part
    parts: list[Part]


def parts_of(batch: Batch) -> Iterator[Part]:
    """Return the rows of a batch; those of kinds that are not known are left out."""
    names = batch.column("name").texts
    assert names is not None
    columns = (batch.numbers(name) for name in ("kind", "name", "duration"))
    for row, (kind, name, duration) in enumerate(zip(*columns, strict=True)):
        if kind < len(_KINDS):
            yield Part(row, _KINDS[kind], names.all[name], duration)


def steps_of(batch: Batch) -> list[Step]:
    """Return the steps of a batch, in their order: the rows of a step follow its own."""
    steps: list[Step] = []
    for part in parts_of(batch):
        if part.kind in _STEPS:
            steps.append(Step(part, []))
        elif part.kind in _OF_STEP and steps:
            steps[-1].parts.append(part)
    return steps
