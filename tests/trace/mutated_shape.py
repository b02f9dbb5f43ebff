"""Mutations of shape: the wrong thing altogether, too deep, too many, the same twice."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

from mutation import Event, Maker, Sources, add, dump, edit, raw, some, timed

_NOT_TRACES: dict[str, bytes] = {
    "empty": b"",
    "blank": b" \n\t \n",
    "null": b"null",
    "number": b"17",
    "text": b'"traceEvents"',
    "true": b"true",
    "list_of_numbers": b"[1, 2, 3]",
    "object": b"{}",
    "no_events": b'{"schemaVersion": 1, "traceName": "x"}',
    "events_null": b'{"traceEvents": null}',
    "events_text": b'{"traceEvents": "many"}',
    "events_number": b'{"traceEvents": 5}',
    "events_object": b'{"traceEvents": {"0": {"ph": "X"}}}',
    "events_of_numbers": b'{"traceEvents": [1, 2.5, "x", null, true, [], [[]]]}',
    "page": b"<!DOCTYPE html><html><body>404 Not Found</body></html>",
    "pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n",
    "picture": b"\x89PNG\r\n\x1a\n" + bytes(range(256)),
    "zip": b"PK\x03\x04" + bytes(60),
    "zstd": b"\x28\xb5\x2f\xfd\x04\x00\x01\x00\x00",
    "xz": b"\xfd7zXZ\x00\x00\x04" + bytes(40),
    "zeros": bytes(4096),
    "csv": b"ts,dur,name\n1,2,x\n",
    "python": b"{'traceEvents': [{'ph': 'X'}]}",
    "one_brace": b"{",
    "one_quote": b'"',
    "colons": b"{::::}",
    "commas": b"[,,,,]",
}
for _kind, _bytes in _NOT_TRACES.items():
    add(f"top.{_kind}", lambda sources, data=_bytes: data, _kind not in ("object", "no_events"))


def _add_top() -> None:
    def lines(sources: Sources) -> bytes:
        return b"\n".join(map(dump, sources.trace("sync")["traceEvents"]))

    def two(name: str) -> Maker:
        return lambda s: s.text(name) + s.text(name)

    def events_twice(sources: Sources) -> bytes:
        text = sources.text("amd")
        cut = text.rstrip().removesuffix(b"}")
        return cut + b', "traceEvents": ' + dump(sources.trace("sync")["traceEvents"]) + b"}"

    def ascend(sources: Sources) -> bytes:
        events = sources.trace("sync")["traceEvents"]
        for event in events:
            event.pop("cat", None)
            event["ts"] = str(event["ts"])
        return dump(events)

    add("top.list_of_events", lambda s: dump(s.trace("amd")["traceEvents"]))
    add("top.list_without_categories", ascend)
    add("top.lines", lines, reported=True)
    add("top.two_documents", two("sync"), reported=True)
    add("top.trailing_rubbish", lambda s: s.text("amd") + b"\x00\xff rubbish", reported=True)
    add("top.trailing_zeros", lambda s: s.text("amd") + bytes(8192), reported=True)
    add("top.leading_rubbish", lambda s: b"rubbish " + s.text("amd"), reported=True)
    add("top.byte_order_mark", lambda s: b"\xef\xbb\xbf" + s.text("amd"))
    add("top.utf_16", lambda s: s.text("sync").decode().encode("utf-16"), reported=True)
    add("top.latin_1", lambda s: s.text("sync").replace(b"aten::", b"\xe4ten::"))
    add("top.events_twice", events_twice)
    add("top.events_only_empty", lambda s: dump({**s.trace("amd"), "traceEvents": []}))
    add("top.within_another", lambda s: b'{"trace": ' + s.text("amd") + b"}", reported=True)
    add("top.no_comma", lambda s: s.text("amd").replace(b"},", b"}", 20), reported=True)
    add("top.comma_at_end", lambda s: re.sub(rb"\}\s*\]", b"},]", s.text("sync")))
    add("top.single_quotes", lambda s: s.text("amd").replace(b'"', b"'"), reported=True)
    add("top.comments", lambda s: s.text("amd").replace(b"[", b"[ // events\n", 1))


_add_top()


def _add_nesting() -> None:
    def argument(depth: int, opening: str, closing: str) -> Maker:
        token = opening * depth + "1" + closing * depth

        def mutate(sources: Sources) -> bytes:
            trace = sources.trace("sync")
            for event in some(trace["traceEvents"], timed):
                event["args"] = {"External id": 1, "deep": raw(token)}
            return dump(trace)

        return mutate

    def member(depth: int, token: bytes) -> Maker:
        return lambda s: b'{"deep": ' + token * depth + b"1, " + s.text("sync").lstrip()[1:]

    for depth in (10, 1000, 30_000):
        add(f"nesting.lists_{depth}", argument(depth, "[", "]"))
        add(f"nesting.objects_{depth}", argument(depth, '{"a":', "}"))
    add("nesting.unclosed", member(1_000_000, b"["), reported=True)
    add("nesting.unclosed_objects", member(1_000_000, b'{"a":'), reported=True)
    add("nesting.only_brackets", lambda s: b"[" * 3_000_000, reported=True)
    add("nesting.only_braces", lambda s: b'{"traceEvents":[' * 100_000, reported=True)
    add(
        "nesting.events_in_events",
        lambda s: dump({"traceEvents": [[s.trace("sync")["traceEvents"]]]}),
        reported=True,
    )


_add_nesting()


def _arguments(field: str, value: Callable[[int], Any]) -> Callable[..., None]:
    def change(events: list[Event], chance: random.Random) -> None:
        found = [e["args"] for e in events if field in (e.get("args") or {})]
        for number, arguments in enumerate(found):
            arguments[field] = value(number)

    return change


def _tower(depth: int) -> Callable[..., None]:
    """Add operators that are each within the one before."""

    def change(events: list[Event], chance: random.Random) -> None:
        sample = next(e for e in events if e.get("cat") == "cpu_op")
        for level in range(depth):
            ts, dur = 1000 + level, 2 * (depth - level)
            events.append({**sample, "tid": 77, "ts": ts, "dur": dur, "args": {}})

    return change


def _add_duplicates() -> None:
    def all_again(events: list[Event], chance: random.Random) -> None:
        events += [dict(event) for event in events]

    def first_again(events: list[Event], chance: random.Random) -> None:
        events += [next(e for e in events if timed(e))] * 20_000

    def crossing(events: list[Event], chance: random.Random) -> None:
        for event in some(events, timed, 2):
            event["dur"] = event["dur"] * 1.7 + 5

    def at_once(events: list[Event], chance: random.Random) -> None:
        for event in events:
            if "ts" in event:
                event["ts"] = 5
            if "dur" in event:
                event["dur"] = 0

    def backwards(events: list[Event], chance: random.Random) -> None:
        events.reverse()
        for event in events:
            if "ts" in event:
                event["ts"] = -event["ts"]

    def shuffled(events: list[Event], chance: random.Random) -> None:
        chance.shuffle(events)

    def forever(events: list[Event], chance: random.Random) -> None:
        for event in some(events, timed):
            event["dur"] = 3.1e15  # a century

    def steps(name: Callable[[int], str]) -> Callable[..., None]:
        def change(events: list[Event], chance: random.Random) -> None:
            found = [e for e in events if str(e.get("name", "")).startswith("ProfilerStep")]
            for number, event in enumerate(found):
                event["name"] = name(number)

        return change

    def nested_steps(events: list[Event], chance: random.Random) -> None:
        for number, event in enumerate(some(events, timed, 2)):
            event.update(name=f"ProfilerStep#{number}", cat="user_annotation")

    def keys_twice(sources: Sources) -> bytes:
        return re.sub(rb'("ts": ?[\d.]+)', rb'\1, "ts": 1, \1', sources.text("sync"))

    def many_keys(sources: Sources) -> bytes:
        trace = sources.trace("sync")
        for event in some(trace["traceEvents"], timed):
            event["args"] = {f"key {number}": number for number in range(2000)}
        return dump(trace)

    def many_threads(events: list[Event], chance: random.Random) -> None:
        for number, event in enumerate(events):
            event["tid"] = number * 1_000_003

    def many_devices(events: list[Event], chance: random.Random) -> None:
        for number, event in enumerate(e for e in events if "device" in (e.get("args") or {})):
            event["args"].update(device=number * 100, stream=number * 7919)
            event["pid"] = number * 100

    same = {
        "operators": "External id", "launches": "correlation", "calls": "Python id",
        "blocks": "Addr", "sequence": "Sequence number",
    }  # fmt: skip
    for what, field in same.items():
        source = "ranks" if field == "Sequence number" else "whole"
        add(f"same.{what}", edit(source, _arguments(field, lambda n: 1)))
    add("same.own_parent", edit("whole", _arguments("Python parent id", lambda n: n + 1)))
    add("same.parents_in_circles", edit("whole", _arguments("Python parent id", lambda n: 6 - n)))
    add("same.flows", edit("sync", lambda e, _: [x.update(id=3) for x in e if "id" in x] and None))
    add("same.all_events_twice", edit("alexnet", all_again))
    add("same.one_event_again_and_again", edit("sync", first_again))
    add("same.keys_twice", keys_twice)
    add("same.many_keys", many_keys)
    add("same.many_threads", edit("alexnet", many_threads))
    add("same.many_devices", edit("alexnet", many_devices))
    add("time.crossing", edit("alexnet", crossing))
    add("time.all_at_once", edit("whole", at_once))
    add("time.backwards", edit("whole", backwards))
    add("time.shuffled", edit("alexnet", shuffled))
    add("time.forever", edit("whole", forever))
    add("time.tower_300", edit("whole", _tower(300)))
    add("time.tower_20000", edit("sync", _tower(20_000)))
    add("step.same", edit("whole", steps(lambda n: "ProfilerStep#7")))
    add("step.huge", edit("whole", steps(lambda n: f"ProfilerStep#{10**30 + n}")))
    add("step.negative", edit("whole", steps(lambda n: f"ProfilerStep#-{n}")))
    add("step.word", edit("whole", steps(lambda n: "ProfilerStep#next")))
    add("step.bare", edit("whole", steps(lambda n: "ProfilerStep")))
    add("step.descending", edit("whole", steps(lambda n: f"ProfilerStep#{90 - n}")))
    add("step.everything", edit("whole", nested_steps))


_add_duplicates()
