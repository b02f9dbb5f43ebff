"""Tables are read whole, live, cut, with columns missing or unknown; damage is named."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pyarrow as pa
import pytest
import runs
from damage import WRONG_TEXTS
from hypothesis import given, settings
from hypothesis import strategies as st

from haiprof import schema
from haiprof.sources import segment_file, tables
from haiprof.sources.tables import check, count_cut, filled, read_table


def spans(first: int, count: int) -> list[runs.Row]:
    return [runs.span(i, 1, "phase", f"p{i % 3}", i) for i in range(first, first + count)]


def starts(folder: Path) -> list[int]:
    frame = read_table(folder, schema.SPANS).frame
    return [(start - runs.T0) // runs.MS for start in frame["start"]]


def test_segments_are_read_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    runs.write_live(tmp_path, schema.SPANS, [spans(20, 1)], number=10)
    runs.write_closed(tmp_path, schema.SPANS, spans(10, 1), number=9)
    runs.write_closed(tmp_path, schema.SPANS, spans(0, 2), number=0)
    assert starts(tmp_path) == [0, 1, 10, 20]


def test_a_segment_that_is_removed_while_it_is_read_is_no_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [runs.write_closed(tmp_path, schema.SPANS, spans(n, 2), n) for n in (4, 6, 8)]
    listed = segment_file.segments

    def thinned(folder: Path, table: str, problems: list[str]) -> list[segment_file.Segment]:
        found = listed(folder, table, problems)
        files[0].unlink(missing_ok=True)
        return found

    monkeypatch.setattr(tables, "segments", thinned)
    read = read_table(tmp_path, schema.SPANS)
    assert (read.frame.height, read.problems, read.cut) == (4, [], 0)
    files[1].unlink()
    files[1].symlink_to("nothing")
    assert len(read_table(tmp_path, schema.SPANS).problems) == 1


def test_batches_of_a_stream_may_each_bring_their_own_dictionary(tmp_path: Path) -> None:
    runs.write_live(tmp_path, schema.SPANS, [spans(0, 2), spans(2, 1), spans(3, 3)])
    names = read_table(tmp_path, schema.SPANS).frame["name"].to_list()
    assert names == ["p0", "p1", "p2", "p0", "p1", "p2"]


def test_closed_files_may_each_have_their_own_texts_and_columns_of_nothing(tmp_path: Path) -> None:
    names = [["b", "a"], [None, None], ["a", None, "c"], ["b"]]
    threads = [[None, 7], [8, 9], [None, None, None], [10]]
    for number, (texts, ids) in enumerate(zip(names, threads, strict=True)):
        rows = [
            {**runs.span(0, 1, "op", "", 0), "name": text, "python_id": python_id}
            for text, python_id in zip(texts, ids, strict=True)
        ]
        arrow = schema.arrow_schema(schema.SPANS)
        place = arrow.get_field_index("name")
        nullable = arrow.set(place, arrow.field(place).with_nullable(True))
        runs.write_closed(tmp_path, schema.SPANS, rows, number, nullable)
    frame = read_table(tmp_path, schema.SPANS).frame
    assert frame["name"].to_list() == ["b", "a", None, None, "a", None, "c", "b"]
    assert frame["python_id"].to_list() == [None, 7, 8, 9, None, None, None, 10]
    assert frame["external"].null_count() == frame.height == 8


@pytest.mark.parametrize(
    "ids",
    [
        [[7, 7], [7], [7, 7]],
        [[7, 7], [8, 8], [7]],
        [[None, None], [7, 7]],
        [[7, 7], [None, None], [7]],
        [[7, 7], [None, 7], [7]],
        [[None, 7], [7, 7]],
        [[7, 8], [7, 7], [None]],
        [[], [7, 7], []],
        [[], []],
        [[None], [None, None]],
    ],
)
def test_what_is_the_same_of_all_rows_or_of_some_files_is_read(
    tmp_path: Path, ids: list[list[int | None]]
) -> None:
    for number, of_file in enumerate(ids):
        rows = [
            {**runs.span(i, 1, "op", "f", i), "python_id": each} for i, each in enumerate(of_file)
        ]
        runs.write_closed(tmp_path, schema.SPANS, rows, number)
    wanted = [each for of_file in ids for each in of_file]
    frame = read_table(tmp_path, schema.SPANS).frame
    assert frame.height == len(wanted)
    assert frame["python_id"].to_list() == wanted
    assert frame["python_id"].dtype == frame["python_parent"].dtype
    alone = read_table(tmp_path, schema.SPANS, ["python_id"]).frame
    assert alone["python_id"].to_list() == wanted


def test_a_closed_file_wins_over_the_stream_it_was_made_from(tmp_path: Path) -> None:
    runs.write_closed(tmp_path, schema.SPANS, spans(0, 3))
    runs.write_live(tmp_path, schema.SPANS, [spans(0, 3)])
    assert starts(tmp_path) == [0, 1, 2]


def test_a_stream_wins_over_a_closed_file_that_was_never_finished(tmp_path: Path) -> None:
    closed = runs.write_closed(tmp_path, schema.SPANS, spans(0, 3))
    closed.write_bytes(closed.read_bytes()[:100])
    runs.write_live(tmp_path, schema.SPANS, [spans(0, 3)])
    assert starts(tmp_path) == [0, 1, 2]


def test_a_closed_file_without_its_footer_still_gives_its_batches(tmp_path: Path) -> None:
    closed = runs.write_closed(tmp_path, schema.SPANS, spans(0, 3))
    closed.write_bytes(closed.read_bytes()[:-20])
    assert starts(tmp_path) == [0, 1, 2]
    (line,) = check(tmp_path)
    assert line.startswith(f"{closed}: ends too early")


def test_a_closed_file_that_has_no_batch_left_is_named(tmp_path: Path) -> None:
    closed = runs.write_closed(tmp_path, schema.SPANS, spans(0, 3))
    closed.write_bytes(closed.read_bytes()[:100])
    (line,) = check(tmp_path)
    assert line.startswith(f"{closed}: damaged")


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, list[int]]:
    """A stream of three batches, and where each of its batches ends."""
    folder = tmp_path_factory.mktemp("stream")
    file = runs.write_live(folder, schema.SPANS, [spans(0, 4), spans(4, 4), spans(8, 4)])
    content = file.read_bytes()
    ends = []
    with pa.BufferReader(content) as source:
        reader = pa.ipc.open_stream(source)
        for _ in range(3):
            reader.read_next_batch()
            ends.append(source.tell())
    return content, ends


@settings(max_examples=150)
@given(st.floats(0, 1))
def test_a_stream_cut_anywhere_gives_every_whole_batch(
    tmp_path_factory: pytest.TempPathFactory, stream: tuple[bytes, list[int]], where: float
) -> None:
    content, ends = stream
    at = round(where * len(content))
    folder = tmp_path_factory.mktemp("cut")
    (folder / "spans-0.arrows").write_bytes(content[:at])
    read = read_table(folder, schema.SPANS)
    assert read.frame.height == 4 * sum(end <= at for end in ends)
    assert read.problems == []
    assert count_cut(folder) == read.cut


def test_a_stream_cut_between_its_dictionaries_is_cut(
    tmp_path: Path, stream: tuple[bytes, list[int]]
) -> None:
    content, _ = stream
    with pa.BufferReader(content) as source:
        reader = pa.ipc.MessageReader.open_stream(source)
        kinds, ends = [], []
        for _ in range(3):
            kinds.append(reader.read_next_message().type)
            ends.append(source.tell())
    assert kinds == ["schema", "dictionary", "dictionary"]
    for at, cut in zip(ends, (0, 1, 1), strict=True):
        (tmp_path / "spans-0.arrows").write_bytes(content[:at])
        assert read_table(tmp_path, schema.SPANS).cut == count_cut(tmp_path) == cut


def test_cuts_are_counted_and_whole_streams_are_not(tmp_path: Path) -> None:
    whole = runs.write_live(tmp_path, schema.SPANS, [spans(0, 4)], number=0)
    (tmp_path / "spans-1.arrows").write_bytes(whole.read_bytes()[:-20])
    (tmp_path / "spans-2.arrows").write_bytes(b"")
    assert count_cut(tmp_path) == 1
    assert read_table(tmp_path, schema.SPANS).cut == 1


def test_zeros_where_a_crashed_machine_lost_pages_do_not_raise(tmp_path: Path) -> None:
    file = runs.write_live(tmp_path, schema.SPANS, [spans(0, 4), spans(4, 4)])
    content = bytearray(file.read_bytes())
    content[len(content) // 2 :] = bytes(len(content) - len(content) // 2)
    file.write_bytes(content)
    assert starts(tmp_path) in ([], [0, 1, 2, 3])


def test_a_missing_nullable_column_reads_as_null(tmp_path: Path) -> None:
    full = schema.arrow_schema(schema.SPANS)
    older = full.remove(full.get_field_index("step"))
    runs.write_closed(tmp_path, schema.SPANS, spans(0, 2), arrow=older)
    assert read_table(tmp_path, schema.SPANS).frame["step"].to_list() == [None, None]


def test_an_unknown_column_and_an_unknown_table_are_ignored(tmp_path: Path) -> None:
    newer = schema.arrow_schema(schema.SPANS).append(pa.field("colour", pa.int8()))
    runs.write_closed(tmp_path, schema.SPANS, spans(0, 2), arrow=newer)
    (tmp_path / "dreams-0.arrow").write_bytes(b"?")
    read = read_table(tmp_path, schema.SPANS)
    assert "colour" not in read.frame.columns
    assert (read.frame.height, read.problems, check(tmp_path)) == (2, [], [])


def test_a_missing_required_column_is_a_problem(tmp_path: Path) -> None:
    full = schema.arrow_schema(schema.SPANS)
    broken = full.remove(full.get_field_index("duration"))
    runs.write_closed(tmp_path, schema.SPANS, spans(0, 2), arrow=broken)
    read = read_table(tmp_path, schema.SPANS)
    assert read.frame.height == 0
    assert "spans-0.arrow: column 'duration' is missing" in read.problems[0]


def test_a_column_of_another_type_is_a_problem(tmp_path: Path) -> None:
    full = schema.arrow_schema(schema.SAMPLES)
    broken = full.set(full.get_field_index("value"), pa.field("value", pa.utf8()))
    rows = [{**runs.sample(1, "m.x.count", None), "value": "many"}]
    runs.write_closed(tmp_path, schema.SAMPLES, rows, arrow=broken)
    read = read_table(tmp_path, schema.SAMPLES)
    assert "column 'value' is string, not float64" in read.problems[0]


def test_a_file_of_another_major_version_is_a_problem_and_the_rest_is_read(tmp_path: Path) -> None:
    full = schema.arrow_schema(schema.SPANS)
    newer = full.with_metadata({**full.metadata, b"haiprof.version": b"2.0"})
    runs.write_closed(tmp_path, schema.SPANS, spans(0, 2), number=0, arrow=newer)
    runs.write_closed(tmp_path, schema.SPANS, spans(5, 1), number=1)
    read = read_table(tmp_path, schema.SPANS)
    assert read.frame.height == 1
    assert "spans-0.arrow: field 'version' is 2.0" in read.problems[0]
    assert check(tmp_path) == read.problems


def test_a_file_that_is_not_arrow_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "spans-0.arrow").write_bytes(b"not arrow at all, and long enough to be a file")
    problems = read_table(tmp_path, schema.SPANS).problems
    assert len(problems) == 1
    assert "spans-0.arrow: damaged" in problems[0]
    assert "\n" not in problems[0]


def test_only_the_wanted_columns_and_values_are_read(tmp_path: Path) -> None:
    rows = [runs.span(0, 1, "op", "aten::mm"), runs.span(1, 1, "phase", "forward", 1)]
    runs.write_closed(tmp_path, schema.SPANS, rows)
    read = read_table(tmp_path, schema.SPANS, ["name"], {"category": ["phase"]})
    assert read.frame.to_dict(as_series=False) == {"name": ["forward"]}


@pytest.mark.parametrize("keep", [None, {"name": ["p1"]}])
def test_large_files_have_the_same_rows_as_small_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: dict[str, list[str]] | None
) -> None:
    for number in range(3):
        runs.write_closed(tmp_path, schema.SPANS, spans(100 * number, 100), number)
    small = read_table(tmp_path, schema.SPANS, ["start", "name"], keep).frame
    monkeypatch.setattr(tables, "_SMALL_BYTES", 0)
    large = read_table(tmp_path, schema.SPANS, ["start", "name"], keep).frame
    assert large.equals(small)
    assert small.height == (300 if keep is None else 100)


def test_a_folder_without_the_table_gives_an_empty_frame(tmp_path: Path) -> None:
    frame = read_table(tmp_path, schema.KERNELS).frame
    assert frame.height == 0
    assert frame.columns == [c.name for c in schema.KERNELS.columns]


# -- damage --------------------------------------------------------------------------------------


def write_batches(file: Path, batches: list[pa.RecordBatch]) -> None:
    """Write a stream, or a file of compressed batches, whatever they contain."""
    new_writer = pa.ipc.new_stream if file.suffix == ".arrows" else pa.ipc.new_file
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with (
        pa.OSFile(str(file), "wb") as sink,
        new_writer(sink, batches[0].schema, options=options) as out,
    ):
        for each in batches:
            out.write_batch(each)


def with_names(rows: list[runs.Row], names: pa.Array) -> pa.RecordBatch:
    batch = runs.batch(schema.SPANS, rows)
    place = batch.schema.get_field_index("name")
    return batch.set_column(place, batch.schema.field(place), names)


@pytest.mark.parametrize("suffix", [".arrow", ".arrows"])
@pytest.mark.parametrize("way", WRONG_TEXTS)
def test_texts_that_cannot_be_read_cost_their_file_only(
    tmp_path: Path, way: str, suffix: str
) -> None:
    file = tmp_path / f"spans-0{suffix}"
    write_batches(file, [with_names(spans(0, 2), WRONG_TEXTS[way](2))])
    runs.write_closed(tmp_path, schema.SPANS, spans(5, 2), number=1)
    read = read_table(tmp_path, schema.SPANS)
    assert read.frame["name"].to_list() == ["p2", "p0"]
    (line,) = read.problems
    assert line.startswith(f"{file}: damaged (")
    assert "\n" not in line
    assert filled(tmp_path, schema.SPANS, ["name"]) == {"name"}


def test_a_stream_gives_what_precedes_damage_and_says_so(tmp_path: Path) -> None:
    file = tmp_path / "spans-0.arrows"
    wrong = pa.DictionaryArray.from_arrays(
        pa.array([9, 9], pa.uint32()), pa.array(["p0", "p1"]), safe=False
    )
    write_batches(file, [runs.batch(schema.SPANS, spans(0, 2)), with_names(spans(2, 2), wrong)])
    read = read_table(tmp_path, schema.SPANS)
    assert (read.frame["name"].to_list(), read.cut) == (["p0", "p1"], 1)
    (line,) = read.problems
    assert "only 2 rows of it are read: copy it again" in line


def test_a_closed_file_gives_its_sound_batches_and_says_so(tmp_path: Path) -> None:
    file = runs.write_closed(tmp_path, schema.SAMPLES, [])
    batch = runs.batch(schema.SAMPLES, runs.host_samples(2))
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as out:
        for _ in range(3):
            out.write_batch(batch)
    content = bytearray(file.read_bytes())
    codes = batch.column("metric").indices.buffers()[1].to_pybytes()
    second = content.index(codes, content.index(codes) + 1)
    content[second : second + 4] = b"\x00\x00\x00\x7f"
    file.write_bytes(content)
    read = read_table(tmp_path, schema.SAMPLES)
    assert read.frame.height == 2 * batch.num_rows
    (line,) = read.problems
    assert f"only {2 * batch.num_rows} rows of it are read" in line


# Of a footer: where a message begins, how long its head and its body are.
BLOCK = struct.Struct("<qi4xq")


def blocks_of(content: bytes, kind: str) -> list[int]:
    """Return where the footer of a file lists its messages of one kind."""
    footer = len(content) - 10 - int.from_bytes(content[-10:-6], "little")
    found = []
    with pa.BufferReader(content) as source:
        source.seek(8)
        begin = source.tell()
        for message in pa.ipc.MessageReader.open_stream(source):
            if message.type == kind:
                found.append(content.index(begin.to_bytes(8, "little"), footer))
            begin = source.tell()
    return found


def miscount(content: bytearray, block: int) -> None:
    """Have the footer claim a body that is longer than the message's."""
    begin, head, body = BLOCK.unpack_from(content, block)
    BLOCK.pack_into(content, block, begin, head, body + 8)


