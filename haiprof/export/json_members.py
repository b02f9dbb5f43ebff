"""Members of JSON objects as expressions over rows: ``,"name":value``, or null without a value.

Texts are turned into JSON once for each that there is, not for each row.

Tests: tests/export/test_chrome.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import polars as pl


def microseconds(ns: pl.Expr) -> pl.Expr:
    """Return ns as texts of µs with three decimals; null stays null."""
    size = ns.abs()
    sign = pl.when(ns < 0).then(pl.lit("-")).otherwise(pl.lit(""))
    return pl.format("{}{}.{}", sign, size // 1000, (size % 1000).cast(pl.String).str.zfill(3))


def number(name: str, column: str) -> pl.Expr:
    """Return a whole number."""
    return pl.format(f',"{name}":{{}}', column)


def real(name: str, column: str) -> pl.Expr:
    """Return a fraction; JSON has no infinity."""
    value = pl.col(column)
    return pl.when(value.is_finite()).then(pl.format(f',"{name}":{{}}', value))


def word(name: str, word: pl.Expr) -> pl.Expr:
    """Return a text that needs no escapes."""
    return pl.format(f',"{name}":"{{}}"', word)


def member(name: str, value: pl.Expr) -> pl.Expr:
    """Return a value that is JSON."""
    return pl.format(f',"{name}":{{}}', value)


def renamed(column: str, names: dict[str, str], other: str | None = None) -> pl.Expr:
    """Return texts by their other names; what has none is ``other``, or stays as it is."""
    text = pl.col(column).cast(pl.String)
    if other is None:
        return text.replace(names)
    return text.replace_strict(names, default=other, return_dtype=pl.String)


def quoted_words(texts: pl.Expr) -> pl.Expr:
    """Return words that need no escapes as JSON strings."""
    return pl.format('"{}"', texts)


def quoted(texts: pl.Series) -> pl.Expr:
    """Return JSON strings; null stays null."""
    return _each_once(texts, json.dumps)


def as_json(texts: pl.Series) -> pl.Expr:
    """Return texts that are JSON as they are, and others as JSON strings; null stays null."""
    return _each_once(texts, _valid)


def _each_once(texts: pl.Series, convert: Callable[[str], str]) -> pl.Expr:
    coded = texts if isinstance(texts.dtype, pl.Categorical) else texts.cast(pl.Categorical())
    known = coded.unique().drop_nulls()
    if not len(known):
        return pl.lit(None, pl.String)
    codes = known.to_physical().to_numpy()
    table = np.zeros(int(codes.max()) + 1, np.int64)
    table[codes] = np.arange(len(known))
    values = pl.Series([convert(text) for text in known.cast(pl.String).to_list()], dtype=pl.String)
    physical = coded.to_physical()
    place = pl.Series(table[physical.fill_null(int(codes[0])).to_numpy()])
    written = values.gather(place)
    return pl.when(pl.Series(coded.is_not_null())).then(pl.lit(written))


def parsed(text: str) -> Any:
    """Return parsed JSON; None for null or invalid text."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _valid(text: str) -> str:
    return json.dumps(text) if parsed(text) is None and text != "null" else text


def attributes(rows: pl.DataFrame, verbatim: pl.Expr) -> Iterator[pl.Expr]:
    """Yield the members of JSON objects: as arguments themselves, or together as one of them."""
    texts_of = as_json(rows["attributes"])
    inner = texts_of.str.strip_chars_start("{").str.strip_suffix("}")
    is_object = texts_of.str.starts_with("{") & (inner.str.strip_chars() != "")
    yield pl.when(verbatim & is_object).then(pl.format(",{}", inner))
    yield member("attributes", pl.when(~verbatim).then(texts_of))
