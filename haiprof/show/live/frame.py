"""One frame of ``haiprof top``: lines of text for a terminal of a given size.

Tests: tests/show/test_live.py.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np
from rich.text import Text

from haiprof.common.numbers import milliseconds, percent, rate, size
from haiprof.common.printable import printable
from haiprof.findings.endings import brief, failed
from haiprof.runs import Process
from haiprof.show.live.history import MEAN_SECONDS, OTHER, TREND_SECONDS
from haiprof.show.live.job import SILENT, Job, Watched, label
from haiprof.show.live.waits import described
from haiprof.views.intervals import Times

#: Letter and style of each phase, in the order in which they are drawn.
PHASES: Final = {
    "dataloader": ("d", "black on dark_orange"),
    "forward": ("f", "white on blue"),
    "recompute": ("r", "black on cyan"),
    "backward": ("b", "white on purple"),
    "gradient_sync": ("g", "black on magenta"),
    "optimizer": ("o", "black on green"),
    "eval": ("e", "black on white"),
    "eval_dataloader": ("l", "black on yellow"),
    "deep_trace": ("t", "white on red"),
    OTHER: ("·", "dim"),
}
_RANGE: Final = ("u", "white on dark_red")
_SPARKS: Final = "▁▂▃▄▅▆▇█"
_STATES: Final = {
    "recording": "bold green",
    "ended": "bold",
    "ranks ended": "bold",
    "waiting": "bold yellow",
    "warming up": "bold yellow",
}
#: In these phases a rank waits for others.
_WAITS: Final = frozenset({"gradient_sync"})
#: An excess of at least this share of the largest one is as much.
_AS_MUCH: Final = 0.7
#: A phase that is longer on one rank by this share of a step is mentioned.
_TELLING: Final = 0.05
#: Width of the names at the beginning of lines.
_INDENT: Final = 9
_STEP: Final = "the whole step"
_NS: Final = 1_000_000_000
#: The share of the height that nodes may take if there are many.
_NODES_SHARE: Final = 4


def lines(
    job: Job, width: int, height: int, others: Sequence[str] = (), *, fill: bool = True
) -> list[Text]:
    """Draw the current state of the job.

    Args:
        job: the job being watched.
        width: columns.
        height: rows; never more lines are made.
        others: names of the runs that were not chosen.
        fill: make exactly ``height`` lines, the last ones at the bottom.
    """
    ranks = [_Rank(watched, job) for watched in job.ranks]
    top = [*_head(job, ranks, width), *_steps(ranks, width), *_late(job)]
    foot = _foot(job, others, width)
    room = height - len(top) - len(foot)
    nodes = _nodes(job, width, max(1, min(room - 3, max(2, height // _NODES_SHARE))))
    table = _table(ranks, width, room - len(nodes), job.shows_places)
    drawn = [*top, *table, *nodes]
    if fill:
        drawn += [Text()] * (height - len(drawn) - len(foot))
    return [*drawn, *foot][:height]


class _Rank:
    """What a row shows of a rank."""

    def __init__(self, watched: Watched, job: Job) -> None:
        self.watched = watched
        now = watched.newest  # its own, since clocks of nodes differ
        self.name = label(watched).removeprefix("rank ")
        self.mean = watched.steps.mean(now)
        self.steps, self.ns = watched.steps.by_second(now)
        self.spent = watched.steps.spent(now)
        self.gpus = job.gpus_of(watched)
        count = int(self.steps[-MEAN_SECONDS:].sum())
        #: Mean time a step, ns, by phase; with the whole step under its own name.
        self.parts = {name: ns / count for name, ns in self.spent.items()} if count else {}
        if self.mean is not None:
            self.parts[_STEP] = self.mean
        #: By how much its step or one of its phases exceeds the ranks' median, ns.
        self.excess = 0.0

    def one(self, metric: str) -> float | None:
        return self.watched.values.one(metric)

    def gpu(self, metric: str, adds: bool) -> float | None:
        values = [
            value
            for node, instances in self.gpus
            for name, value in node.values.of(metric).items()
            if name in instances
        ]
        if not values:
            return None
        return sum(values) if adds else sum(values) / len(values)

    @property
    def order(self) -> tuple[bool, float]:
        """The worst first: who failed or died, then who delays the others."""
        return not _ended_badly(self.watched.process), -self.excess


def _ended_badly(process: Process) -> bool:
    return process.state == "died" or failed(process)


def _find_excess(ranks: Sequence[_Rank]) -> tuple[str, float, _Rank | None]:
    """Compare the ranks' steps and phases; return the phase that most exceeds the median.

    Ranks that wait for each other take equally long for a step, and who waits is never to blame.
    The one that the others wait for is longer than most in an earlier phase than the one in which
    they wait: of phases that exceed the median about as much, the first in a step counts.

    Returns:
        That phase (or the step), the ranks' median of it, ns, and the rank.
    """
    names = sorted({name for rank in ranks for name in rank.parts} - _WAITS, key=_in_step)
    medians = {n: statistics.median(rank.parts.get(n, 0.0) for rank in ranks) for n in names}

    def excess(rank: _Rank, name: str) -> float:
        return rank.parts.get(name, 0.0) - medians[name]

    worst = {name: max(ranks, key=lambda rank: excess(rank, name)) for name in names}
    phases = [name for name in names if name != _STEP]
    most = max((excess(worst[name], name) for name in phases), default=0.0)
    found = next((n for n in phases if excess(worst[n], n) >= _AS_MUCH * most), None)
    # In later phases of a step ranks may wait.
    until = names if found is None else [_STEP, *phases[: phases.index(found) + 1]]
    for rank in ranks:
        rank.excess = max((excess(rank, n) for n in until if n in medians), default=0.0)
    return ("", 0.0, None) if found is None else (found, medians[found], worst[found])


def _in_step(phase: str) -> tuple[int, str]:
    """Return where in a step a phase comes; what is in none is taken for the beginning."""
    order = [name for name in PHASES if name != OTHER]
    return (order.index(phase) + 1 if phase in order else 0), phase


# -- the job -----------------------------------------------------------------------------------


def _head(job: Job, ranks: Sequence[_Rank], width: int) -> list[Text]:
    state = job.state()
    right = Text(state.word, _STATES.get(state.word.split(",")[0], "bold red"))
    if state.more:
        right.append(f" ({printable(state.more)})")
    begun = job.run.created_ns
    right.append(f" {_clock((job.now - begun) / _NS)}")
    names = {rank.watched.process.node for rank in ranks} | {n.process.node for n in job.nodes}
    who = f"{_count(len(ranks), 'rank')} on {_count(len(names), 'node')}"
    if job.unread:
        who += f", {job.unread} unread"
    command = printable(" ".join(job.run.command))
    return [
        _sides(Text(printable(job.run.name), "bold"), right, width),
        _sides(Text(command, "dim"), Text(who if names else ""), width),
    ]


def _steps(ranks: Sequence[_Rank], width: int) -> list[Text]:
    stepped = [rank for rank in ranks if rank.mean is not None]
    if not stepped:
        return []
    steps = np.sum([rank.steps for rank in stepped], axis=0)
    ns = np.sum([rank.ns for rank in stepped], axis=0)
    latest = max((rank.watched for rank in stepped), key=lambda w: w.steps.ended or 0)
    newest = latest.steps
    recent = int(steps[-MEAN_SECONDS:].sum())
    fields = [f"last {milliseconds(newest.last or 0)}"]
    if recent:
        fields.append(f"mean {milliseconds(int(ns[-MEAN_SECONDS:].sum()) / recent)} (1 min)")
    if newest.number is not None:
        fields.append(f"step {newest.number:,}".replace(",", " "))
    ago = (latest.newest - (newest.ended or 0)) / _NS
    if ago > max(5.0, 3 * (newest.last or 0) / _NS):
        fields.append(f"no step for {_clock(ago)}")
    drawn = [_row("steps", Text("   ".join(fields)))]
    trend, low, high = _trend(steps, ns, width - 40)
    if high:
        shown = [milliseconds(low), milliseconds(high)]
        range_text = f" {' … '.join(dict.fromkeys(shown))} in {TREND_SECONDS // 60} min"
        drawn.append(_row("trend", Text(trend.lstrip(), "cyan").append(range_text, "default")))
    spent: dict[str, int] = {}
    for rank in stepped:
        for name, one in rank.spent.items():
            spent[name] = spent.get(name, 0) + one
    if spent:
        drawn.append(_row("phases", _bar(spent, width - _INDENT)))
        drawn += [_row("", line) for line in _legend(spent, width - _INDENT)]
    if len(stepped) > 1:
        slowest = max(stepped, key=lambda rank: rank.mean or 0)
        fastest = min(stepped, key=lambda rank: rank.mean or 0)
        least, most = fastest.mean or 0.0, slowest.mean or 0.0
        range_text = (
            f"slowest {label(slowest.watched)} {milliseconds(most)}, "
            f"fastest {label(fastest.watched)} {milliseconds(least)}"
        )
        if least:
            range_text += f": {percent(most / least - 1)} apart"
        drawn.append(_row("skew", Text(range_text)))
        name, median, worst = _find_excess(stepped)
        if worst is not None and worst.parts[name] - median > _TELLING * most:
            took, usual = milliseconds(worst.parts[name]), milliseconds(median)
            range_text = (
                f"{name} takes {took} on {label(worst.watched)}, {usual} on the median rank"
            )
            drawn.append(_row("", Text(printable(range_text))))
    return drawn


def _late(job: Job) -> list[Text]:
    text = described(job.late())
    return [_row("waits", Text(printable(text)))] if text else []


def _trend(steps: Times, ns: Times, width: int) -> tuple[str, float, float]:
    """Draw mean step times over time: the line, and its minimum and maximum (ns)."""
    width = max(1, min(width, TREND_SECONDS))
    edges = np.arange(width) * TREND_SECONDS // width
    counts = np.add.reduceat(steps, edges).tolist()
    sums = np.add.reduceat(ns, edges).tolist()
    values = [took / count if count else math.nan for count, took in zip(counts, sums, strict=True)]
    # A step that takes longer than a column covers those before its end.
    for column in range(len(values) - 1, 0, -1):
        long = values[column] / _NS * width / TREND_SECONDS
        if not math.isnan(long) and long > 1:
            for before in range(max(0, column - int(long)), column):
                if math.isnan(values[before]):
                    values[before] = values[column]
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return "", 0.0, 0.0
    low, high = min(known), max(known)
    # From 0, as heights are read; a trend of 1 % is none.
    drawn = "".join(
        " " if math.isnan(v) else _SPARKS[min(7, int(v / high * 7.999))] for v in values
    )
    return drawn, low, high


def _letters(spent: dict[str, int], width: int) -> list[tuple[str, int]]:
    """Distribute ``width`` letters; shares that are too small get none."""
    total = sum(spent.values())
    shared = []
    begun = done = 0
    for name in _ordered(spent):
        begun += spent[name]
        until = round(begun * width / total)
        shared.append((name, until - done))
        done = until
    return shared


def _bar(spent: dict[str, int], width: int) -> Text:
    """Draw shares as letters in colours, ``width`` of them."""
    bar = Text()
    for name, count in _letters(spent, width):
        letter, style = PHASES.get(name, _RANGE)
        bar.append(letter * count, style)
    return bar


def _legend(spent: dict[str, int], width: int) -> list[Text]:
    """Name what a bar of that width shows, in lines of that width."""
    total = sum(spent.values())
    drawn = [Text()]
    for name, count in _letters(spent, width):
        if not count:
            continue
        letter, style = PHASES.get(name, _RANGE)
        entry = Text()
        if name.startswith(letter):
            entry.append(letter, style).append(printable(name[1:]))
        else:
            entry.append(letter, style).append(f" {printable(name)}")
        entry.append(f" {percent(spent[name] / total)}")
        if drawn[-1].cell_len and drawn[-1].cell_len + 2 + entry.cell_len > width:
            drawn.append(Text())
        drawn[-1] = Text("  ").join([drawn[-1], entry]) if drawn[-1].cell_len else entry
    return drawn


def _ordered(spent: dict[str, int]) -> list[str]:
    known = [name for name in PHASES if name in spent and name != OTHER]
    ranges = sorted(spent.keys() - PHASES.keys(), key=lambda name: (-spent[name], name))
    return [*known, *ranges, *([OTHER] if OTHER in spent else [])]


# -- ranks -------------------------------------------------------------------------------------


class _Column(NamedTuple):
    title: str
    #: The text for a row; None: not known.
    cell: Callable[[_Rank], Text | str | None]
    #: Minimum width of the terminal for this column.
    from_width: int = 0
    #: Whether its texts may end where the terminal does.
    may_be_cut: bool = False


def _table(ranks: Sequence[_Rank], width: int, room: int, places: bool) -> list[Text]:
    if not ranks or room < 2:
        return []
    worst = sorted(ranks, key=lambda rank: rank.order)
    shown = worst if len(worst) <= room - 1 else worst[: max(0, room - 2)]
    columns = _columns(ranks, 16 if width < 120 else 24, places)
    shown_columns: list[tuple[str, list[Text]]] = []
    used = 0
    for column in columns:
        if width < column.from_width:
            continue
        cells = [column.cell(rank) for rank in shown]
        if all(cell is None for cell in cells):
            continue  # columns without any value are not shown
        texts = [c if isinstance(c, Text) else Text("-" if c is None else c) for c in cells]
        wide = max([len(column.title), *(text.cell_len for text in texts)])
        if column.may_be_cut:
            wide = min(wide, max(width - used, len(column.title)))
        if used + wide > width:
            break
        used += wide + 2
        shown_columns.append((column.title.rjust(wide), [_fit(text, wide) for text in texts]))
    drawn = [Text("  ".join(title for title, _ in shown_columns), "bold underline")]
    for row in range(len(shown)):
        drawn.append(Text("  ").join([texts[row] for _, texts in shown_columns]))
    if len(shown) < len(worst):
        rest = [rank.mean for rank in worst[len(shown) :] if rank.mean is not None]
        line = f"… {len(worst) - len(shown)} more"
        if rest:
            line += f": {milliseconds(min(rest))} … {milliseconds(max(rest))}"
        drawn.append(Text(line, "dim"))
    return drawn


def _place(rank: _Rank) -> str | None:
    places = rank.watched.places
    text = None if places is None else places.text
    return None if text is None else printable(text)


def _columns(ranks: Sequence[_Rank], bar: int, places: bool) -> list[_Column]:
    fastest = min((rank.mean for rank in ranks if rank.mean), default=None)
    several = len(ranks) > 1
    nodes = len({rank.watched.process.node for rank in ranks}) > 1

    def above(rank: _Rank) -> str | None:
        if rank.mean is None or not fastest or not several:
            return None
        return f"+{(rank.mean / fastest - 1) * 100:.1f} %"

    def last(rank: _Rank) -> str | None:
        took = rank.watched.steps.last
        return None if took is None else milliseconds(took)

    # If all are silent, the head of the frame says so.
    quiet = {id(r): r.watched.silent() for r in ranks if r.watched.live}
    all_silent = min(quiet.values(), default=0.0) > SILENT

    def state(rank: _Rank) -> Text | None:
        process = rank.watched.process
        if _ended_badly(process):
            return Text(brief(process.ending) or "died", "bold red")
        silent = quiet.get(id(rank), 0.0)
        if silent > SILENT and not all_silent:
            return Text(f"silent {silent:.0f} s", "bold red")
        return None

    def in_and_out(what: str) -> Callable[[_Rank], str | None]:
        def cell(rank: _Rank) -> str | None:
            read = rank.one(f"io.{what}_read.bytes_per_s")
            written = rank.one(f"io.{what}_write.bytes_per_s")
            if read is None or written is None:
                return None
            return f"{rate(read)} {rate(written)}"

        return cell

    def gpu(metric: str, adds: bool, word: Callable[[float], str]) -> Callable[[_Rank], str | None]:
        return lambda rank: _worded(rank.gpu(metric, adds), word)

    return [
        _Column("rank", lambda rank: rank.name),
        _Column("node", lambda rank: printable(rank.watched.process.node) if nodes else None, 100),
        _Column("state", state),
        _Column("last", last),
        _Column("1 min", lambda rank: _worded(rank.mean, milliseconds)),
        _Column("slower", above),
        _Column("phases", lambda rank: _bar(rank.spent, bar) if rank.spent else None),
        *([_Column("at", _place, may_be_cut=True)] if places else []),
        _Column("cpu", lambda rank: _worded(rank.one("proc.cpu.percent"), _percent)),
        _Column("memory", lambda rank: _worded(rank.one("proc.rss.bytes"), size)),
        _Column("gpu", gpu("gpu.util.percent", False, _percent)),
        _Column("gpu mem", gpu("gpu.memory_used.bytes", True, size)),
        _Column("power", gpu("gpu.power.watts", True, _watts), 100),
        _Column("trend (5 min)", lambda r: Text(_trend(r.steps, r.ns, 30)[0], "cyan"), 120),
        _Column("storage r w", in_and_out("storage"), 140),
        _Column("calls r w", in_and_out("syscall"), 140),
    ]


# -- nodes -------------------------------------------------------------------------------------


def _nodes(job: Job, width: int, room: int) -> list[Text]:
    """Draw what nodes do: a single node in as many lines as it needs, many in a line each."""
    nodes = [(node, _node_fields(node)) for node in job.nodes]
    nodes = [(node, fields) for node, fields in nodes if fields]
    if not nodes:
        return []
    drawn: list[Text] = []
    each = room // len(nodes) if len(nodes) <= room else 1
    # Of many the busiest, which is where to look.
    nodes.sort(key=lambda pair: -(pair[0].values.one("cpu.util.percent") or 0.0))
    shown = nodes if len(nodes) <= room else nodes[: room - 1]
    for node, fields in shown:
        name = printable(node.process.folder.name)
        drawn += _wrapped(name if len(job.nodes) > 1 else "node", fields, width, max(1, each))
    if len(shown) < len(nodes):
        drawn.append(Text(f"… {len(nodes) - len(shown)} nodes more", "dim"))
    return drawn


def _node_fields(node: Watched) -> list[str]:
    values = node.values
    fields = []
    cpu = values.one("cpu.util.percent")
    if cpu is not None:
        fields.append(f"cpu {_percent(cpu)}")
    used, total = values.one("mem.used.bytes"), values.one("mem.total.bytes")
    if used is not None:
        fields.append(f"memory {size(used)}" + (f" of {size(total)}" if total else ""))
    fields += _gpu_fields(node)
    for name in ("read", "write", "traffic"):
        moved = values.one(f"dram.{name}.bytes_per_s")
        if moved is not None:
            fields.append(f"dram {'' if name == 'traffic' else name + ' '}{rate(moved)}")
    remote = values.one("numa.remote.bytes_per_s")
    if remote is not None:
        fields.append(f"between sockets {rate(remote)}")
    fields += _pair("disk", values.of("disk.read.bytes_per_s"), values.of("disk.write.bytes_per_s"))
    fields += _pair(
        "nfs", values.of("io.nfs_read.bytes_per_s"), values.of("io.nfs_write.bytes_per_s")
    )
    for thing in ("ib", "net"):
        received, sent = values.of(f"{thing}.rx.bytes_per_s"), values.of(f"{thing}.tx.bytes_per_s")
        # Traffic through a bond or a virtual function is counted at each, so there is no sum.
        busy = {n: received.get(n, 0) + sent.get(n, 0) for n in {*received, *sent} if n != "lo"}
        if busy:
            name = max(sorted(busy), key=lambda n: busy[n])
            rates = f"{rate(received.get(name, 0.0))} in, {rate(sent.get(name, 0.0))} out"
            fields.append(f"{thing} {printable(name)} {rates}")
    watts = values.one("node.power.watts")
    if watts is not None:
        fields.append(f"power {_watts(watts)}")
    return fields


def _gpu_fields(node: Watched) -> list[str]:
    used = node.values.of("gpu.util.percent")
    fields = []
    if used:
        used_text = f"{_count(len(used), 'gpu')} {_range(used.values(), _percent)}"
        fields.append(used_text)
    memory = node.values.of("gpu.memory_used.bytes")
    if memory:
        fields.append(f"gpu memory {_range(memory.values(), size)}")
    active = node.values.of("gpu.sm_active.ratio")
    if active:
        fields.append(f"SMs {_range(active.values(), percent)}")
    power = node.values.of("gpu.power.watts")
    if power:
        fields.append(f"gpu power {_watts(sum(power.values()))}")
    return fields


def _pair(name: str, read: dict[str, float], write: dict[str, float]) -> list[str]:
    if not read and not write:
        return []
    return [f"{name} read {rate(sum(read.values()))}, write {rate(sum(write.values()))}"]


# -- below -------------------------------------------------------------------------------------


def _foot(job: Job, others: Sequence[str], width: int) -> list[Text]:
    drawn = []
    event = job.event
    if event is not None:
        at = time.strftime("%H:%M:%S", time.localtime(event.time / _NS))
        drawn.append(_row("event", Text(printable(f"{at} {event.label}: {event.text}"))))
    problems = job.problems
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        drawn.append(_row("problem", Text(printable(problems[0]) + more, "red")))
    if others:
        shown = ", ".join(others[:3]) + (" …" if len(others) > 3 else "")
        drawn.append(_row("others", Text(printable(f"{_count(len(others), 'run')}: {shown}"))))
    lost = sum(watched.lost for watched in job.watched.values())
    fields = [f"lost {_count(lost, 'record')}" if lost else "nothing lost"]
    cost = [sum(node.values.of("haiprof.cost.ratio").values()) for node in job.nodes]
    if any(cost):
        fields.append(f"cost {percent(max(cost))} of a core")
    absent = {s.name for n in job.nodes for s in n.process.sources if s.state != "ok"}
    if absent:
        fields.append(f"{len(absent)} absent: haiprof doctor")
    last = _row("haiprof", Text(" · ".join(fields)))
    hint = Text("q quits", "dim")
    drawn.append(_sides(last, hint, width) if last.cell_len + 8 <= width else last)
    return drawn


# -- words -------------------------------------------------------------------------------------


def _row(name: str, text: Text) -> Text:
    return Text.assemble((f"{name:<{_INDENT - 1}} ", "bold"), text)


def _sides(left: Text, right: Text, width: int) -> Text:
    """Put two texts at the ends of a line; the left one is cut if necessary."""
    room = width - right.cell_len - 1
    if room < 1:
        return right
    left = left.copy()
    left.truncate(room, overflow="ellipsis", pad=True)
    return Text.assemble(left, " ", right)


def _wrapped(name: str, fields: Sequence[str], width: int, most: int) -> list[Text]:
    """Put fields into at most ``most`` lines; into the last one as many as fit."""
    rows: list[list[str]] = [[]]
    room = width - max(_INDENT, len(name) + 1)
    left = 0
    for text in fields:
        longer = len(" · ".join([*rows[-1], text]))
        last = len(rows) == most
        if not rows[-1] or longer <= room - (len(" (+99)") if last else 0):
            rows[-1].append(text)
        elif last:
            left += 1
        else:
            rows.append([text])
    lines = [" · ".join(line) for line in rows]
    if left:
        lines[-1] += f" (+{left})"
    return [_row("" if n else name, Text(line)) for n, line in enumerate(lines)]


def _fit(text: Text, width: int) -> Text:
    fitted = text.copy()
    fitted.truncate(width, overflow="ellipsis")
    fitted.pad_left(max(0, width - text.cell_len))
    return fitted


def _worded(value: float | None, word: Callable[[float], str]) -> str | None:
    return None if value is None else word(value)


def _range(values: Iterable[float], word: Callable[[float], str]) -> str:
    known = list(values)
    low, high = word(min(known)), word(max(known))
    return low if low == high else f"{low} … {high}"


def _percent(value: float) -> str:
    return f"{value:.0f} %"


def _watts(value: float) -> str:
    return f"{value / 1000:.1f} kW" if value >= 1000 else f"{value:.0f} W"


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def _clock(seconds: float) -> str:
    whole = max(0, int(seconds))
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"