@pytest.mark.parametrize(("renamed", "rows"), [(b"step", 0), (b"external", 2)])
def test_a_file_whose_beginning_has_other_columns_than_its_footer_is_named(
    tmp_path: Path, renamed: bytes, rows: int
) -> None:
    file = runs.write_closed(tmp_path, schema.SPANS, spans(0, 2))
    content = bytearray(file.read_bytes())
    (block,) = blocks_of(content, "record batch")
    miscount(content, block)
    content[content.index(renamed)] ^= 1
    file.write_bytes(content)
    wanted = ["start", "name", "step"]
    for keep in (None, {"name": ["p0", "p1"]}):
        read = read_table(tmp_path, schema.SPANS, wanted, keep)
        assert read.frame.height == rows
        (line,) = read.problems
        assert line.startswith(f"{file}: damaged (")
    assert filled(tmp_path, schema.SPANS, wanted) == (set(wanted) if rows else set())
    assert read_table(tmp_path, schema.SPANS).frame.height == 0


def test_damage_in_a_column_that_nobody_asked_for_costs_no_row(tmp_path: Path) -> None:
    batch = runs.batch(schema.SPANS, spans(0, 40))
    place = batch.schema.get_field_index("attributes")
    field = batch.schema.field(place)
    offsets = pa.array([0, 1], pa.int32()).buffers()[1]
    no_text = pa.StringArray.from_buffers(1, offsets, pa.py_buffer(b"\xff"))
    codes = pa.array([0] * 40, field.type.index_type)
    column = pa.DictionaryArray.from_arrays(codes, no_text)
    file = tmp_path / "spans-0.arrow"
    write_batches(file, [batch.set_column(place, field, column)])
    read = read_table(tmp_path, schema.SPANS, ["start", "name"])
    assert (read.frame.height, read.problems) == (40, [])
    read = read_table(tmp_path, schema.SPANS)
    assert read.frame.height == 0
    assert [line.startswith(f"{file}: damaged (") for line in read.problems] == [True]


