"""Mutations of values: types swapped, fields missing, numbers that are none."""

from __future__ import annotations

from typing import Any

from mutation import TURNS, Maker, Sources, add, dump, raw, some, timed

#: Values of every type, for fields of another.
_SWAPS = {
    "null": None,
    "true": True,
    "number": 7,
    "fraction": 0.5,
    "text": "soon",
    "digits": "12",
    "list": [1, {"a": []}],
    "object": {"a": [1]},
}
_FIELDS = ("ph", "cat", "name", "pid", "tid", "ts", "dur", "args", "id")
_ARGUMENTS = {
    "External id": "whole", "correlation": "whole", "device": "whole", "stream": "whole",
    "context": "sync", "grid": "whole", "block": "whole", "blocks per SM": "whole",
    "warps per SM": "sync", "est. achieved occupancy %": "whole", "registers per thread": "whole",
    "shared memory": "whole", "bytes": "whole", "memory bandwidth (GB/s)": "sync",
    "Input Dims": "ranks", "Input type": "ranks", "Sequence number": "ranks",
    "Fwd thread id": "ranks", "Call stack": "whole", "Python id": "whole",
    "Python parent id": "whole", "Python module id": "whole", "Addr": "whole", "Bytes": "whole",
    "Total Allocated": "whole", "Total Reserved": "whole", "Device Type": "whole",
    "Device Id": "whole", "cbid": "sync", "wait_on_stream": "sync", "queued": "sync",
}  # fmt: skip
_NUMBERS = {
    "minus_one": "-1",
    "minus_zero": "-0",
    "exponent": "1.5e3",
    "smallest": "5e-324",
    "underflow": "1e-400",
    "long_fraction": "0." + "3" * 400,
    "signed": "+1",
}
#: Numbers that are no time: too large for ns in 64 bits, or not numbers at all.
_NO_TIMES = {
    "huge": "1e300",
    "minus_huge": "-1e300",
    "overflow": "1e999",
    "most": "9223372036854775807",
    "more": "9223372036854775808",
    "least": "-9223372036854775808",
    "unsigned": "18446744073709551616",
    "long": "9" * 400,
    "nan": "NaN",
    "infinity": "Infinity",
    "minus_infinity": "-Infinity",
    "c_nan": "-nan",
    "c_infinity": "inf",
    "not_available": "N/A",
    "hexadecimal": "0x10",
    "no_exponent": "1e",
    "two_signs": "--1",
    "grouped": "1_000",
    "word": "None",
    "nothing": "",
}
_HEADERS: dict[str, tuple[Any, ...]] = {
    "deviceProperties": (
        None, "V100", {}, [None], ["V100"], [[]], [{}], [{"id": -1}], [{"id": "0", "numSms": "x"}],
        [{"id": 2**70, "name": None, "totalGlobalMem": -5, "numSms": 0}], [{"id": 0}] * 3000,
    ),
    "distributedInfo": (
        None, "nccl", [], {"rank": None}, {"rank": -1}, {"rank": "0"}, {"rank": 2**64},
        {"rank": 0.5, "world_size": "many"}, {"rank": 3, "world_size": 1, "backend": ["nccl"]},
    ),
    "baseTimeNanoseconds": (None, "soon", -1, 2**63, 1.5, [], 10**400),
    "schemaVersion": (None, "one", 999, []),
    "displayTimeUnit": ("fortnights", None, 3),
    "traceName": ({}, "../../../../etc/passwd", "a" * 100_000, None),
}  # fmt: skip


def _set(source: str, field: str, value: Any) -> Maker:
    def mutate(sources: Sources) -> bytes:
        trace = sources.trace(source)
        wanted = (lambda e: "id" in e) if field == "id" else timed
        for event in some(trace["traceEvents"], wanted):
            event[field] = value
        return dump(trace)

    return mutate


def _drop(source: str, field: str) -> Maker:
    def mutate(sources: Sources) -> bytes:
        trace = sources.trace(source)
        for event in some(trace["traceEvents"], lambda e: timed(e) and field in e):
            del event[field]
        return dump(trace)

    return mutate


def _set_argument(source: str, field: str, values: list[Any]) -> Maker:
    def mutate(sources: Sources) -> bytes:
        trace = sources.trace(source)
        # What none of these traces has, every event is given.
        events = [event for event in trace["traceEvents"] if "args" in event]
        found = [event for event in events if field in event["args"]] or events
        for number, event in enumerate(found):
            event["args"][field] = values[number % len(values)]
        return dump(trace)

    return mutate


def _set_header(source: str, field: str, value: Any) -> Maker:
    return lambda sources: dump({**sources.trace(source), field: value})


for _turn, _field in enumerate(_FIELDS):
    for _kind, _value in _SWAPS.items():
        _timeless = _field == "ts" and _kind not in ("number", "fraction", "digits")
        _endless = _field == "dur" and _kind in ("true", "text", "list", "object")
        _nameless = _field == "name" and _kind in ("list", "object", "null")
        add(
            f"type.{_field}_is_{_kind}",
            _set("sync" if _field == "id" else TURNS[_turn % 4], _field, _value),
            _timeless or _endless or _nameless,
        )
for _field in ("ph", "cat", "name", "pid", "tid", "ts", "dur", "args"):
    add(f"missing.{_field}", _drop("whole", _field), _field in ("ph", "name", "ts", "dur"))
for _field, _source in _ARGUMENTS.items():
    add(f"argument.{_field}", _set_argument(_source, _field, [*_SWAPS.values(), -5, 2**64, 1e300]))
for _field, _values in _HEADERS.items():
    for _turn, _value in enumerate(_values):
        add(f"header.{_field}_{_turn}", _set_header(TURNS[_turn % 4], _field, _value))
for _field in ("ts", "dur"):
    for _turn, (_kind, _token) in enumerate({**_NUMBERS, **_NO_TIMES}.items()):
        add(
            f"number.{_field}_{_kind}",
            _set(TURNS[_turn % 4], _field, raw(_token)),
            _kind in _NO_TIMES or (_field, _kind) == ("dur", "minus_one"),
        )
for _field in ("correlation", "Addr", "stream", "Python id"):
    add(
        f"number.{_field}",
        _set_argument("whole", _field, [*map(raw, {**_NUMBERS, **_NO_TIMES}.values())][:-8]),
    )
