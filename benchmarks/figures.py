"""The figures of a benchmark: what was measured, with its interval, its floor or peer, and its
target; and the table of them all.

    Figure("a record", Unit.SECONDS, median(times), Reference("a store", median(stores)),
           ratio_at_most(1.35))

Values are in base units: seconds, bytes, shares of 1, per second. The table scales them for
reading. A ratio is always the measured value divided by that of the reference. The fixture
``report`` (reporting.py) records figures and fails a benchmark that misses a target.
"""

from __future__ import annotations

import enum
import io
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

HEADINGS = ("what", "measured", "floor or peer", "ratio", "target", "result")
NONE = "-"
#: No table is as wide: nothing is wrapped.
_UNLIMITED = 1000
#: Ratios below are written as 1/x.
_INVERTED_BELOW = 0.5


class Unit(enum.Enum):
    """Of what a value is. Each lists the scales to write it in, largest first."""

    SECONDS = ("s", ((1, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")))
    BYTES = ("B", ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "bytes")))
    SHARE = ("1", ((0.01, "%"),))
    PER_SECOND = ("1/s", ((1e9, "G/s"), (1e6, "M/s"), (1e3, "k/s"), (1, "/s")))

    def scale(self, value: float) -> tuple[float, str]:
        """Return the factor and the name of the scale in which a value is easy to read."""
        _, scales = self.value
        for factor, name in scales:
            if abs(value) >= factor:
                return factor, name
        smallest: tuple[float, str] = scales[-1]
        return smallest

    def text(self, value: float) -> str:
        """Write a measured value."""
        factor, name = self.scale(value)
        return f"{_measured(value / factor)} {name}"

    def exact(self, value: float) -> str:
        """Write a value that somebody chose."""
        factor, name = self.scale(value)
        return f"{value / factor:.4g} {name}"


@dataclass(frozen=True)
class Interval:
    """The interval of a measured value; ``kind`` says what it is."""

    low: float
    high: float
    kind: Literal["95 %", "quartiles", "range", "standard error"]


@dataclass(frozen=True)
class Measured:
    """A measured value. It has an interval if it comes from several rounds."""

    value: float
    interval: Interval | None = None

    def times(self, factor: float) -> Measured:
        """Return it in another unit; ``factor`` is positive."""
        return self._mapped(self.value * factor, lambda end: end * factor)

    def minus(self, part: float) -> Measured:
        """Return it without a part that each round contains."""
        return self._mapped(self.value - part, lambda end: end - part)

    def per_second(self) -> Measured:
        """Return the rate, of a time."""
        return self._mapped(1 / self.value, lambda end: 1 / end)

    def _mapped(self, value: float, mapped: Callable[[float], float]) -> Measured:
        if self.interval is None:
            return Measured(value)
        low, high = sorted((mapped(self.interval.low), mapped(self.interval.high)))
        return Measured(value, Interval(low, high, self.interval.kind))


def median(values: Sequence[float]) -> Measured:
    """Return the median of several rounds with their quartiles."""
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return Measured(middle, Interval(low, high, "quartiles"))


def median_in_range(values: Sequence[float]) -> Measured:
    """Return the median of a few rounds with their least and their most."""
    return Measured(statistics.median(values), Interval(min(values), max(values), "range"))


def least(values: Sequence[float]) -> Measured:
    """Return the least of a few rounds, with the most as the end of its range."""
    return Measured(min(values), Interval(min(values), max(values), "range"))


def nanoseconds(rounds: Sequence[float]) -> Measured:
    """Return what a native program prints of its rounds: lower quartile, median, upper, ns."""
    low, middle, high = rounds
    return Measured(middle, Interval(low, high, "quartiles")).times(1e-9)


@dataclass(frozen=True)
class Reference:
    """What a figure is compared with, measured in the same run: a floor, or a peer."""

    name: str
    measured: Measured


@dataclass(frozen=True)
class Target:
    """The bound of a value, of its ratio to the reference, or of its difference from it."""

    kind: Literal["at most", "at least", "within"]
    bound: float
    of: Literal["value", "ratio", "difference"] = "value"


def at_most(bound: float) -> Target:
    """Return the target that a value is no more."""
    return Target("at most", bound)


def at_least(bound: float) -> Target:
    """Return the target that a value is no less."""
    return Target("at least", bound)


def within(bound: float) -> Target:
    """Return the target that a value differs from zero by no more, in either direction."""
    return Target("within", bound)


def ratio_at_most(bound: float) -> Target:
    """Return the target that a value is no more than so many times its reference."""
    return Target("at most", bound, "ratio")


def added_at_most(bound: float) -> Target:
    """Return the target that a value exceeds its reference by no more."""
    return Target("at most", bound, "difference")


def added_within(bound: float) -> Target:
    """Return the target that a value differs from its reference by no more."""
    return Target("within", bound, "difference")


@dataclass(frozen=True)
class Figure:
    """One row of the table."""

    what: str
    unit: Unit
    measured: Measured
    reference: Reference | None = None
    target: Target | None = None

    def __post_init__(self) -> None:
        """Refuse a target that nothing can be judged by."""
        if self.target and self.target.of != "value" and self.reference is None:
            raise ValueError(f"{self.what}: a target of the {self.target.of} needs a reference")

    @property
    def ratio(self) -> float | None:
        """How many times its reference it is."""
        if self.reference is None or self.reference.measured.value == 0:
            return None
        return self.measured.value / self.reference.measured.value

    @property
    def ratio_range(self) -> tuple[float, float] | None:
        """The least and the most that any two rounds give, where both ranges are known."""
        ours = self.measured.interval
        theirs = self.reference.measured.interval if self.reference else None
        if ours is None or theirs is None or {ours.kind, theirs.kind} != {"range"}:
            return None
        return (ours.low / theirs.high, ours.high / theirs.low) if theirs.low > 0 else None

    @property
    def met(self) -> bool | None:
        """Whether it meets its target; None without one."""
        excess = self._excess()
        return None if excess is None else excess <= 0

    @property
    def missed_by(self) -> float | None:
        """By what share of the bound it misses its target; None if it does not, or has none."""
        excess = self._excess()
        if self.target is None or excess is None or excess <= 0 or self.target.bound == 0:
            return None
        return excess / abs(self.target.bound)

    def _excess(self) -> float | None:
        """How far beyond its bound it is. Not a number where there was nothing to judge."""
        if self.target is None:
            return None
        judged = self._judged(self.target)
        if self.target.kind == "at least":
            return self.target.bound - judged
        return (abs(judged) if self.target.kind == "within" else judged) - self.target.bound

    def _judged(self, target: Target) -> float:
        if target.of == "value" or self.reference is None:
            return self.measured.value
        if target.of == "difference":
            return self.measured.value - self.reference.measured.value
        return math.nan if self.ratio is None else self.ratio

    def result(self) -> str:
        """Say whether the target was met, and by how much it was not."""
        if self.met is None:
            return NONE
        if self.met:
            return "met"
        by = self.missed_by
        return "missed" if by is None or not math.isfinite(by) else f"missed by {_percent(by)}"

    def cells(self) -> tuple[str, ...]:
        """Return its row of the table, one cell for each of ``HEADINGS``."""
        reference = NONE
        if self.reference is not None:
            reference = f"{self.reference.name}: {_value(self.unit, self.reference.measured)}"
        return (
            self.what,
            _value(self.unit, self.measured),
            reference,
            self._ratio_cell(),
            NONE if self.target is None else _target(self.target, self.unit),
            self.result(),
        )

    def _ratio_cell(self) -> str:
        if self.ratio is None or self.ratio <= 0:
            return NONE
        found = _ratio(self.ratio)
        if self.ratio_range is None:
            return found
        low, high = map(_ratio, self.ratio_range)
        return f"{found} ({low} to {high})"

    def line(self) -> str:
        """Return its row as a line of its own."""
        what, measured, reference, ratio, target, result = self.cells()
        against = "" if reference == NONE else f", {reference}, ratio {ratio}"
        return f"{what}: {measured}{against}; target: {target}; {result}"

    def to_json(self) -> dict[str, Any]:
        """Return it as the results keep it, in base units."""
        unit, _ = self.unit.value
        return asdict(self) | {
            "unit": unit,
            "ratio": self.ratio,
            "ratio_range": self.ratio_range,
            "met": self.met,
            "missed_by": self.missed_by,
        }


def _measured(number: float) -> str:
    """Write three digits that count, and all before the point."""
    if number == 0 or not math.isfinite(number) or abs(number) >= 100:
        return f"{number:.0f}"
    return f"{number:#.3g}".removesuffix(".")


def _percent(share: float) -> str:
    return f"{share * 100:.2g} %" if share < 0.0995 else f"{share * 100:.0f} %"


def _value(unit: Unit, measured: Measured) -> str:
    """Write a value with its interval, both in one scale."""
    if measured.interval is None:
        return unit.text(measured.value)
    factor, _ = unit.scale(measured.value)
    low, high = (_measured(end / factor) for end in (measured.interval.low, measured.interval.high))
    return f"{unit.text(measured.value)} ({measured.interval.kind}: {low} to {high})"


def _ratio(ratio: float) -> str:
    return f"1/{_measured(1 / ratio)}" if 0 < ratio < _INVERTED_BELOW else _measured(ratio)


def _target(target: Target, unit: Unit) -> str:
    if target.of == "ratio":
        inverted = 0 < target.bound < _INVERTED_BELOW
        bound = f"1/{1 / target.bound:.4g}" if inverted else f"{target.bound:.4g}"
        return f"ratio {target.kind} {bound}"
    added = target.of == "difference"
    if target.kind == "within":
        return f"within ±{unit.exact(target.bound)}{' of it' if added else ''}"
    return f"{target.kind} {unit.exact(target.bound)}{' more' if added else ''}"


def total(figures: Iterable[Figure]) -> str:
    """Say in one line how many figures met their targets."""
    results = [figure.met for figure in figures]
    met, missed, without = (results.count(each) for each in (True, False, None))
    return f"met: {met}, missed: {missed}, without a target: {without}"


def printed(figures: Sequence[Figure], width: int | None = None, colour: bool = False) -> str:
    """Return the table for a terminal of so many columns, or for a file that wraps nothing."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for heading in HEADINGS:
        table.add_column(heading, no_wrap=heading == "ratio" and width is None)
    for figure in figures:
        *cells, result = figure.cells()
        style = {True: "green", False: "bold red", None: ""}[figure.met]
        table.add_row(*map(Text, cells), Text(result, style))
    out = io.StringIO()
    console = Console(
        file=out, width=width or _UNLIMITED, force_terminal=colour, no_color=not colour
    )
    console.print(table)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def markdown(figures: Sequence[Figure], notes: Iterable[str] = ()) -> str:
    """Return the page beside the results: the table, how many met their targets, and notes."""
    rows = [HEADINGS, ("---",) * len(HEADINGS)]
    rows += [tuple(cell.replace("|", "\\|") for cell in figure.cells()) for figure in figures]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    bullets = [f"- {' '.join(note.split())}" for note in notes]
    return "\n".join(
        ["# Benchmarks", "", *lines, "", total(figures), *([""] if bullets else []), *bullets, ""]
    )
