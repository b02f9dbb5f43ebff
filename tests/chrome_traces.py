"""A second reader of trace files, over json and one event at a time: what the parser must find."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Mapping
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation, localcontext
from typing import Any, NamedTuple

import numpy as np
from uncollected import uncollected

from haiprof import _core

NO_NUMBER = -(2**63)
NO_TEXT = 2**32 - 1
NOTHING = {"null", "N/A", "NaN", "nan", "-nan", "-NaN", "None"} | {
    sign + word for sign in ("", "-") for word in ("Infinity", "inf")
}

#: Where the categories of the recorded traces go, for tests.
CATEGORIES = {
    **dict.fromkeys(
        ("cpu_op", "operator", "runtime", "cuda_runtime", "cuda_driver", "mtia_runtime", "overhead",
         "user_annotation", "python_function", "cuda_profiler_range"), "spans"
    ),
    **dict.fromkeys(
        ("kernel", "gpu_memcpy", "memcpy", "gpu_memset", "memset", "cuda_sync", "mtia_ccp_events",
         "gpu_user_annotation"), "activities"
    ),
    "trace": "",
}  # fmt: skip
WITH_ARGUMENTS = ["cuda_profiler_range"]


class Written(str):
    """A number as it is written."""


def loads(text: str) -> Any:
    """Read JSON with the words that are none; numbers stay as they are written."""
    return json.loads(
        re.sub(r":\s*N/A\b", ": null", text),
        parse_int=Written,
        parse_float=Written,
        parse_constant=lambda word: None,
        strict=False,
    )


def plain(text: str) -> str:
    """Replace what is no character."""
    if text.isascii():
        return text
    return re.sub("[\ud800-\udfff]", "\ufffd", text)


def decimal(value: Any) -> Decimal | None:
    if not isinstance(value, str) or value in NOTHING:
        return None
    if not re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", value):
        return None
    try:
        return Decimal(value)
    except InvalidOperation:
        return None


def time(value: Any) -> int | None:
    if isinstance(value, str):
        us, _, part = value.partition(".")
        if (
            len(us) < 16
            and us.isascii()
            and us.isdecimal()
            and len(part) < 4
            and (part or "0").isdecimal()
        ):
            return int(us) * 1000 + int((part + "000")[:3])
    number = decimal(value)
    if number is None or abs(number) > 2**63:
        return None
    with localcontext() as context:
        context.prec = 1000
        ns = int((number * 1000).quantize(Decimal(1), ROUND_HALF_UP))
    return ns if -(2**63) < ns < 2**63 else None


def length(value: Any) -> int | None:
    ns = time(value)
    return None if ns is None or ns < 0 else ns


def whole(low: int, high: int) -> Callable[[Any], int | None]:
    def convert(value: Any) -> int | None:
        if isinstance(value, str) and len(value) < 20 and value.isascii() and value.isdecimal():
            return int(value) if int(value) <= high else None
        number = decimal(value)
        if isinstance(value, str) and re.fullmatch(r"0[xX][0-9a-fA-F]{1,16}", value):
            number = Decimal(int(value, 16))
        if number is None or abs(number) > 2**65 or number != number.to_integral_value():
            return None
        return int(number) if low <= number <= high else None

    return convert


number = whole(-(2**63) + 1, 2**63 - 1)
identity = whole(0, 2**64 - 1)
count = whole(0, 2**32 - 2)


def real(value: Any) -> float | None:
    exact = decimal(value)
    if exact is None:
        return None
    rounded = float(exact)
    return None if abs(rounded) == float("inf") or (rounded == 0 and exact != 0) else rounded


def text(value: Any) -> str | None:
    return plain(value) if isinstance(value, str) and not isinstance(value, Written) else None


def label(value: Any) -> str | None:
    return plain(value) if isinstance(value, str) else None


def as_json(value: Any) -> Any:
    """What JSON text has to say; a string stays as it is."""
    if isinstance(value, Written):
        return ("json", json_loads(value))
    if isinstance(value, str):
        return plain(value)
    return None if value is None else ("json", numbers(value))


def numbers(value: Any) -> Any:
    if isinstance(value, Written):
        return json_loads(value)
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return [numbers(each) for each in value]
    if isinstance(value, dict):
        return {name: numbers(each) for name, each in value.items()}
    return value


class Read(NamedTuple):
    """A column: which member it is of, and how that is read."""

    members: tuple[str, ...]
    how: Callable[[Any], Any]


def of(how: Callable[[Any], Any], *members: str) -> Read:
    return Read(members, how)


def third(place: int) -> Callable[[Any], int | None]:
    def convert(value: Any) -> int | None:
        if not isinstance(value, list) or len(value) <= place:
            return None
        return count(value[place])

    return convert


PLACE = {"process": of(label, "pid"), "thread": of(label, "tid")}
NAMED = {"category": of(text, "cat"), "name": of(text, "name"), **PLACE}
LASTING = {"start": of(time, "ts"), "duration": of(length, "dur"), **NAMED}
LINKED = {
    "correlation": of(identity, "/correlation"),
    "external": of(identity, "/External id", "/external id"),
}
GROUPS: Mapping[str, Mapping[str, Read]] = {
    "spans": {
        **LASTING,
        **LINKED,
        "sequence": of(number, "/Sequence number"),
        "forward_thread": of(count, "/Fwd thread id", "/Fwd thread ID"),
        "shapes": of(as_json, "/Input Dims", "/Input dims"),
        "types": of(as_json, "/Input type", "/Input types", "/Input Types"),
        "inputs": of(as_json, "/Concrete Inputs"),
        "stack": of(text, "/Call stack"),
        "python_id": of(count, "/Python id"),
        "python_parent": of(count, "/Python parent id"),
        "module": of(count, "/Python module id"),
        "arguments": of(as_json, "args"),
    },
    "activities": {
        **LASTING,
        **LINKED,
        "device": of(count, "/device"),
        "stream": of(count, "/stream"),
        "context": of(count, "/context"),
        "queued": of(number, "/queued"),
        **{f"grid_{axis}": of(third(i), "/grid") for i, axis in enumerate("xyz")},
        **{f"block_{axis}": of(third(i), "/block") for i, axis in enumerate("xyz")},
        "registers": of(count, "/registers per thread"),
        "shared_memory": of(count, "/shared memory"),
        "bytes": of(number, "/bytes", "/Bytes"),
        "bandwidth": of(real, "/memory bandwidth (GB/s)"),
        "blocks_per_sm": of(real, "/blocks per SM"),
        "warps_per_sm": of(real, "/warps per SM"),
        "occupancy": of(real, "/est. achieved occupancy %"),
        "graph": of(count, "/graph id"),
        "graph_node": of(identity, "/graph node id"),
        "kind": of(text, "/kind"),
        "sync_kind": of(text, "/cuda_sync_kind"),
        "wait_stream": of(count, "/wait_on_stream"),
        "wait_event": of(number, "/wait_on_cuda_event_id"),
        "wait_correlation": of(identity, "/wait_on_cuda_event_record_corr_id"),
        "arguments": of(as_json, "args"),
    },
    "collectives": {
        "op": of(text, "/Collective name"),
        "group": of(as_json, "/Process Group Name"),
        "group_description": of(as_json, "/Process Group Description"),
        "group_id": of(as_json, "/Process Group ID"),
        "group_size": of(count, "/Group size"),
        "ranks": of(as_json, "/Process Group Ranks"),
        "rank": of(count, "/Rank"),
        "type": of(as_json, "/dtype"),
        "elements_in": of(number, "/In msg nelems"),
        "elements_out": of(number, "/Out msg nelems"),
        "splits_in": of(as_json, "/In split size"),
        "splits_out": of(as_json, "/Out split size"),
        "first_rank": of(number, "/Global rank start"),
        "rank_stride": of(number, "/Global rank stride"),
        "source_rank": of(number, "/Src Rank"),
        "target_rank": of(number, "/Dst Rank"),
    },
    "allocations": {
        "time": of(time, "ts"),
        **PLACE,
        "device_type": of(number, "/Device Type"),
        "device": of(count, "/Device Id"),
        "address": of(identity, "/Addr"),
        "bytes": of(number, "/bytes", "/Bytes"),
        "total_allocated": of(number, "/Total Allocated"),
        "total_reserved": of(number, "/Total Reserved"),
    },
    "instants": {"time": of(time, "ts"), **NAMED, "arguments": of(as_json, "args")},
    "flows": {"time": of(time, "ts"), **NAMED, "id": of(identity, "id")},
    "counters": {"time": of(time, "ts"), "name": of(text, "name"), **PLACE, "id": of(label, "id")},
    "metadata": {"name": of(text, "name"), **PLACE, "arguments": of(as_json, "args")},
}
#: Columns that no member of an event gives.
GIVEN = {"side": None, "row": None, "instance": text, "value": None}
#: Group -> member -> the columns that it becomes, and how it is read.
BY_MEMBER: dict[str, dict[str, list[tuple[str, Callable[[Any], Any]]]]] = {}
for _group, _columns in GROUPS.items():
    _by_member = BY_MEMBER.setdefault(_group, {})
    for _name, _read in _columns.items():
        for _member in _read.members:
            _by_member.setdefault(_member, []).append((_name, _read.how))

#: An event with one of these is one of a collective.
OF_COLLECTIVES = frozenset(
    ("/Collective name", "/In msg nelems", "/Out msg nelems", "/Process Group Name")
)

Rows = dict[str, list[dict[str, Any]]]


def read_event(event: Any, rows: Rows) -> None:
    if not isinstance(event, dict) or not isinstance(event.get("ph"), str):
        return
    members: dict[str, Any] = {**event}
    args = event.get("args")
    if isinstance(args, dict):
        members.update((f"/{name}", value) for name, value in args.items())
    side: dict[str, Any] = {}
    match event["ph"]:
        case "X":
            category = text(event.get("cat")) or ""
            group = CATEGORIES.get(category.lower(), "")
        case "i" | "I" | "R":
            group = "allocations" if event.get("name") == "[memory]" else "instants"
        case "s" | "t" | "f":
            group, side = "flows", {"side": "stf".index(event["ph"])}
        case "M":
            group = "metadata"
        case "C":
            group = ""
            for name, value in args.items() if isinstance(args, dict) else ():
                if real(value) is not None:
                    add("counters", members, {"instance": plain(name), "value": real(value)}, rows)
        case _:
            group = ""
    if not group:
        return
    if group in ("spans", "activities") and text(event.get("cat")) not in WITH_ARGUMENTS:
        members.pop("args", None)
    if not add(group, members, side, rows) or group not in ("spans", "activities"):
        return
    if not OF_COLLECTIVES.isdisjoint(members):
        link = {"side": int(group == "activities"), "row": len(rows[group]) - 1}
        add("collectives", members, link, rows)


def add(group: str, members: dict[str, Any], given: dict[str, Any], rows: Rows) -> bool:
    row = {**given}
    columns = BY_MEMBER[group]
    for member, value in members.items():
        for column, how in columns.get(member, ()):
            row[column] = how(value)
    if group not in ("collectives", "metadata") and row.get("start", row.get("time")) is None:
        return False
    rows.setdefault(group, []).append(row)
    return True


def expected(raw: bytes) -> tuple[Rows, dict[str, Any]]:
    """The rows of a file by group, and its other members."""
    with uncollected():
        return _expected(raw)


def _expected(raw: bytes) -> tuple[Rows, dict[str, Any]]:
    document = loads(raw.decode("utf-8", "replace"))
    rows: Rows = {}
    if isinstance(document, list):
        events, header = document, {}
    else:
        events = document.pop("traceEvents")
        header = {name: numbers(value) for name, value in document.items()}
    for event in events:
        read_event(event, rows)
    return rows, header


def parse(raw: bytes, pieces: list[int] | None = None) -> _core.TraceParser:
    """Parse a file, cut into pieces of these sizes over and over."""
    parser = _core.TraceParser(CATEGORIES, WITH_ARGUMENTS)
    view, at, i = memoryview(raw), 0, 0
    while at < len(raw):
        size = pieces[i % len(pieces)] if pieces else len(raw)
        parser.feed(view[at : at + size])
        at += size
        i += 1
    parser.finish()
    return parser


def values(array: Any, strings: list[str], how: Callable[[Any], Any] | None) -> list[Any]:
    """The values of a column as the second reader has them."""
    listed = array.tolist()
    if array.dtype == np.float64:
        return [None if value != value else value for value in listed]
    if array.dtype == np.int64:
        unsigned = how is identity
        return [
            None if value == NO_NUMBER else value % 2**64 if unsigned else value for value in listed
        ]
    if how in (text, label, as_json):
        return [None if code == NO_TEXT else strings[code] for code in listed]
    return [None if value == NO_TEXT else value for value in listed]


@functools.cache
def json_loads(text: str) -> Any:
    return json.loads(text)


def same(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, tuple):
        return isinstance(found, str) and bool(json_loads(found) == wanted[1])
    return bool(found == wanted)


def differences(parser: _core.TraceParser, rows: Rows) -> list[str]:
    """Where the parser found something else than the second reader; empty when nowhere."""
    strings = parser.strings()
    taken = parser.take()
    problems = [f"{group}: only the parser has it" for group in taken if group not in rows]
    for group, wanted in rows.items():
        columns = taken.get(group, {})
        hows = {name: read.how for name, read in GROUPS[group].items()}
        problems += [f"{group}.{name}: not known" for name in columns if name not in (hows | GIVEN)]
        for name, how in (hows | GIVEN).items():
            want = [row.get(name) for row in wanted]
            got = values(columns[name], strings, how) if name in columns else [None] * len(want)
            if len(got) != len(want):
                problems.append(f"{group}.{name}: {len(got)} rows for {len(want)}")
            elif got != want and not all(map(same, got, want)):
                at = list(map(same, got, want)).index(False)
                problems.append(f"{group}.{name}[{at}]: {got[at]!r} for {want[at]!r}")
    return problems