def test_there_may_be_more_rows_than_a_footer_leads_to(tmp_path: Path) -> None:
    file = tmp_path / "spans-0.arrow"
    batch = runs.batch(schema.SPANS, spans(0, 40))
    write_batches(file, [batch, batch.slice(0, 4)])
    content = bytearray(file.read_bytes())
    first, second = blocks_of(content, "record batch")
    content[first : first + BLOCK.size] = content[second : second + BLOCK.size]
    miscount(content, blocks_of(content, "dictionary")[0])
    file.write_bytes(content)
    runs.write_closed(tmp_path, schema.SPANS, spans(50, 2), number=1)
    assert starts(tmp_path) == [*range(40), *range(4), 50, 51]
    (line,) = read_table(tmp_path, schema.SPANS).problems
    assert f"{file}: damaged (" in line
    assert "only 44 rows of it are read" in line


@pytest.mark.parametrize("count", [2**62, -5, 2**63 - 1, 2**40])
def test_a_batch_may_tell_of_any_number_of_rows(tmp_path: Path, count: int) -> None:
    file = tmp_path / "spans-0.arrow"
    batch = runs.batch(schema.SPANS, spans(0, 77))
    write_batches(file, [batch, batch])
    content = file.read_bytes()
    places = [found.start() for found in re.finditer(re.escape(struct.pack("<q", 77)), content)]
    assert len(places) >= 2
    for place in places:
        data = bytearray(content)
        struct.pack_into("<q", data, place, count)
        file.write_bytes(data)
        read = read_table(tmp_path, schema.SPANS)
        assert read.frame.height == 77
        (line,) = read.problems
        assert f"{file}: damaged (" in line


