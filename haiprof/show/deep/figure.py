"""What figures of deep traces show, in values: the page draws them.

Tests: tests/show/test_deep.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

Floats = npt.NDArray[np.float64]


class Part(NamedTuple):
    """The same part of each bar: its name, its value in each, and its colour."""

    name: str
    values: list[float]
    colour: str


@dataclass(frozen=True, slots=True)
class Bars:
    """A bar for each category, of parts that add up; ``unit`` is one of the page's."""

    title: str
    unit: str
    categories: list[str]
    parts: Sequence[Part]
    note: str = ""


class Curve(NamedTuple):
    """A value that lasts from each time (s from the figure's begin) until the next."""

    name: str
    times: Floats
    values: Floats


@dataclass(frozen=True, slots=True)
class Curves:
    """Curves over one time; ``unit`` is one of the page's."""

    title: str
    unit: str
    curves: Sequence[Curve]


@dataclass(frozen=True, slots=True)
class Flames:
    """A flame graph: rows with ``parent`` (a row before), ``depth``, ``name`` and ``self`` (ns)."""

    title: str
    paths: pl.DataFrame
