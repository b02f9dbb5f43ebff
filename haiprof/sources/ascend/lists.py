"""Lists as torch_npu writes them, separated by ';', as JSON.

Tests: tests/sources/ascend/test_text.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import polars as pl


def as_json(column: pl.Series, meaning: Callable[[str], Any]) -> pl.Series:
    """Return a column of lists as JSON arrays; each distinct text is parsed once."""
    known = column.drop_nulls().unique().to_list()
    lists = [json.dumps([meaning(part.strip()) for part in text.split(";")]) for text in known]
    result: pl.Series = column.replace_strict(
        known, pl.Series(lists, dtype=pl.String()), default=None, return_dtype=pl.String()
    )
    return result


def dimensions(text: str) -> list[int]:
    """Return the dimensions of ``32,3,224,224``; an empty list for a scalar or invalid text."""
    numbers = [part.strip() for part in text.split(",")]
    return [int(number) for number in numbers] if all(n.isdecimal() for n in numbers) else []
