"""Inside a step: what a rank did at the same time, for a few steps of a few ranks.

Those are the slowest step, a typical one, the first ones after the start, and those that findings
speak of: a page can hold no more.

Tests: tests/show/page/test_build.py.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from haiprof import schema
from haiprof.runs import Process
from haiprof.show.grid import cut
from haiprof.show.page import document
from haiprof.show.page.context import Chosen, Context
from haiprof.views.kernel_names import demangled, short_name
from haiprof.views.run import steps as step_views
from haiprof.views.run.overview import Summary, slowest_first

#: Ranks with lanes: those that findings name, then the slowest.
_MOST_RANKS: Final = 6
#: Steps of a rank around each finding, and of all of them.
_AROUND: Final = 3
_MOST_STEPS: Final = 14
#: The first steps of a job are seldom like the others.
_WARM_UP: Final = 2
#: Shapes of a lane: of more, the longest.
_MOST_SHAPES: Final = 3_000
_MOST_LANES: Final = 24
#: Phases before one that may still go on: those that it is in, and their neighbours.
_NESTED: Final = 8
#: Times within a step, s.
_QUANTUM: Final = 1e-6
_HOST: Final = "Host"
_GPU: Final = "GPU"
_SHAPES: Final = {"start": pl.Int64(), "duration": pl.Int64(), "name": pl.String()}

Mask = npt.NDArray[np.bool_]


def sections(found: Context, traced: Context | None = None) -> list[document.Section]:
    """Return the lanes of each rank that has any; ``traced``: its deep traces', too."""
    made = _of_ranks(found, "Inside a step", "lanes")
    if traced is not None:
        made += _of_ranks(traced, "Inside a step of the deep trace", "trace-lanes", "time:trace")
    if not made:
        made.append(
            {
                "kind": "text",
                "id": "lanes",
                "title": "Inside a step",
                "lines": [],
                "empty": "No step was recorded.",
            }
        )
    return made


def _of_ranks(
    found: Context, title: str, identifier: str, axis: str = "run"
) -> list[document.Section]:
    made: list[document.Section] = []
    for chosen in _ranks(found):
        section = _of_rank(found, chosen)
        if section is not None:
            section["id"] = f"{identifier}-{chosen.key}"
            section["title"] = f"{title}: {chosen.label}"
            section["axis"] = axis
            made.append(section)
    return made


def _ranks(found: Context) -> list[Chosen]:
    named = {rank for rank, _, _ in found.windows}
    order = slowest_first([s for chosen in found.chosen for s in chosen.summaries if s.steps])
    place = {s.process.folder: position for position, s in enumerate(order)}
    worth = [chosen for chosen in found.chosen if any(s.steps for s in chosen.summaries)]
    worth.sort(
        key=lambda one: (
            one.rank not in named,
            min(place.get(p.folder, len(place)) for p in one.processes),
        )
    )
    picked = worth[:_MOST_RANKS]
    return [chosen for chosen in found.chosen if chosen in picked]


def _of_rank(found: Context, chosen: Chosen) -> document.Lanes | None:
    summary = next(s for s in reversed(chosen.summaries) if s.steps)
    process = summary.process
    read = found.analyzer.read
    spans = read(process, schema.SPANS, (*step_views.COLUMNS,))
    steps = step_views.steps(spans)
    if not steps.height:
        return None
    picked = steps.filter(_picked(found, chosen, process, steps))
    low = picked["start"].to_numpy()
    high = low + picked["duration"].to_numpy()
    found.columns.next_blob()
    lanes = [
        *_host(found, process, spans, low, high),
        *_stacks(found, chosen, summary, spans, low, high),
        *_collectives(found, process, low, high),
        *_device(found, process, low, high),
        *_kernels(found, process, low, high),
    ]
    times = found.columns.times
    section: document.Lanes = {
        "kind": "lanes",
        "id": f"lanes-{chosen.key}",
        "title": f"Inside a step: {chosen.label}",
        "axis": "run",
        "lanes": lanes[:_MOST_LANES],
        "steps": {
            "number": found.columns.integers(_numbers(picked["step"])),
            "from": times(found.seconds(found.on_one_clock(process, low)), _QUANTUM),
            "to": times(found.seconds(found.on_one_clock(process, high)), _QUANTUM),
        },
        "note": "The slowest step, a typical one, the first ones and those that findings are of: "
        f"{picked.height} of {steps.height} steps.",
    }
    if chosen.rank is not None:
        section["rank"] = chosen.rank
    return section


def _numbers(steps: pl.Series) -> npt.NDArray[np.int64]:
    number: npt.NDArray[np.int64] = steps.cast(pl.Int64).fill_null(0).to_numpy()
    return np.where(number >= schema.INFERENCE, number - schema.INFERENCE, number)


