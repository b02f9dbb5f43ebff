"""Mutates one file of a trace: its bytes, or what its format lets one say in the wrong way."""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import json
import random
import re
import sqlite3
from pathlib import Path
from typing import Any

#: Texts that a name, a cell or a field may not have been meant to hold.
TEXTS = ("", " ", "\x00", "\x1b[31m", "\u202e", "=1+1", "</script>", "../../x", "-", "N/A", "nan",
         "1e400", "-1", "99999999999999999999", "0x10", "1.7e18", "a" * 5000, "\ud800")  # fmt: skip
#: Likewise numbers, as JSON could write them.
NUMBERS = (
    -1,
    0,
    1e308,
    -1e308,
    1e19,
    2**31,
    2**32,
    2**63 - 1,
    2**63,
    2**64,
    -(2**63),
    -(2**63) - 1,
    10**30,
    0.5,
    1.7e18,
    -0.0,
)
_RAW = (
    "NaN",
    "Infinity",
    "-Infinity",
    "1e400",
    "-1e400",
    "1" * 400,
    "1" * 5000,
    "[" * 3000,
    "[" * 300 + "]" * 300,
    '{"a":' * 300 + "1" + "}" * 300,
    "01",
    "+1",
    "'x'",
    "\xff",
)
_MARK = "@raw@"


def mutate(file: Path, chance: random.Random) -> str:
    """Change a file in place in one or a few ways; return in which."""
    data = file.read_bytes()
    packed = data.startswith(b"\x1f\x8b")
    if packed and chance.random() < 0.9:
        data = gzip.decompress(data)
    elif packed:
        packed = False
    kind = "bytes"
    if chance.random() < 0.75:
        if data.startswith(b"SQLite"):
            return _database(file, chance)
        kind = _kind(file, data)
    try:
        data = _WAYS[kind](data, chance)
    except (ValueError, LookupError):  # there is nothing of the kind in it
        data = _bytes(data, chance)
    file.write_bytes(gzip.compress(data, 1) if packed else data)
    return kind


def _kind(file: Path, data: bytes) -> str:
    if file.suffix == ".csv":
        return "cells"
    if b"Profiler Info" in data:
        return "words"
    return "json" if data[:1] in b"[{" else "bytes"


def _bytes(data: bytes, chance: random.Random) -> bytes:
    buffer = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 5, 40))):
        if not buffer:
            break
        at = chance.randrange(len(buffer))
        end = min(len(buffer), at + chance.choice((1, 2, 4, 60, 4096)))
        match chance.randrange(8):
            case 0 | 1:
                buffer[at] ^= 1 << chance.randrange(8)
            case 2:
                buffer[at:end] = chance.randbytes(end - at)
            case 3:
                del buffer[at:end]
            case 4:  # spliced from elsewhere
                start = chance.randrange(len(buffer))
                buffer[at:at] = buffer[start : start + 500]
            case 5:
                buffer[at:end] = bytes(end - at)
            case 6:
                buffer[at:at] = chance.choice(TEXTS).encode("utf-8", "surrogatepass")
            case _:
                if chance.random() < 0.3:
                    del buffer[at:]
    return bytes(buffer)


def _wrong(chance: random.Random) -> Any:
    match chance.randrange(6):
        case 0:
            return chance.choice(TEXTS)
        case 1 | 2:
            return chance.choice(NUMBERS)
        case 3:
            return f"{_MARK}{chance.randrange(len(_RAW))}{_MARK}"
        case _:
            return chance.choice((None, True, False, [], {}, [[]], [None], {"": 0}, [1, "x"]))


def _json(data: bytes, chance: random.Random) -> bytes:
    document = json.loads(data)
    places: list[tuple[Any, Any]] = []
    waiting = [document]
    while waiting:
        each = waiting.pop()
        found = list(each.items() if isinstance(each, dict) else enumerate(each))
        places += [(each, key) for key, _ in found]
        waiting += [value for _, value in found if isinstance(value, (dict, list))]
    twice = chance.random() < 0.1
    for _ in range(chance.choice((1, 1, 1, 2, 3, 10))):
        holder, key = chance.choice(places)
        try:
            value = holder[key]
        except (KeyError, IndexError):
            continue
        match chance.randrange(8):
            case 0:
                del holder[key]
            case 1 if isinstance(holder, dict):
                holder[chance.choice(("", "name", "ts", "dur", "args", "é\x00"))] = value
            case 2 if isinstance(holder, list):
                holder.insert(chance.randrange(len(holder) + 1), value)
            case 3:  # the same member everywhere
                odd = _wrong(chance)
                for other, name in places:
                    if name == key and isinstance(other, dict) and isinstance(name, str):
                        other[name] = odd
            case _:
                holder[key] = _wrong(chance)
    text = json.dumps(document)
    text = re.sub(f'"{_MARK}(\\d+){_MARK}"', lambda m: _RAW[int(m[1])], text)
    if twice:
        text = re.sub(r'("\w+": [^,{}\[\]]+)', r"\1, \1", text, count=chance.randrange(1, 30))
    return text.encode("latin-1", "replace")


def _cells(data: bytes, chance: random.Random) -> bytes:
    rows = list(csv.reader(io.StringIO(data.decode())))
    for _ in range(chance.choice((1, 1, 2, 5))):
        row = chance.choice(rows)
        match chance.randrange(6):
            case 0 if row:
                del row[chance.randrange(len(row))]
            case 1:
                row.append(chance.choice(TEXTS))
            case 2:
                rows.append(list(row))
            case _ if row:
                row[chance.randrange(len(row))] = str(_wrong(chance))
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue().encode("utf-8", "surrogatepass")


def _words(data: bytes, chance: random.Random) -> bytes:
    text = data.decode()
    for _ in range(chance.choice((1, 1, 2, 5))):
        words = list(re.finditer(r"[\w.]+", text))
        word = chance.choice(words)
        text = text[: word.start()] + str(_wrong(chance)) + text[word.end() :]
    return text.encode("utf-8", "surrogatepass")


_WAYS = {"bytes": _bytes, "json": _json, "cells": _cells, "words": _words}


def _database(file: Path, chance: random.Random) -> str:
    base = sqlite3.connect(file)
    tables = [name for (name,) in base.execute("select name from sqlite_master where type='table'")]
    for _ in range(chance.choice((1, 1, 2, 4))):
        with contextlib.suppress(sqlite3.Error, IndexError):  # not every column takes everything
            _statement(base, f'"{chance.choice(tables)}"', chance)
    base.commit()
    base.close()
    return "rows"


def _statement(base: sqlite3.Connection, table: str, chance: random.Random) -> None:
    column = f'"{chance.choice(list(base.execute(f"pragma table_info({table})")))[1]}"'
    value = _wrong(chance)
    if isinstance(value, (list, dict)):
        value = b"\xff\x00\xfe"
    elif isinstance(value, int) and abs(value) >= 2**63:
        value = float(value)
    elif isinstance(value, str):
        value = value.encode("utf-8", "replace").decode()
    match chance.randrange(8):
        case 0:
            base.execute(f"alter table {table} rename column {column} to other")
        case 1:
            base.execute(f"alter table {table} rename to other")
        case 2:
            base.execute(f"delete from {table}")
        case 3:
            base.execute(f"insert into {table} select * from {table}")
        case 4:
            base.execute(f"update {table} set {column} = ?", (value,))
        case _:
            row = f"select rowid from {table} limit 1 offset {chance.randrange(9)}"
            base.execute(f"update {table} set {column} = ? where rowid = ({row})", (value,))
