"""What the steps of one process were spent on, as arrays: for questions about very many ranks.

The same as :mod:`haiprof.views.run.steps` has in frames. Times are int64 ns UTC, durations ns.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from haiprof.sources.arrays import NONE, Arrays, Texts
from haiprof.views.intervals import Index, Times, covered_per_group, distinct, innermost, self_times

#: Name of the part of a step that no phase covers.
OTHER: Final = "other"
#: The start and the end of a part that is no span.
NEVER: Final = np.iinfo(np.int64).min

DATALOADER: Final = "dataloader"
BACKWARD: Final = "backward"
#: Waiting for other ranks' gradients.
SYNC: Final = "gradient_sync"


class Steps(NamedTuple):
    """The complete steps, by their starts; ``number`` is -1 where a step has none."""

    number: Times
    start: Times
    duration: Times

    @property
    def end(self) -> Times:
        """When each ended."""
        return self.start + self.duration


class Parts(NamedTuple):
    """The parts of steps: of each its step's ``row``, its ``name`` (of ``names``), its duration.

    Parts of one step and name may be several.
    """

    row: Index
    name: Index
    duration: Times
    names: list[str]


class PartTable(NamedTuple):
    """The parts of numbered steps: a row of each array is a step, a column a part.

    ``start`` and ``end`` are those of the last span of the part; :data:`NEVER` if it is no span.
    """

    steps: Times
    names: list[str]
    duration: Times
    start: Times
    end: Times


def steps(spans: Arrays) -> Steps:
    """Return the complete steps of spans."""
    mine = spans.texts["category"].among("step")
    start = spans.numbers["start"][mine]
    order = np.argsort(start, kind="stable")
    duration = np.maximum(spans.numbers["duration"][mine], 0)
    return Steps(spans.numbers["step"][mine][order], start[order], duration[order])


def step_of(number: Times, start: Times, end: Times, found: Steps) -> Index:
    """For each span the row of its step, or -1: by its number; without one, by when it started."""
    step_end = found.end
    step_number = np.where(found.number == NONE, NONE - 1, found.number)
    by_time = np.searchsorted(found.start, start, side="right") - 1
    in_time = (by_time >= 0) & (start < step_end[by_time])
    by_number = np.argsort(step_number, kind="stable")
    ordered = step_number[by_number]
    if len(ordered) > 1 and np.any(ordered[1:] == ordered[:-1]):
        # The job restarted its count: only the time distinguishes two steps of one number.
        agrees = (number == NONE) | (number == step_number[by_time])
        return np.where(in_time & agrees, by_time, -1)
    place = np.minimum(np.searchsorted(ordered, number), len(ordered) - 1)
    row = np.where(ordered[place] == number, by_number[place], -1)
    # What ended before its step began was only thought to be a part of it: a trial run.
    row = np.where((row >= 0) & (end <= found.start[row]), -1, row)
    return np.where(number == NONE, np.where(in_time, by_time, -1), row)


def self_times_by_thread(
    start: Times, end: Times, thread: Index, is_phase: npt.NDArray[np.bool_]
) -> Times:
    """Return how long each span was the innermost one among those of its thread and kind."""
    own = np.zeros(len(start), np.int64)
    lane = thread.astype(np.int64) * 2 + is_phase
    for key in distinct(lane):
        rows = np.flatnonzero(lane == key)
        own[rows] = self_times(start[rows], end[rows])
    return own


def parts(spans: Arrays, found: Steps) -> Parts:
    """Return the disjoint parts of each step, as :func:`haiprof.views.run.steps.parts` does."""
    if not len(found.start):
        none = np.zeros(0, np.int64)
        return Parts(none, none, none, [])
    category = spans.texts["category"]
    is_phase = category.among("phase")
    kept = is_phase | category.among("user")
    is_phase, low, high = is_phase[kept], found.start, found.end
    start = spans.numbers["start"][kept]
    end = start + np.maximum(spans.numbers["duration"][kept], 0)
    which = step_of(spans.numbers["step"][kept], start, end, found)
    inside = which >= 0
    # A recording that stops in the middle of a phase ends the step, too, but not the phase.
    begin, until = (
        np.where(inside, np.clip(at, low[which], high[which]), at) for at in (start, end)
    )
    own = self_times_by_thread(begin, until, spans.numbers["thread"][kept], is_phase)
    has_phase = np.zeros(len(low), np.bool_)
    has_phase[which[inside & is_phase]] = True
    counts = np.flatnonzero(inside)
    counts = counts[is_phase[counts] | ~has_phase[which[counts]]]
    rest = high - low - covered_per_group(which[counts], start[counts], end[counts], low, high)
    name = spans.texts["name"].where(kept)
    names = [*dict.fromkeys([*name.words, OTHER])]
    return Parts(
        np.concatenate((which[counts], np.arange(len(low)))),
        np.concatenate((name.codes[counts], np.full(len(low), names.index(OTHER)))),
        np.concatenate((own[counts], rest)),
        names,
    )


def sums(found: Parts) -> dict[str, int]:
    """Return how long each part took over all steps, by name."""
    several = np.bincount(found.name, minlength=len(found.names)).tolist()
    total = np.zeros(len(found.names), np.int64)
    np.add.at(total, found.name, found.duration)
    named = zip(found.names, several, total.tolist(), strict=True)
    return {name: ns for name, count, ns in named if count}


def part_table(
    spans: Arrays, device: Arrays, most: int, known: tuple[Steps, Parts] | None = None
) -> PartTable:
    """Return the parts of at most so many steps: of the host, or of its GPU if that has phases.

    On a GPU the phases are those of its main stream; the time between them belongs to the
    DataLoader as far as the host waited for it, else to ``other``. ``backward`` ends where the
    waiting for other ranks' gradients begins, which is the part ``gradient_sync``.

    Args:
        spans: of the host: the columns of :data:`haiprof.views.run.steps.COLUMNS`.
        device: device phases: ``start``, ``duration``, ``name``, ``device`` and ``step``.
        most: see :func:`thinned`.
        known: the steps and parts of the spans, where these are known already.
    """
    host = _of_host(spans, known)
    whole = _of_device(host, device) if device.rows else host
    kept = thinned(whole.steps, most)
    return PartTable(whole.steps[kept], whole.names, *(each[kept] for each in whole[2:]))


def thinned(numbers: Times, most: int) -> npt.NDArray[np.bool_]:
    """Say which of some steps to keep: at most so many, evenly spread.

    Every second step, fourth, and so on, so that ranks with more and with fewer steps keep the same
    ones; never the even ones, at which jobs do their occasional work.
    """
    stride = 1
    while len(numbers) > most * stride:
        stride *= 2
    kept: npt.NDArray[np.bool_] = numbers % stride == stride - 1
    return kept


def _of_host(spans: Arrays, known: tuple[Steps, Parts] | None) -> PartTable:
    found = steps(spans) if known is None else known[0]
    # If the count restarted, the later step.
    numbered = np.flatnonzero(found.number != NONE)
    numbers, last = np.unique(found.number[numbered][::-1], return_index=True)
    rows = np.sort(numbered[::-1][last])
    if known is not None and len(rows) == len(found.number):
        split = known[1]
    else:
        found = Steps(*(each[rows] for each in found))
        split = parts(spans, found)
    place = np.searchsorted(numbers, found.number)
    table = _empty(numbers, split.names)
    if len(split.row):
        row = place[split.row]
        np.add.at(table.duration, (row, split.name), split.duration)
        phase = spans.texts["category"].among("phase") & (spans.numbers["step"] != NONE)
        its = spans.where(phase)
        start = its.numbers["start"]
        there = np.zeros(table.duration.shape, np.bool_)
        there[row, split.name] = True
        _put_last(table, its.numbers["step"], its.texts["name"], start,
                  start + its.numbers["duration"], there)  # fmt: skip
    return _without_absent(table, split.name)


def _of_device(host: PartTable, device: Arrays) -> PartTable:
    """Return the parts of the steps of the first GPU of a process."""
    mine = device.where(device.numbers["device"] == device.numbers["device"].min())
    start = mine.numbers["start"]
    low, high, owner = innermost(start, start + mine.numbers["duration"])
    if not len(owner):  # nothing of it lasted
        return host
    number, name = mine.numbers["step"][owner], mine.texts["name"].where(owner)
    # A step of a device lasts from the end of the step before to the end of its own last phase.
    first = np.flatnonzero(np.concatenate(([True], number[1:] != number[:-1])))
    of, until = number[first], high[np.concatenate((first[1:] - 1, [len(high) - 1]))]
    follows = np.zeros(len(of), np.bool_)
    follows[1:] = (of[1:] == of[:-1] + 1) & (of[:-1] != NONE)
    begun = np.where(follows, np.concatenate(([0], until[:-1])), low[first])
    known = of != NONE
    numbers, row = np.unique(of[known], return_inverse=True)
    whole = np.zeros(len(numbers), np.int64)
    np.add.at(whole, row, (until - begun)[known])
    names = [*dict.fromkeys([*name.words, DATALOADER, OTHER])]
    table = _empty(numbers, names)
    stepped = number != NONE
    at = np.searchsorted(numbers, number[stepped])
    np.add.at(table.duration, (at, name.codes[stepped]), (high - low)[stepped])
    there = np.zeros(table.duration.shape, np.bool_)
    there[at, name.codes[stepped]] = True
    _put_last(table, number[stepped], name.where(stepped), low[stepped], high[stepped], there)
    rest = np.maximum(whole - table.duration.sum(1), 0)
    waited = np.zeros(len(numbers), np.int64)
    if DATALOADER in host.names and len(host.steps):
        place = np.minimum(np.searchsorted(host.steps, numbers), len(host.steps) - 1)
        its = host.duration[place, host.names.index(DATALOADER)]
        waited = np.where(host.steps[place] == numbers, its, 0)
    waited = np.minimum(rest, waited)
    for part, took in ((DATALOADER, waited), (OTHER, rest - waited)):
        table.duration[:, names.index(part)] += took
    codes = [names.index(DATALOADER), names.index(OTHER)]
    return _without_absent(table, np.concatenate((name.codes[stepped], codes)))


def _put_last(
    table: PartTable, number: Times, name: Texts, start: Times, end: Times,
    there: npt.NDArray[np.bool_],
) -> None:  # fmt: skip
    """Put in when the last span of each part of each step began and ended."""
    place = np.minimum(np.searchsorted(table.steps, number), len(table.steps) - 1)
    order = np.argsort(start, kind="stable")
    order = order[(table.steps[place] == number)[order]]
    row, code, begun, until = place[order], name.codes[order], start[order], end[order]
    words = np.array([table.names.index(word) for word in name.words], np.int64)
    column = words[code] if len(words) else code
    waits = np.full(len(table.steps), np.iinfo(np.int64).max)
    for part in name.words:
        if part == SYNC:
            mine = column == table.names.index(SYNC)
            waits[row[mine]] = np.iinfo(np.int64).min
            np.maximum.at(waits, row[mine], begun[mine])
    if BACKWARD in name.words:
        backward = column == table.names.index(BACKWARD)
        until = np.where(backward, np.minimum(until, waits[row]), until)
        # The rest of backward after the waiting is not a backward of its own.
        own = ~backward | (begun < waits[row])
        row, column, begun, until = row[own], column[own], begun[own], until[own]
    cell, last = np.unique((row * len(table.names) + column)[::-1], return_index=True)
    row, column = np.divmod(cell, len(table.names))
    begun, until = begun[::-1][last], until[::-1][last]
    some = there[row, column]
    table.start[row[some], column[some]] = begun[some]
    table.end[row[some], column[some]] = until[some]


def _empty(numbers: Times, names: list[str]) -> PartTable:
    shape = (len(numbers), len(names))
    return PartTable(
        numbers, names, np.zeros(shape, np.int64), np.full(shape, NEVER), np.full(shape, NEVER)
    )


def _without_absent(table: PartTable, used: Index) -> PartTable:
    """Leave out the parts that no step has, and put the others in the order of their names."""
    there = np.flatnonzero(np.bincount(used, minlength=len(table.names)))
    names = [table.names[column] for column in there]
    order = sorted(range(len(names)), key=names.__getitem__)
    columns = there[order]
    return PartTable(
        table.steps,
        [names[n] for n in order],
        *(each[:, columns] for each in table[2:]),
    )