def _picked(found: Context, chosen: Chosen, process: Process, steps: pl.DataFrame) -> pl.Series:
    lasted = steps["duration"].to_numpy()
    order = np.argsort(lasted, kind="stable")
    start = found.on_one_clock(process, steps["start"].to_numpy())
    count = steps.height
    rows = [int(order[-1]), int(order[count // 2]), *range(_WARM_UP, min(_WARM_UP + 3, count))]
    windows = [(begin, end) for rank, begin, end in found.windows if rank in (None, chosen.rank)]
    for begin, end in windows:
        inside = np.flatnonzero((start < end) & (start + lasted > begin))
        rows += inside[:_AROUND].tolist()
        # Of the window the slowest one, too.
        if len(inside):
            rows.append(int(inside[np.argmax(lasted[inside])]))
    kernels = found.analyzer.read(process, schema.KERNELS, ("start",))
    rows[2:2] = [*_having(kernels, steps), *_having(_sampled(found, chosen, process), steps)]
    mask = np.zeros(count, bool)
    mask[list(dict.fromkeys(rows))[:_MOST_STEPS]] = True
    return pl.Series(mask)


def _having(rows: pl.DataFrame, steps: pl.DataFrame) -> list[int]:
    """Return a step in the middle of those in which any of these rows begins, if there is one."""
    begins = steps["start"].to_numpy()
    times = rows["start"].to_numpy()
    step = np.searchsorted(begins, times, side="right") - 1
    within = times < (begins + steps["duration"].to_numpy())[step]
    inside = np.unique(step[(step >= 0) & within])
    middle: list[int] = inside[len(inside) // 2 :][:1].tolist()
    return middle


def _sampled(found: Context, chosen: Chosen, process: Process) -> pl.DataFrame:
    """Return the sampled stacks of the training thread."""
    if chosen.rank is None or process.stacks is None:
        return pl.DataFrame(schema={"start": pl.Int64})
    stacks = found.analyzer.stacks(chosen.rank, threads="training")
    return stacks.filter(pl.col("pid") == process.pid)


def _inside(frame: pl.DataFrame, low: np.ndarray, high: np.ndarray) -> pl.DataFrame:
    """Return the rows that are, at least in part, in one of these disjoint windows."""
    start = frame["start"].to_numpy()
    end = start + np.maximum(frame["duration"].to_numpy(), 0)
    place = np.minimum(np.searchsorted(high, start, side="right"), len(high) - 1)
    return frame.filter(pl.Series((end > low[place]) & (start < high[place]), dtype=pl.Boolean))


def _lane(
    found: Context, process: Process, name: str, group: str, shapes: pl.DataFrame, colour: str = ""
) -> document.Lane:
    """Pack the shapes of a lane; nested ones lie beneath those around them."""
    if shapes.height > _MOST_SHAPES:
        name = f"{name} (the {_MOST_SHAPES:,} longest of {shapes.height:,})"
        shapes = shapes.sort("duration", descending=True).head(_MOST_SHAPES)
    shapes = shapes.sort("start", "duration", descending=[False, True])
    start = shapes["start"].to_numpy()
    lasted = np.maximum(shapes["duration"].to_numpy(), 0)
    texts = [cut(text) for text in shapes["name"].fill_null("").to_list()]
    names = list(dict.fromkeys(texts))
    number = {text: position for position, text in enumerate(names)}
    depth = _depths(start, start + lasted)
    on_one_clock = found.on_one_clock(process, start)
    lane: document.Lane = {
        "name": cut(name),
        "group": group,
        "from": found.columns.times(found.seconds(on_one_clock), _QUANTUM),
        "length": found.columns.numbers(lasted / 1e9),
        "name_of": found.columns.integers(np.array([number[text] for text in texts], np.int64)),
        "names": names,
    }
    if depth.any():
        lane["depth"] = found.columns.integers(depth)
    if colour == "phase":
        lane["colour"] = "phase"
    elif colour:
        lane["colour"] = "name"
    return lane


def _depths(start: np.ndarray, end: np.ndarray) -> npt.NDArray[np.int64]:
    """Return how many of the shapes before each one, sorted by start, it begins within."""
    depth = np.zeros(len(start), np.int64)
    open_until: list[int] = []
    for place, (begin, until) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        while open_until and open_until[-1] <= begin:
            open_until.pop()
        depth[place] = min(len(open_until), 30)
        open_until.append(until)
    return depth


def _host(
    found: Context, process: Process, spans: pl.DataFrame, low: np.ndarray, high: np.ndarray
) -> list[document.Lane]:
    kept = _inside(spans.filter(pl.col("category") != "step"), low, high).with_columns(
        pl.col("category", "name").cast(pl.String)
    )
    kept = kept.filter(pl.col("category") != "inference_step")
    titles = {"phase": "phases", "user": "user ranges", "gc": "garbage collection"}
    order = kept.group_by("category", "thread").agg(pl.col("duration").sum().alias("ns"))
    rank = {name: position for position, name in enumerate(titles)}
    keys = sorted(
        order.iter_rows(), key=lambda row: (rank.get(row[0], len(rank)), row[0], -row[2], row[1])
    )
    titles |= {"op": "operators", "runtime": "calls of the runtime"}
    several = {c for c, _, _ in keys if sum(key[0] == c for key in keys) > 1}
    lanes = []
    for category, thread, _ in keys[: _MOST_LANES // 2]:
        mine = kept.filter(pl.col("category") == category, pl.col("thread") == thread)
        title = titles.get(category, category) + (
            f" (thread {thread})" if category in several else ""
        )
        colour = "phase" if category == "phase" else "name"
        lanes.append(_lane(found, process, title, _HOST, mine.select(*_SHAPES), colour))
    return lanes


def _stacks(
    found: Context,
    chosen: Chosen,
    summary: Summary,
    spans: pl.DataFrame,
    low: np.ndarray,
    high: np.ndarray,
) -> list[document.Lane]:
    mine = _sampled(found, chosen, summary.process)
    if not mine.height:
        return []
    kept = _inside(mine, low, high)
    # What stood for a part of a chosen step only as the last sample before it is none of it.
    kept = _inside(kept.with_columns(_seen(kept, spans)), low, high)
    if not kept.height:
        return []
    line = pl.col("line").cast(pl.String).fill_null("?")
    named = pl.format("{} ({}:{})", "function", pl.col("file").str.split("/").list.last(), line)
    shapes = kept.select("start", "duration", named.alias("name"))
    return [_lane(found, summary.process, "sampled stacks", _HOST, shapes, "name")]


def _seen(stacks: pl.DataFrame, spans: pl.DataFrame) -> pl.Series:
    """Return how long each stack is drawn, ns: one sample not beyond the phase that it is of.

    It stands for the time until the next one, which may be many phases later.
    """
    phases = spans.filter(pl.col("category").cast(pl.String) == "phase").sort("start")
    begins = phases["start"].to_numpy()
    ends = begins + phases["duration"].to_numpy()
    lasted = []
    for start, duration, samples in stacks.select("start", "duration", "samples").iter_rows():
        row = int(np.searchsorted(begins, start, side="right")) - 1
        inside = [end for end in ends[max(row - _NESTED, 0) : row + 1].tolist() if end > start]
        alone = samples == 1 and inside
        lasted.append(min(duration, inside[-1] - start) if alone else duration)
    return pl.Series("duration", lasted, pl.Int64)


def _collectives(
    found: Context, process: Process, low: np.ndarray, high: np.ndarray
) -> list[document.Lane]:
    columns = ("start", "duration", "side", "op", "group", "bytes")
    rows = _inside(found.analyzer.read(process, schema.COLLECTIVES, columns), low, high)
    rows = rows.with_columns(pl.col("side", "op", "group").cast(pl.String))
    lanes = []
    for side, title in (("work", "collectives"), ("wait", "waits for collectives")):
        mine = rows.filter(pl.col("side") == side)
        if mine.height:
            shapes = mine.select("start", "duration", pl.col("op").alias("name"))
            lanes.append(_lane(found, process, title, "Communication", shapes, "name"))
    return lanes


def _device(
    found: Context, process: Process, low: np.ndarray, high: np.ndarray
) -> list[document.Lane]:
    columns = ("start", "duration", "category", "name", "device", "stream")
    rows = _inside(found.analyzer.read(process, schema.DEVICE_SPANS, columns), low, high)
    rows = rows.with_columns(pl.col("category", "name").cast(pl.String))
    several = rows["device"].n_unique() > 1
    lanes = []
    for (category, device), mine in rows.sort("category", "device").group_by(
        "category", "device", maintain_order=True
    ):
        titles = {"phase": "device phases", "user": "user ranges", "graph": "CUDA graphs"}
        title = titles.get(str(category), str(category)) + (f" (GPU {device})" if several else "")
        colour = "phase" if category == "phase" else "name"
        lanes.append(_lane(found, process, title, _GPU, mine.select(*_SHAPES), colour))
    return lanes


def _kernels(
    found: Context, process: Process, low: np.ndarray, high: np.ndarray
) -> list[document.Lane]:
    columns = ("start", "duration", "kind", "name", "device", "stream")
    rows = _inside(found.analyzer.read(process, schema.KERNELS, columns), low, high)
    rows = rows.filter(pl.col("device").is_not_null()).with_columns(pl.col("name").cast(pl.String))
    if not rows.height:
        return []
    readable = demangled(rows["name"].drop_nulls().unique())
    short = {name: short_name(text) for name, text in readable.items()}
    rows = rows.with_columns(pl.col("name").replace(short))
    several = rows["device"].n_unique() > 1
    busiest = (
        rows.group_by("device", "stream")
        .agg(pl.col("duration").sum())
        .sort("device", "duration", "stream", descending=[False, True, False])
    )
    lanes = []
    for device, stream, _ in busiest.head(_MOST_LANES // 2).iter_rows():
        of = pl.col("stream").eq_missing(pl.lit(stream, pl.UInt32()))
        mine = rows.filter(pl.col("device") == device, of)
        title = f"stream {'unknown' if stream is None else stream}"
        title += f" (GPU {device})" if several else ""
        lanes.append(_lane(found, process, title, _GPU, mine.select(*_SHAPES), "name"))
    return lanes
