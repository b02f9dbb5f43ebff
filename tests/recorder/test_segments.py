"""Streams that are damaged: what is whole is closed, and what is not is kept and reported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
import runs
from commands import haiprof
from damage import WRONG_TEXTS

from haiprof import schema
from haiprof.common.owned_files import Folder
from haiprof.recorder.closing import Batches, close_stream, reach_in
from haiprof.recorder.reach import Reach
from haiprof.recorder.segments import (
    TableWriter,
    close_ended,
    close_left,
    next_number,
    reached,
)

#: The first four have all names: of the others any can be missing.
ROWS = [runs.span(n, 1, "phase", f"p{n % 4}", n) for n in range(12)]
NAME = "spans-0.arrows"


def write_stream(folder: Path) -> list[int]:
    """Write three batches as a recorder does; return where each ends."""
    writer = TableWriter(folder, schema.SPANS)
    writer.prepare()
    ends = []
    for n, batch in enumerate(runs.recorded_batches(schema.SPANS, ROWS, 4)):
        writer.append(batch, Reach({0: 4 * n + 4}, {"overwritten": n}))
        writer.push()
        ends.append((folder / NAME).stat().st_size)
    return ends


def write_forged(folder: Path, names: pa.Array, metadata: dict[str, str] | None = None) -> None:
    """Write a sound batch, and one that has these for its names or this for its metadata."""
    batch = runs.batch(schema.SPANS, ROWS[:2])
    place = batch.schema.get_field_index("name")
    forged = batch.set_column(place, batch.schema.field(place), names)
    with pa.OSFile(str(folder / NAME), "wb") as sink, pa.ipc.new_stream(sink, batch.schema) as out:
        out.write_batch(batch, custom_metadata={"haiprof.through": '{"0": 2}'})
        out.write_batch(forged, custom_metadata=metadata)


def starts(folder: Path) -> list[int]:
    read = pa.ipc.open_file(str(folder / "spans-0.arrow")).read_all()
    read.validate(full=True)
    return [(start - runs.T0) // runs.MS for start in read["start"].to_pylist()]


def test_a_whole_stream_becomes_a_file_that_counts_its_rows(tmp_path: Path) -> None:
    write_stream(tmp_path)
    assert close_stream(Folder.at(tmp_path), NAME) == ("spans-0.arrow", "")
    assert starts(tmp_path) == list(range(12))
    metadata = pa.ipc.open_file(str(tmp_path / "spans-0.arrow")).schema.metadata
    assert metadata[b"haiprof.rows"] == b"12"
    assert [file.name for file in tmp_path.iterdir()] == ["spans-0.arrow"]


@pytest.mark.parametrize("count", [1, 12, 4_000])
def test_a_file_has_the_same_whoever_closes_it(tmp_path: Path, count: int) -> None:
    rows = [runs.span(n, 1, "phase", f"p{n % 4}", n) for n in range(count)]
    found = []
    for name in ("own", "other"):
        folder = tmp_path / name
        folder.mkdir()
        writer = TableWriter(folder, schema.SPANS)
        writer.prepare()
        for n, batch in enumerate(runs.recorded_batches(schema.SPANS, rows, 400)):
            writer.append(batch, Reach({0: n, 1: 7}, {"overwritten": n}))
        writer.push()
        if name == "own":
            writer.close()
        else:
            close_stream(Folder.at(folder), NAME)
        assert [file.name for file in folder.iterdir()] == ["spans-0.arrow"]
        file = pa.ipc.open_file(str(folder / "spans-0.arrow"))
        read = file.read_all()
        read.validate(full=True)
        found.append((file.schema.metadata, read.to_pylist()))
    assert found[0] == found[1]
    assert len(found[0][1]) == count


def test_a_short_job_needs_no_pyarrow(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from haiprof import schema\n"
        "from haiprof.recorder.segments import TableWriter\n"
        "from haiprof.recorder.tables import RowTable\n"
        "rows, writer = RowTable(schema.EVENTS), TableWriter(Path(sys.argv[1]), schema.EVENTS)\n"
        "rows.add(5, 'mark', 'done', None, None)\n"
        "writer.prepare()\n"
        "writer.append(rows.take())\n"
        "writer.close()\n"
        "print('pyarrow' in sys.modules)"
    )
    command = [sys.executable, "-P", "-c", program, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
    [event] = pa.ipc.open_file(str(tmp_path / "events-0.arrow")).read_all().to_pylist()
    assert (event["time"], event["kind"], event["text"]) == (5, "mark", "done")


def test_a_stream_that_others_have_written_to_is_closed_by_what_is_in_it(tmp_path: Path) -> None:
    writer = TableWriter(tmp_path, schema.SPANS)
    writer.prepare()
    for batch in runs.recorded_batches(schema.SPANS, ROWS, 4):
        writer.append(batch)
    writer.push()
    with (tmp_path / NAME).open("r+b") as file:
        file.truncate(file.seek(0, os.SEEK_END) + 4096)
    writer.close()
    assert starts(tmp_path) == list(range(12))


def test_a_stream_stays_where_what_closes_it_cannot_be_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    writer = TableWriter(tmp_path, schema.SPANS)
    for batch in runs.recorded_batches(schema.SPANS, ROWS * 400, 4_800):
        writer.prepare()
        writer.append(batch)
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "haiprof.recorder.closing", None)
        writer.close()
    assert f"{tmp_path / NAME} stays a stream" in caplog.text
    assert pa.ipc.open_stream((tmp_path / NAME).read_bytes()).read_all().num_rows == 4_800


def test_what_a_recorder_without_pyarrow_left_is_closed_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, state in (("ended", "closed"), ("going", "live")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "process.json").write_text(json.dumps({"state": state}))
        writer = TableWriter(tmp_path / name, schema.SPANS)
        for batch in runs.recorded_batches(schema.SPANS, ROWS * 400, 4_800):
            writer.prepare()
            writer.append(batch)
        with monkeypatch.context() as patched:
            patched.setitem(sys.modules, "haiprof.recorder.closing", None)
            writer.close()
            assert close_left(Folder.at(tmp_path / name)) == []
        assert (tmp_path / name / NAME).exists()
    (tmp_path / "no process").mkdir()
    close_ended(tmp_path)
    assert not (tmp_path / "ended" / NAME).exists()
    assert len(starts(tmp_path / "ended")) == 4_800
    assert (tmp_path / "going" / NAME).exists()
    close_ended(tmp_path / "nothing is here")


def test_of_a_cut_stream_the_lost_bytes_are_reported(tmp_path: Path) -> None:
    ends = write_stream(tmp_path)
    content = (tmp_path / NAME).read_bytes()
    (tmp_path / NAME).write_bytes(content[: ends[1] + 40])
    closed = close_stream(Folder.at(tmp_path), NAME)
    assert closed.lost == "spans-0.arrows ended within a batch, of which 40 bytes are lost"
    assert starts(tmp_path) == list(range(8))


def test_what_precedes_damage_is_closed_and_the_stream_is_kept(tmp_path: Path) -> None:
    ends = write_stream(tmp_path)
    content = bytearray((tmp_path / NAME).read_bytes())
    content[ends[0] : ends[1]] = b"\x07" * (ends[1] - ends[0])
    (tmp_path / NAME).write_bytes(content)
    closed = close_stream(Folder.at(tmp_path), NAME)
    assert "is damaged" in closed.lost
    assert "4 of its rows are in spans-0.arrow" in closed.lost
    assert starts(tmp_path) == [0, 1, 2, 3]
    assert (tmp_path / "spans-0.damaged").read_bytes() == content
    assert reached(Folder.at(tmp_path), schema.SPANS).lanes == {0: 4}


def test_zeros_between_two_batches_are_damage_and_no_end(tmp_path: Path) -> None:
    ends = write_stream(tmp_path)
    content = (tmp_path / NAME).read_bytes()
    (tmp_path / NAME).write_bytes(content[: ends[1]] + bytes(64))
    assert "something follows its end" in close_stream(Folder.at(tmp_path), NAME).lost
    assert starts(tmp_path) == list(range(8))


def test_a_batch_that_is_missing_is_counted(tmp_path: Path) -> None:
    ends = write_stream(tmp_path)
    content = (tmp_path / NAME).read_bytes()
    (tmp_path / NAME).write_bytes(content[: ends[0]] + content[ends[1] :])
    assert "4 rows are missing" in close_stream(Folder.at(tmp_path), NAME).lost
    assert starts(tmp_path) == [0, 1, 2, 3, 8, 9, 10, 11]


def test_a_stream_without_a_head_is_kept_too(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(b"\x07" * 4096)
    assert (
        "nothing is read; it is kept as spans-0.damaged"
        in close_stream(Folder.at(tmp_path), NAME).lost
    )
    assert [file.name for file in tmp_path.iterdir()] == ["spans-0.damaged"]


def test_what_is_kept_is_not_replaced_by_what_is_written_next(tmp_path: Path) -> None:
    (tmp_path / "spans-0.damaged").write_bytes(b"?")
    assert next_number(Folder.at(tmp_path), schema.SPANS) == 1


@pytest.mark.parametrize("way", WRONG_TEXTS)
def test_texts_that_cannot_be_read_are_damage(tmp_path: Path, way: str) -> None:
    write_forged(tmp_path, WRONG_TEXTS[way](2))
    assert "is damaged" in close_stream(Folder.at(tmp_path), NAME).lost
    assert starts(tmp_path) == [0, 1]


def test_texts_in_place_of_others_are_not_taken_for_those(tmp_path: Path) -> None:
    write_forged(tmp_path, pa.array(["x", "y"]).dictionary_encode().cast(schema.arrow_type("text")))
    closed = close_stream(Folder.at(tmp_path), NAME)
    assert closed.lost == ""
    names = pa.ipc.open_file(tmp_path / closed.name).read_all()["name"].to_pylist()
    assert names[-2:] == ["x", "y"]
    assert len(set(names[:-2])) > 0
    assert not {"x", "y"} & set(names[:-2])


@pytest.mark.parametrize(
    "text",
    [
        "{", "[]", "7", '"x"', "\udc80", '{"0": "1"}', '{"0": null}', '{"0": -1}', '{"0": 1e999}',
        '{"x": 1}', '{"0": NaN}', "[" * 100_000, '{"0": 99999999999999999999}',
    ],
)  # fmt: skip
def test_a_reach_that_is_damaged_ends_what_is_read(tmp_path: Path, text: str) -> None:
    raw = text.encode("utf-8", "surrogateescape")
    with pytest.raises(pa.ArrowInvalid, match=r"haiprof\.through"):
        reach_in({b"haiprof.through": raw})
    names = runs.batch(schema.SPANS, ROWS[:2]).column("name")
    write_forged(tmp_path, names, {b"haiprof.through": raw})  # type: ignore[dict-item]
    batches = Batches(Folder.at(tmp_path), NAME)
    assert [batch.num_rows for batch, _ in batches] == [2]
    assert "haiprof.through" in batches.damage
    assert reached(Folder.at(tmp_path), schema.SPANS).lanes == {0: 2}


@pytest.mark.parametrize("names", [["a", "a"], ["a", b"\xff\xfe"]])
def test_columns_with_one_name_are_damage(tmp_path: Path, names: list[str]) -> None:
    arrow = pa.schema([pa.field(name, pa.int64()) for name in names])
    batch = pa.record_batch([pa.array([1]), pa.array([2])], schema=arrow)
    with pa.OSFile(str(tmp_path / NAME), "wb") as sink, pa.ipc.new_stream(sink, arrow) as out:
        out.write_batch(batch)
    assert "is damaged" in close_stream(Folder.at(tmp_path), NAME).lost


def test_recover_reports_what_is_damaged(tmp_path: Path, shm: Path) -> None:
    run = runs.write_run(tmp_path / "run")
    process = runs.write_process(run, 0, host=os.uname().nodename, state="live")
    ends = write_stream(process)
    content = (process / NAME).read_bytes()
    (process / NAME).write_bytes(content[: ends[1]] + b"\x07" * 64)
    done = haiprof("recover", run)
    assert done.returncode == 0, done.stderr
    assert "n0#0/spans-0.arrows is damaged" in done.stdout
    assert "8 of its rows are in spans-0.arrow; it is kept as spans-0.damaged" in done.stdout
