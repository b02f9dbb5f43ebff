"""What a job's whole life was spent on, over all attempts and ranks, and how much of it trained.

Each instant from the first process's start to the last one's end belongs to exactly one part, so
the parts sum to the wall-clock time, to the nanosecond:

========== =====================================================================================
down       between two attempts: a rank has no process
startup    from the start of a process to its first step, and the excess of the first step over
           the others (compilation), if that exceeds the threshold for a hang
load       loading checkpoints
save       saving checkpoints, as far as the training thread waits for it
evaluation evaluating, its data included
data       the training loop waits for its DataLoader
hang       no step ends for far longer than usual: a step's time outside the parts above, and not
           spent on compiling, beyond the median, if it is over ten times the median and over a
           second more
lost       training whose result was lost: in a process that did not end in order or that another
           attempt follows, after the beginning of the last checkpoint saved in its life, including
           the interrupted step, and the wait of up to a minute for the launcher to end the others
           once one has failed
shutdown   from the last step to the end of a process that ends in order
other      a process is alive but in none of these, or was not recorded
productive the rest of the steps: training that was kept
========== =====================================================================================

**ETTR** (effective training time ratio) is ``productive / wall``: Kokolis et al., "Revisiting
Reliability in Large-Scale Machine Learning Research Clusters" (arXiv 2410.21680), where the wall
time includes the time in the queue, which is not known here. "Goodput" of ml-goodput-measurement
(Google) is the same ratio with the time since the job's submission. Evaluation is not in it.

Of several ranks, the run is productive while all of them are. Any other instant belongs to the
first part of the table above that any rank is in.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from haiprof.sources.arrays import Arrays
from haiprof.views.intervals import Times, covered, distinct, merge
from haiprof.views.run import step_parts

#: The parts; on a run's line, each takes precedence over the later ones.
PARTS: Final = (
    "down",
    "startup",
    "load",
    "save",
    "evaluation",
    "data",
    "hang",
    "lost",
    "shutdown",
    "other",
    "productive",
)
_CODE: Final = {name: code for code, name in enumerate(PARTS)}

#: Columns and categories of spans that these views need.
COLUMNS: Final = ("start", "duration", "category", "name", "thread", "step")
CATEGORIES: Final = ("step", "phase", "checkpoint", "compile")
_PHASES: Final = {"data": ("dataloader",), "evaluation": ("eval", "eval_dataloader")}
_SAVE: Final = "checkpoint.save"
_CHECKPOINTS: Final = {"load": ("checkpoint.load",), "save": (_SAVE, "checkpoint.async_save")}
#: A step hangs that takes this many medians, and this much more than one.
_HANG_TIMES: Final = 10
_HANG_NS: Final = 1_000_000_000
#: Once a rank has failed, launchers end the others within this time: that is no hang.
_ENDING_NS: Final = 60 * 1_000_000_000

TIMELINE_SCHEMA: Final = {"start": pl.Int64(), "duration": pl.Int64(), "part": pl.String()}


class Life(NamedTuple):
    """The time in which a process lived (ns UTC), and what became of its work.

    ``loses``: it died or another attempt followed, so that only training before ``kept`` (None:
    none) was of use. ``ran_before``: it was already running at the beginning, where recording
    began (again). ``live``: it is still running. ``died``: it did not end in order, so the time
    after its last step is not shutdown. ``failed``: when the first rank of its attempt failed;
    None: none did.
    """

    begin: int
    end: int
    loses: bool = False
    kept: int | None = None
    ran_before: bool = False
    live: bool = False
    died: bool = False
    failed: int | None = None


def decisive(life: Life) -> Life:
    """Return a life without what makes no difference to the time line of its process."""
    if not life.loses:
        life = life._replace(kept=None)
    return life if life.died or life.live else life._replace(failed=None)


class Pieces(NamedTuple):
    """A time line: ``code`` (index into :data:`PARTS`) from each ``start`` to the next, or end."""

    start: Times
    code: npt.NDArray[np.int8]
    end: int


class Packed(NamedTuple):
    """A time line in less memory: ``gap`` (ns) from each start to the next one or the end."""

    begin: int
    gap: Times | npt.NDArray[np.uint32]
    code: npt.NDArray[np.int8]


def packed(line: Pieces) -> Packed:
    """Return a time line in less memory; :func:`unpacked` returns the same one again."""
    gap = np.diff(np.append(line.start, line.end))
    if len(gap) and gap.max() <= np.iinfo(np.uint32).max:
        gap = gap.astype(np.uint32)
    return Packed(int(line.start[0]) if len(gap) else line.end, gap, line.code)


def unpacked(line: Packed) -> Pieces:
    """Return a time line that was packed."""
    ends = line.begin + np.cumsum(line.gap, dtype=np.int64)
    start = np.append(np.int64(line.begin), ends[:-1])[: len(line.gap)]
    return Pieces(start, line.code, int(ends[-1]) if len(ends) else line.begin)


def count(spans: Arrays) -> int:
    """Return how many steps there are."""
    return int(np.count_nonzero(spans.texts["category"].among("step")))


def saves(spans: Arrays) -> Times:
    """Return the beginnings of the checkpoints that were saved, ascending, ns UTC."""
    mine = spans.texts["category"].among("checkpoint") & spans.texts["name"].among(_SAVE)
    begun: Times = np.sort(spans.numbers["start"][mine])
    return begun


def last_end(spans: Arrays) -> int | None:
    """Return when the last span ended, ns UTC; None without spans."""
    if not spans.rows:
        return None
    return int((spans.numbers["start"] + spans.numbers["duration"]).max())


def pieces(spans: Arrays, life: Life) -> Pieces:
    """Return the time line of one process.

    Args:
        spans: the columns of :data:`COLUMNS`, of the :data:`CATEGORIES`.
        life: when it lived.
    """
    steps = step_parts.steps(spans)
    start, end = steps.start, steps.end
    found = _ran(spans)
    first = int(start[0]) if len(start) else life.end
    last = int(end.max()) if len(end) else life.end
    before = "other" if life.ran_before else "startup"
    layers = [("other", life.begin, life.end), (before, life.begin, first)]
    if len(start):
        layers.append(
            ("lost" if life.died else "other" if life.live else "shutdown", last, life.end)
        )
    painted = [(part, np.array([low]), np.array([high])) for part, low, high in layers]
    painted.append(("productive", start, end))
    if life.loses:
        kept = life.begin if life.kept is None else life.kept
        painted.append(("lost", np.maximum(start, kept), np.maximum(end, kept)))
    painted += _hangs(start, end, list(found.values()), life, last)
    painted += [(part, *found[part]) for part in ("load", "evaluation", "data", "save")]
    return _paint(painted, life.begin, life.end)


def _ran(spans: Arrays) -> dict[str, tuple[Times, Times]]:
    """Return when each part ran, and the compiler, on the threads that run steps."""
    of_steps = spans.texts["category"].among("step")
    threads = distinct(spans.numbers["thread"][of_steps])
    on_loop = np.ones(spans.rows, np.bool_)
    if len(threads):
        on_loop = np.isin(spans.numbers["thread"], threads)
    name, lasted = spans.texts["name"], spans.numbers["duration"]
    start, end = spans.numbers["start"], spans.numbers["start"] + lasted
    sets = {
        part: on_loop & name.among(*names) & (lasted > 0)
        for part, names in (*_PHASES.items(), *_CHECKPOINTS.items())
    }
    sets["compile"] = on_loop & spans.texts["category"].among("compile")
    return {part: merge(start[some], end[some]) for part, some in sets.items()}


def _hangs(
    start: Times, end: Times, others: Sequence[tuple[Times, Times]], life: Life, last: int
) -> list[tuple[str, Times, Times]]:
    """Return the excess time of slow steps: the last part of each, and of the interrupted step."""
    if not len(start):
        return []
    low = np.concatenate([each[0] for each in others])
    high = np.concatenate([each[1] for each in others])
    rest = end - start - covered(*merge(low, high), start, end)
    usual = int(np.median(rest))
    limit = usual + max((_HANG_TIMES - 1) * usual, _HANG_NS)
    far = rest > limit
    first = np.arange(len(start)) == 0
    parts = [
        ("startup", (end - rest + usual)[far & first], end[far & first]),
        ("hang", (end - rest + usual)[far & ~first], end[far & ~first]),
    ]
    until = life.end
    if life.failed is not None and until - life.failed < _ENDING_NS:
        until = min(until, life.failed)
    if (life.died or life.live) and until - last > limit:
        parts.append(("hang", np.array([last + usual]), np.array([until])))
    return parts


def _paint(layers: Sequence[tuple[str, Times, Times]], begin: int, end: int) -> Pieces:
    """Overlay intervals from ``begin`` to ``end``; later ones hide earlier ones."""
    clipped = [
        (_CODE[part], np.clip(low, begin, end), np.clip(high, begin, end))
        for part, low, high in layers
    ]
    edges = [np.array([begin, end], np.int64)]
    edges += [side for _, low, high in clipped for side in (low, high)]
    points = distinct(np.concatenate(edges))
    code = np.full(len(points) - 1, _CODE["other"], np.int8)
    for number, low, high in clipped:
        some = high > low
        depth = np.zeros(len(points), np.int64)
        np.add.at(depth, np.searchsorted(points, low[some]), 1)
        np.add.at(depth, np.searchsorted(points, high[some]), -1)
        code[np.cumsum(depth)[:-1] > 0] = number
    return _joined(points[:-1], code, end)


def _joined(start: Times, code: npt.NDArray[np.int8], end: int) -> Pieces:
    new = np.ones(len(code), bool)
    new[1:] = code[1:] != code[:-1]
    return Pieces(start[new], code[new], end)


def attempts(lives: Sequence[tuple[Life, Pieces]], begin: int, end: int) -> Pieces:
    """Return the time line of one rank from ``begin`` to ``end``, over its processes.

    Args:
        lives: its processes in the order of their starts; where two overlap, the later one counts.
        begin: when the run began: before its first process a rank is starting up.
        end: when the run ended: after its last process a rank has shut down.
    """
    starts, codes = [np.array([begin], np.int64)], [np.array([_CODE["startup"]], np.int8)]
    for number, (life, own) in enumerate(lives):
        starts.append(own.start)
        codes.append(own.code)
        if number + 1 == len(lives):
            after = "shutdown"
        else:
            after = "other" if lives[number + 1][0].ran_before else "down"
            until = lives[number + 1][0].begin
            inside = own.start < until
            starts[-1], codes[-1] = own.start[inside], own.code[inside]
            if own.end >= until:
                continue
        starts.append(np.array([life.end], np.int64))
        codes.append(np.array([_CODE[after]], np.int8))
    start, code = np.concatenate(starts), np.concatenate(codes)
    length = np.diff(np.append(start, end))
    return _joined(start[length > 0], code[length > 0], end)


def together(ranks: Iterable[Pieces]) -> Pieces | None:
    """Return the time line of the run: of all ranks' parts at an instant, the first in the table.

    Args:
        ranks: time lines with the same begin and end.
    """
    combined: Pieces | None = None
    for own in ranks:
        combined = own if combined is None else _first(combined, own)
    return combined


def _first(one: Pieces, other: Pieces) -> Pieces:
    start = distinct(np.concatenate((one.start, other.start)))
    code = np.minimum(
        one.code[np.searchsorted(one.start, start, "right") - 1],
        other.code[np.searchsorted(other.start, start, "right") - 1],
    )
    return _joined(start, code, one.end)


def between(line: Pieces, begin: int, end: int) -> Pieces:
    """Return the part of a time line from ``begin`` to ``end``, which lie within it."""
    inside = line.start < end
    start, code = line.start[inside], line.code[inside]
    from_there = max(int(np.searchsorted(start, begin, "right")) - 1, 0)
    return Pieces(np.maximum(start[from_there:], begin), code[from_there:], end)


def timeline(line: Pieces) -> pl.DataFrame:
    """Return ``start`` (ns UTC), ``duration`` (ns) and ``part``, one after another."""
    duration = np.diff(np.append(line.start, line.end))
    parts = [PARTS[code] for code in line.code]
    return pl.DataFrame(
        {"start": line.start, "duration": duration, "part": parts}, schema=TIMELINE_SCHEMA
    )


def totals(line: Pieces) -> dict[str, int]:
    """Return the time of each part, ns, including parts of no time."""
    duration = np.diff(np.append(line.start, line.end))
    return {part: int(duration[line.code == code].sum()) for part, code in _CODE.items()}
