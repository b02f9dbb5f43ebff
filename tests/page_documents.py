"""Reads documents of the page as the page does: columns, sections, places."""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from haiprof.show.page.build import Built

_TYPES = {"f32": "<f4", "f64": "<f8", "i32": "<i4", "u32": "<u4", "u16": "<u2", "u8": "u1"}


def decoded(column: Any, blobs: list[str]) -> npt.NDArray[np.float64]:
    """Return the values of a column as the page computes them."""
    data = zlib.decompress(base64.b64decode(blobs[column["blob"]]), -15)
    kind = _TYPES[column["type"]]
    assert column["at"] % np.dtype(kind).itemsize == 0
    items = np.frombuffer(data, kind, column["n"], column["at"])
    values: npt.NDArray[np.float64] = items.astype(np.float64)
    if items.dtype.kind == "u" and not column.get("delta"):
        values[items == np.iinfo(items.dtype).max] = np.nan
    if items.dtype.kind == "i" and not column.get("delta"):
        values[items == np.iinfo(items.dtype).min] = np.nan
    if column.get("delta"):
        values = np.cumsum(values)
    scaled: npt.NDArray[np.float64] = values * column.get("scale", 1.0) + column.get("offset", 0.0)
    return scaled


def document_in(page: str) -> Any:
    """Return the document in the file of a page."""
    found = re.search(r'<script type="application/json" id="document">(.*?)</script>', page, re.S)
    assert found is not None
    return json.loads(found[1])


def texts_in(page: str) -> str:
    """Return all texts in the file of a page, a line each."""
    return "\n".join(each for _, each in parts(document_in(page)) if isinstance(each, str))


def section(built: Built, tab: str, identifier: str) -> Any:
    """Return a section; fails if the page has none of that name."""
    tabs = {each["id"]: each for each in built.document["tabs"]}
    return next(each for each in tabs[tab]["sections"] if each["id"] == identifier)


def parts(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Return all that is within a document, with the name that it has."""
    yield name, value
    if isinstance(value, dict):
        for key, each in value.items():
            yield from parts(each, str(key))
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from parts(each, name)


def check(built: Built) -> None:
    """Check what must be so of every document: the page relies on it."""
    document = built.document
    tabs = {tab["id"]: {each["id"] for each in tab["sections"]} for tab in document["tabs"]}
    assert len(tabs) == len(document["tabs"])
    for tab in document["tabs"]:
        assert len(tabs[tab["id"]]) == len(tab["sections"]), "ids of sections are unique"
    for name, value in parts(document):
        if isinstance(value, dict) and {"blob", "at", "n"} <= set(value):
            assert len(decoded(value, built.blobs)) == value["n"]
        if name in ("place", "places") and isinstance(value, dict):
            assert value["tab"] in tabs
            assert value.get("section", "") in {"", *tabs[value["tab"]]}
    for tab in document["tabs"]:
        for each in tab["sections"]:
            if each["kind"] == "table":
                for column in each["columns"]:
                    values: Any = column["values"]
                    assert len(values) == each["rows"]
            elif each["kind"] == "lanes":
                for lane in each["lanes"]:
                    lengths = {lane[part]["n"] for part in ("from", "length", "name_of")}
                    assert len(lengths) == 1
                    number = decoded(lane["name_of"], built.blobs)
                    assert number.max(initial=0) < max(len(lane["names"]), 1)
            elif each["kind"] == "heat":
                assert each["values"]["n"] == len(each["rows"]) * each["steps"]["n"]
            elif each["kind"] == "flame":
                for tree in each["trees"]:
                    above = decoded(tree["parent"], built.blobs)
                    assert (above < np.arange(len(above))).all(), "callers come first"
                    assert (decoded(tree["self"], built.blobs) >= 0).all()
