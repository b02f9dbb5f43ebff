"""Communication that a file records: calls of the host and kernels, with their arguments.

Only what the file states becomes a row: which kernels communicate by their names alone is up to the
analysis, whose rules may change after the import.

Tests: tests/sources/kineto/test_import.py.
"""

from __future__ import annotations

import json
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from haiprof.common.element_types import element_bytes
from haiprof.sources.kineto import words
from haiprof.sources.kineto.columns import (
    NO_NUMBER,
    Columns,
    Group,
    Numbers,
    codes,
    counts,
    durations,
    identities,
    picked,
    picked_or_none,
    signed,
    signed_column,
    some,
    times,
)
from haiprof.sources.kineto.texts import NO_CODE, Codes, Texts, word_column

#: Attributes of a communication beside the columns of its table: JSON member <- column.
_FURTHER: Final = {
    "description": "group_description",
    "group_id": "group_id",
    "rank": "rank",
    "splits_in": "splits_in",
    "splits_out": "splits_out",
    "first_rank": "first_rank",
    "rank_stride": "rank_stride",
    "source_rank": "source_rank",
    "target_rank": "target_rank",
}


def host_collectives(
    texts: Texts,
    spans: Group,
    calls: npt.NDArray[np.bool_],
    threads: npt.NDArray[np.uint32],
    collectives: Group | None,
    base: int,
) -> Columns:
    """Return the communication that spans of the host start.

    Args:
        texts: of the file.
        spans: the parser's rows.
        calls: which of them are ops or user ranges.
        threads: of each span.
        collectives: the parser's ``collectives``: the arguments of spans that have any.
        base: ns since the epoch that the file's times count from.
    """
    names = codes(spans, "name")
    ops = np.full(len(names), NO_CODE, np.uint32)
    which = np.full(len(names), -1, np.int64)
    if collectives is not None:
        of_host = np.flatnonzero(collectives["side"] == 0)
        which[collectives["row"][of_host]] = of_host
        ops[collectives["row"][of_host]] = codes(collectives, "op")[of_host]
    named = texts.spread(names, lambda name: words.collective_of(name) is not None, 0, np.bool_)
    chosen = np.flatnonzero(calls & (named | (ops != NO_CODE)))
    if not len(chosen):
        return {}
    ops, rows = ops[chosen], picked(spans, chosen)
    pairs, index = _pairs(ops, names[chosen])
    said = [
        words.collective_of(texts[name]) if op == NO_CODE else texts[op]
        for op, name in pairs.tolist()
    ]
    return {
        "side": word_column(np.zeros(len(chosen), np.int8), ("host",)),
        "op": word_column(index, said),
        "start": times(rows, "start", base),
        "duration": durations(rows),
        "thread": pa.array(threads[chosen]),
        **identities(rows, "external"),
        **_arguments(texts, collectives, which[chosen], _bytes_of_inputs(texts, rows)),
    }


def device_collectives(texts: Texts, activities: Group, collectives: Group, base: int) -> Columns:
    """Return the communication of kernels, as their arguments describe it.

    Args:
        texts: of the file.
        activities: the parser's rows.
        collectives: the parser's ``collectives``: the arguments of activities that have any.
        base: ns since the epoch that the file's times count from.
    """
    ops = codes(collectives, "op")
    which = np.flatnonzero((collectives["side"] == 1) & (ops != NO_CODE)).astype(np.int64)
    if not len(which):
        return {}
    rows = picked(activities, collectives["row"][which])
    return {
        "side": word_column(np.zeros(len(which), np.int8), ("device",)),
        "op": texts.column(ops[which]),
        "start": times(rows, "start", base),
        "duration": durations(rows),
        **identities(rows, "external", "correlation"),
        **_arguments(texts, collectives, which, np.full(len(which), NO_NUMBER, np.int64)),
    }


def _arguments(
    texts: Texts, collectives: Group | None, which: Numbers, bytes_in: Numbers
) -> Columns:
    """Return the columns of the rows ``which`` of ``collectives``; negative ones have no arguments.

    ``bytes_in`` is the number of bytes known from elsewhere.
    """
    rows = picked_or_none(collectives or {}, which)
    elements = rows.get("elements_in")
    if elements is not None and "type" in rows:
        sizes = texts.spread(rows["type"], element_bytes, 0, np.int64)
        known = (elements != NO_NUMBER) & (rows["type"] != NO_CODE)
        total = np.where(known & (sizes > 0), elements * sizes, NO_NUMBER)
        bytes_in = np.where(known, total, bytes_in)
    columns = {
        name: texts.column(rows[name]) for name in ("group", "ranks", "type") if name in rows
    }
    return {
        **columns,
        **counts(rows, "collectives", "group_size"),
        **signed(rows, "elements_in", "elements_out"),
        **some("bytes", signed_column(bytes_in)),
        **_further(texts, rows),
    }


def _further(texts: Texts, rows: Group) -> Columns:
    known = {member: rows[column] for member, column in _FURTHER.items() if column in rows}
    if not known:
        return {}
    keys = np.stack([column.astype(np.int64) for column in known.values()], axis=1)
    found, index = np.unique(keys, axis=0, return_inverse=True)
    attributes = []
    for row in found.tolist():
        members: dict[str, Any] = {}
        for (member, column), value in zip(known.items(), row, strict=True):
            if column.dtype == np.int64:
                if value != NO_NUMBER:
                    members[member] = value
            elif value != NO_CODE:
                members[member] = value if member == "rank" else _value(texts[value])
        attributes.append(json.dumps(members) if members else None)
    return some("attributes", word_column(index.reshape(-1), attributes))


def _value(text: str) -> Any:
    """Return the original value: the parser passes values other than texts as JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _bytes_of_inputs(texts: Texts, spans: Group) -> Numbers:
    pairs, index = _pairs(codes(spans, "shapes"), codes(spans, "types"))
    totals = [
        None if NO_CODE in (shapes, types) else words.input_bytes(texts[shapes], texts[types])
        for shapes, types in pairs.tolist()
    ]
    sizes: Numbers = np.array([NO_NUMBER if n is None else n for n in totals], np.int64)[index]
    return sizes


def _pairs(first: Codes, second: Codes) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.intp]]:
    """Return the distinct pairs of the rows, and each row's index in them."""
    both = first.astype(np.uint64) << np.uint64(32) | second
    found, index = np.unique(both, return_inverse=True)
    return np.stack([found >> np.uint64(32), found & np.uint64(NO_CODE)], axis=1), index
