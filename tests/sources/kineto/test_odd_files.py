"""Traces whose values are not what they should be: one line, or rows and counted problems."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import traces

from haiprof import schema
from haiprof.errors import HaiprofError
from haiprof.sources import tables
from haiprof.sources.open import Opened, open_path

ODD: list[Any] = [
    None, True, -1, 0, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), 10**40,
    0.5, -0.001, 1e300, "", "seven", "0x1f", "N/A", "NaN", "\x00\x1b[2J", "\ud800", "é" * 3000,
    [], [1], [1, 2, 3, 4], [[[[]]]], {}, {"a": {"b": []}}, "ProfilerStep#99999999999",
    "ProfilerStep#-1", "record_param_comms", "Memcpy XtoY", "kernel", "gpu_user_annotation",
]  # fmt: skip


def mutated(document: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    """The document with a few odd values, members left out, and events swapped or doubled."""
    mutant: dict[str, Any] = json.loads(json.dumps(document))
    events = mutant["traceEvents"]
    for _ in range(chance.randrange(1, 30)):
        event = chance.choice(events)
        where = event
        if isinstance(event.get("args"), dict) and event["args"] and chance.random() < 0.6:
            where = event["args"]
        key = chance.choice(list(where))
        if chance.random() < 0.2:
            del where[key]
        else:
            where[key] = chance.choice(ODD)
        event.setdefault("ph", "X")
    if chance.random() < 0.3:
        events.insert(chance.randrange(len(events)), chance.choice(ODD))
    if chance.random() < 0.3:
        mutant[chance.choice(list(mutant))] = chance.choice(ODD)
    if chance.random() < 0.2:
        mutant["baseTimeNanoseconds"] = chance.choice(ODD)
    return mutant


def open_or_line(file: Path) -> Opened | str:
    try:
        return open_path(file)
    except HaiprofError as error:
        return str(error)


@pytest.mark.parametrize("run", ["handmade_modern", "handmade_old"])
def test_odd_values_are_rows_or_one_line(run: str, tmp_path: Path) -> None:
    document = json.loads(traces.text(traces.files(run)[0]))
    read = 0
    for seed in range(150):
        text = json.dumps(mutated(document, random.Random(seed))).encode()
        if seed % 5 == 0:
            text = text[: random.Random(seed).randrange(len(text))]
        file = tmp_path / "w.json"
        file.write_bytes(text)
        opened = open_or_line(file)
        if isinstance(opened, str):
            assert "\n" not in opened, seed
            continue
        (process,) = opened.run.processes
        assert all("\n" not in line for line in opened.run.problems), seed
        for table in schema.TABLES.values():
            found = tables.read_table(process.folder, table)
            assert found.problems == [], seed
            read += found.frame.height
            for column in table.columns:
                if not column.nullable:
                    assert found.frame[column.name].null_count() == 0, (seed, column.name)
    assert read > 10_000


def test_events_beyond_all_times_are_left_out_with_their_communication(tmp_path: Path) -> None:
    small = traces.small()
    arguments = {"Collective name": "allreduce", "In msg nelems": 4, "dtype": "Float"}
    for n, event in enumerate(small["traceEvents"][1:]):
        event["args"] = {**event.get("args", {}), **arguments, "In msg nelems": n}
    small["traceEvents"][2]["ts"] = 9e15
    small["traceEvents"][4]["dur"] = 9e15
    opened = open_path(traces.write(tmp_path / "w.json", small))
    (process,) = opened.run.processes
    rows = tables.read_table(process.folder, schema.COLLECTIVES).frame
    assert rows["elements_in"].to_list() == [0, 4, 5, 7]
    assert rows["bytes"].to_list() == [0, 16, 20, 28]
    (problem,) = opened.run.problems
    assert problem.endswith("'ts' or 'dur' is out of range in 2 events: left out")
