"""The contract between Python and the page: a document of tabs, and sections of a few kinds.

The page's side of it is ``page/src/document.ts``. All times are seconds since the document's
origin. Texts are plain: the page never reads them as HTML.

Tests: tests/show/page/test_build.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Literal, TypedDict

if TYPE_CHECKING:
    from typing_extensions import NotRequired

FORMAT: Final = 1

ColumnType = Literal["f32", "f64", "i32", "u32", "u16", "u8"]


class Column(TypedDict):
    """Where the values of an array are: ``n`` items of ``type`` from byte ``at`` of a blob on.

    A value is an item (with ``delta`` the sum of all items so far) times ``scale`` plus ``offset``.
    An absent one is NaN, of unsigned integers all bits, of signed ones the least number.
    """

    type: ColumnType
    blob: int
    at: int
    n: int
    delta: NotRequired[bool]
    scale: NotRequired[float]
    offset: NotRequired[float]


#: A place in the page, as its address has it: a tab, and what is chosen there.
Place = TypedDict(
    "Place",
    {
        "tab": str,
        "section": str,
        "rank": int,
        "step": int,
        "from": float,
        "to": float,
        "find": str,
        "frame": str,
    },
    total=False,
)


class _Section(TypedDict):
    """What all sections have; ``empty`` is why there is nothing, ``rank`` whose it is."""

    id: str
    title: str
    rank: NotRequired[int]
    note: NotRequired[str]
    group: NotRequired[str]
    open: NotRequired[bool]
    empty: NotRequired[str]


class Text(_Section):
    """Sentences."""

    kind: Literal["text"]
    lines: list[str]


class Evidence(TypedDict):
    """A figure that a finding rests on, and where it can be seen."""

    text: str
    place: NotRequired[Place]


class Finding(TypedDict):
    """One finding; ``lost`` are seconds, ``share`` is of the time of the steps."""

    kind: str
    title: str
    text: str
    severity: Literal["problem", "note"]
    lost: NotRequired[float]
    share: NotRequired[float]
    ranks: NotRequired[list[int]]
    line: NotRequired[str]
    fix: NotRequired[str]
    evidence: list[Evidence]
    place: NotRequired[Place]
    confidence: NotRequired[float]


class Findings(_Section):
    """Findings, the most important first."""

    kind: Literal["findings"]
    items: list[Finding]


class Trend(TypedDict):
    """The points of a line."""

    x: Column
    y: Column


class Line(Trend):
    """One line of a figure; ``low`` and ``high`` bound what lies around it.

    Of a ``stepped`` one each value lasts until the next point.
    """

    name: str
    low: NotRequired[Column]
    high: NotRequired[Column]
    before: NotRequired[Trend]
    stepped: NotRequired[bool]
    colour: NotRequired[str]


class _MarkTime(TypedDict):
    at: float
    kind: str
    text: str


class Mark(_MarkTime, total=False):
    """Something that happened, or lasted."""

    to: float
    rank: int


class Series(_Section):
    """Lines over the run (``axis`` is ``run``: seconds), its steps (``step``: numbers) or a time.

    Such a time is an axis of its own, ``time:`` and a name: seconds from its own beginning. Series
    of one axis are zoomed together.
    """

    kind: Literal["series"]
    axis: str
    unit: str
    stacked: NotRequired[bool]
    lines: list[Line]
    marks: NotRequired[list[Mark]]
    moves: NotRequired[bool]


class HeatRow(TypedDict):
    """Whose row it is."""

    label: str
    rank: NotRequired[int]


class Heat(_Section):
    """A value for each row and step (``values`` row by row)."""

    kind: Literal["heat"]
    rows: list[HeatRow]
    steps: Column
    values: Column
    unit: str
    more: NotRequired[str]


class Detail(TypedDict):
    """A further value of each shape of a lane."""

    name: str
    unit: str
    values: Column


_Times = TypedDict("_Times", {"from": Column, "length": Column})
_Steps = TypedDict("_Steps", {"number": Column, "from": Column, "to": Column})


class Lane(_Times):
    """Shapes side by side: when each began, how long it took, and its name."""

    name: str
    group: str
    name_of: Column
    depth: NotRequired[Column]
    names: list[str]
    colour: NotRequired[Literal["name", "phase"]]
    detail: NotRequired[list[Detail]]


class Lanes(_Section):
    """What happened at the same time, and where the steps were; the axis is as that of series."""

    kind: Literal["lanes"]
    axis: str
    lanes: list[Lane]
    steps: NotRequired[_Steps]


class Tree(TypedDict):
    """Paths of calls, callers first: ``parent`` is the place of the caller, -1 has none."""

    name: str
    name_of: Column
    parent: Column
    self: Column
    before: NotRequired[Column]


class Flame(_Section):
    """A flame graph; ``places`` has the file and line of each name."""

    kind: Literal["flame"]
    unit: str
    names: list[str]
    places: list[str]
    trees: list[Tree]


class TableColumn(TypedDict):
    """One column of a table.

    ``values`` are finished texts where ``order``, by which the column is sorted, stands beside
    them; ``number`` says that they are figures.
    """

    name: str
    unit: NotRequired[str]
    help: NotRequired[str]
    values: Column | Sequence[str] | Sequence[float | None]
    order: NotRequired[Sequence[float | None]]
    number: NotRequired[bool]
    before: NotRequired[Column | Sequence[float | None]]
    bar: NotRequired[bool]
    chance: NotRequired[Sequence[str | None]]
    colour: NotRequired[str]


class Table(_Section):
    """A table; a row may have a place that it leads to."""

    kind: Literal["table"]
    columns: list[TableColumn]
    rows: int
    more: NotRequired[str]
    places: NotRequired[Sequence[Place | None]]


class Part(TypedDict):
    """The same part of each bar."""

    name: str
    values: Sequence[float | None]
    colour: NotRequired[str]


class Bars(_Section):
    """A bar for each category, made of parts."""

    kind: Literal["bars"]
    unit: str
    categories: list[str]
    parts: list[Part]
    stacked: bool
    places: NotRequired[Sequence[Place | None]]


Section = Text | Findings | Series | Heat | Lanes | Flame | Table | Bars


class Tab(TypedDict):
    """Sections that answer one question."""

    id: str
    title: str
    sections: list[Section]


class Before(TypedDict):
    """The run that another one is compared with."""

    name: str
    facts: list[str]
    origin_ns: str
    duration: float


class Live(TypedDict):
    """How often (s) a page that follows a job asks for one that is newer than ``version``."""

    every: float
    version: str


class Document(TypedDict):
    """All that the page shows; ``origin_ns`` is ns UTC, as text: no number of JSON is as exact."""

    format: int
    title: str
    name: str
    facts: list[str]
    origin_ns: str
    duration: float
    before: NotRequired[Before]
    headline: list[str]
    ranks: list[int]
    chosen_ranks: list[int]
    tabs: list[Tab]
    made_by: str
    live: NotRequired[Live]