@pytest.mark.parametrize("suffix", [".arrow", ".arrows"])
@pytest.mark.parametrize(
    ("count", "reason"),
    [(b"7", "3 rows are missing"), (b"3", "1 rows too many"), (b"x", "is not a count")],
)
def test_rows_that_are_missing_are_counted(
    tmp_path: Path, count: bytes, reason: str, suffix: str
) -> None:
    file = tmp_path / f"spans-0{suffix}"
    batch = runs.batch(schema.SPANS, spans(0, 4))
    key = schema.KEY_ROWS.encode()
    if suffix == ".arrow":
        batch = batch.replace_schema_metadata({**batch.schema.metadata, key: count})
        write_batches(file, [batch])
    else:
        with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, batch.schema) as out:
            out.write_batch(batch, custom_metadata={key: count})
    read = read_table(tmp_path, schema.SPANS)
    assert read.frame.height == 4
    (line,) = read.problems
    assert reason in line


@pytest.mark.parametrize("key", ["haiprof.table", "haiprof.version", "haiprof.format", "other"])
def test_metadata_that_is_no_text_does_not_raise(tmp_path: Path, key: str) -> None:
    full = schema.arrow_schema(schema.SPANS)
    forged = full.with_metadata({**full.metadata, key.encode(): b"\xff\xfe"})
    runs.write_closed(tmp_path, schema.SPANS, spans(0, 2), arrow=forged)
    read = read_table(tmp_path, schema.SPANS)
    assert len(read.problems) == (key != "other")
    assert check(tmp_path) == read.problems


