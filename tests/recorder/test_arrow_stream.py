"""What is encoded without pyarrow is what pyarrow reads, and every other reader of Arrow."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from recording import rows_of

from haiprof import schema
from haiprof.recorder.arrow_stream import (
    END,
    FILE_BEGIN,
    Batch,
    StreamWriter,
    Texts,
    Values,
    packed,
)

SEEDS = range(8)


def value_of(kind: str, rng: random.Random) -> Any:
    if kind == "text":
        return "".join(rng.choice("ab ü€😀\0") for _ in range(rng.randrange(6)))
    if kind == "float64":
        return rng.choice([0.0, -1.5, 1e300, float("inf")])
    bits = int(kind.removeprefix("u").removeprefix("int"))
    low = 0 if kind.startswith("u") else -(1 << (bits - 1))
    return rng.choice([low, low + (1 << bits) - 1, rng.randrange(low, low + (1 << bits))])


def column_of(
    column: schema.Column, rows: int, texts: Texts, rng: random.Random
) -> tuple[Values, list[Any]]:
    null = rng.choice([0.0, 0.3, 1.0]) if column.nullable else 0.0
    values = [None if rng.random() < null else value_of(column.kind, rng) for _ in range(rows)]
    if column.kind != "text":
        return packed(column.kind, values), values
    places = [None if value is None else texts.place_of(value) for value in values]
    return packed("text", places)._replace(texts=texts), values


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", schema.TABLES)
def test_pyarrow_reads_what_was_encoded(name: str, seed: int) -> None:
    rng, table = random.Random(f"{name} {seed}"), schema.TABLES[name]
    texts = {column.name: Texts(["first"]) for column in table.columns}
    writer = StreamWriter(table)
    stream, wanted = writer.begin(), []
    for number in range(5):
        rows = rng.choice([1, 7, 8, 9, 100])
        columns, rows_wanted = [], []
        for column in table.columns:
            if rng.random() < 0.2:
                texts[column.name] = Texts()  # others take their place
            encoded, values = column_of(column, rows, texts[column.name], rng)
            columns.append(encoded)
            rows_wanted.append(values)
        stream += writer.batch(Batch(table, rows, columns), {"number": str(number), "é": "ü"})
        names = [column.name for column in table.columns]
        wanted.append(
            [dict(zip(names, row, strict=True)) for row in zip(*rows_wanted, strict=True)]
        )
    reader = pa.ipc.open_stream(stream + END)
    assert reader.schema.equals(schema.arrow_schema(table), check_metadata=True)
    for number, rows_wanted in enumerate(wanted):
        batch, metadata = reader.read_next_batch_with_custom_metadata()
        batch.validate(full=True)
        assert batch.to_pylist() == rows_wanted
        assert dict(metadata) == {b"number": b"%d" % number, "é".encode(): "ü".encode()}
    with pytest.raises(StopIteration):
        reader.read_next_batch()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", schema.TABLES)
def test_a_stream_becomes_a_file_that_pyarrow_reads(name: str, seed: int) -> None:
    rng, table = random.Random(f"{name} {seed}"), schema.TABLES[name]
    texts = {column.name: Texts() for column in table.columns}
    writer = StreamWriter(table)
    stream, wanted = writer.begin(), []
    for _ in range(rng.randrange(5)):
        rows = rng.choice([1, 8, 50])
        encoded, values = zip(
            *(column_of(column, rows, texts[column.name], rng) for column in table.columns),
            strict=True,
        )
        stream += writer.batch(Batch(table, rows, encoded), {"of": "a batch"})
        wanted += [
            {column.name: value for column, value in zip(table.columns, row, strict=True)}
            for row in zip(*values, strict=True)
        ]
    file_end = writer.file_end({"rows": "ü"})
    assert file_end is not None
    file = pa.ipc.open_file(FILE_BEGIN + stream + END + file_end)
    about = {**schema.arrow_schema(table).metadata, b"rows": "ü".encode()}
    assert file.schema.equals(schema.arrow_schema(table).with_metadata(about), check_metadata=True)
    read = file.read_all()
    read.validate(full=True)
    assert read.to_pylist() == wanted


def test_texts_that_begin_anew_make_no_file() -> None:
    first, writer = events(Texts(), "a"), StreamWriter(schema.EVENTS)
    for _ in range(2):
        writer.batch(first, {})
        assert writer.file_end({}) is not None
    writer.batch(events(Texts(), "a"), {})
    assert writer.file_end({}) is None


def test_a_large_stream_makes_no_file() -> None:
    batch, writer = events(Texts(), *["a"] * 100), StreamWriter(schema.EVENTS)
    written = len(writer.begin())
    while written < 1 << 15:
        assert writer.file_end({}) is not None
        written += len(writer.batch(batch, {}))
    assert writer.file_end({}) is None


def events(texts: Texts, *words: str) -> Batch:
    """Make rows of ``events`` with these for kind and text, and no more."""
    columns = []
    for column in schema.EVENTS.columns:
        if column.name == "time":
            columns.append(packed("int64", [0] * len(words)))
        elif column.name in ("kind", "text"):
            places = packed("text", [texts.place_of(word) for word in words])
            columns.append(places._replace(texts=texts))
        else:
            columns.append(
                Values(b"", None, len(words), Texts() if column.kind == "text" else None)
            )
    return Batch(schema.EVENTS, len(words), columns)


def test_only_new_texts_are_written() -> None:
    texts, writer = Texts(), StreamWriter(schema.EVENTS)
    long = "a long text that is written once for each column "
    encoded = [writer.batch(events(texts, *words), {}) for words in ([long], [long])]
    assert [each.count(long.encode()) for each in encoded] == [2, 0]
    again = writer.batch(events(texts, long, long + "again"), {})
    assert again.count(long.encode()) == again.count(b"again") == 2


def test_a_text_that_is_no_unicode_is_replaced() -> None:
    assert rows_of(events(Texts(), "a\udc80b"))[0]["text"] == "a?b"


def test_values_of_a_batch_can_be_looked_at() -> None:
    table, texts = schema.EVENTS, Texts(["mark", "exit"])
    columns = [
        packed("int64", [5, 6]),
        packed("text", [1, 0])._replace(texts=texts),
        packed("text", [0, 0])._replace(texts=texts),
        packed("uint32", [None, 3]),
        Values(b"", None, 2, Texts()),
    ]
    batch = Batch(table, 2, columns)
    assert [batch.value("kind", row) for row in range(2)] == ["exit", "mark"]
    assert [batch.value("step", row) for row in range(2)] == [None, 3]
    assert batch.value("attributes", 1) is None
    assert list(batch.numbers("time")) == [5, 6]