@pytest.mark.parametrize("name", ["name", b"\xff\xfe"])
def test_a_column_without_a_name_of_its_own_is_a_problem(tmp_path: Path, name: str) -> None:
    forged = schema.arrow_schema(schema.SPANS).append(pa.field(name, pa.int8()))
    batch = runs.batch(schema.SPANS, spans(0, 2))
    columns = [*batch.columns, pa.array([1, 2], pa.int8())]
    write_batches(tmp_path / "spans-0.arrow", [pa.RecordBatch.from_arrays(columns, schema=forged)])
    (line,) = read_table(tmp_path, schema.SPANS).problems
    assert "spans-0.arrow: damaged (" in line
    assert len(check(tmp_path)) == 1
    assert filled(tmp_path, schema.SPANS, ["name"]) == set()


@pytest.mark.parametrize("column", ["start", "duration"])
@pytest.mark.parametrize("value", [-(2**63), 2**63 - 1, 2**62])
def test_rows_of_no_possible_time_are_left_out_and_counted(
    tmp_path: Path, column: str, value: int
) -> None:
    rows = spans(0, 3)
    rows[1][column] = value
    runs.write_closed(tmp_path, schema.SPANS, rows)
    read = read_table(tmp_path, schema.SPANS)
    assert read.frame["step"].to_list() == [0, 2]
    (line,) = read.problems
    assert "1 rows of spans have no possible time, or lack a value, and are left out" in line


@pytest.mark.parametrize(
    ("table", "column"),
    [(schema.SPANS, "category"), (schema.SPANS, "thread"), (schema.SAMPLES, "metric")],
)
def test_rows_that_lack_a_value_are_left_out_and_counted(
    tmp_path: Path, table: schema.Table, column: str
) -> None:
    rows = spans(0, 3) if table is schema.SPANS else runs.host_samples(1)[:3]
    rows[1][column] = None
    full = schema.arrow_schema(table)
    place = full.get_field_index(column)
    nullable = full.set(place, full.field(place).with_nullable(True))
    runs.write_closed(tmp_path, table, rows, arrow=nullable)
    read = read_table(tmp_path, table)
    assert read.frame.height == 2
    (line,) = read.problems
    assert "1 rows of " in line
