"""Tables that grow are read by what was appended to them."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from damage import WRONG_TEXTS
from runs import (
    MS,
    T0,
    batch,
    event,
    make_run,
    sample,
    span,
    write_closed,
    write_live,
    write_process,
)

from haiprof import schema
from haiprof.recorder.segments import TableWriter
from haiprof.recorder.tables import RowTable
from haiprof.sources import follow
from haiprof.sources.follow import NO_TEXT, FolderFollower, Part, Wanted

SPANS = Wanted(schema.SPANS, ("start", "duration", "category", "name", "thread", "step"), 50)
SAMPLES = Wanted(schema.SAMPLES, ("time", "metric", "instance", "value"), 50)


class Writer:
    """Writes samples as a recorder does: its rows, its streams, its dictionary deltas."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.rows = RowTable(schema.SAMPLES)
        self.table = TableWriter(folder, schema.SAMPLES)

    def write(self, *rows: tuple[int, str, str | None, float]) -> None:
        for time, metric, instance, value in rows:
            self.rows.add(time, metric, instance, value, 0)
        self.table.prepare()
        self.table.append(self.rows.take())
        self.table.push()


def rows_of(parts: list[Part]) -> list[tuple[int, str, str | None, float]]:
    """Return the samples of parts as rows."""
    rows = []
    for part in parts:
        metrics, instances = part.texts["metric"], part.texts["instance"]
        for time, metric, instance, value in zip(
            *(part.columns[name].tolist() for name in SAMPLES.columns), strict=True
        ):
            named = None if instance == NO_TEXT else instances[instance]
            rows.append((time, metrics[metric], named, value))
    return rows


def test_each_row_comes_once_with_texts_that_are_new_in_it(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    follower = FolderFollower(tmp_path, [SAMPLES])
    for second in range(30):
        rows = [
            (second, "cpu.util.percent", None, float(second)),
            (second, f"metric{second // 3}", f"gpu{second}", 0.5),
        ]
        writer.write(*rows)
        assert rows_of(follower.read()["samples"]) == rows
        assert follower.read() == {}
    assert follower.problems == []


def test_of_the_past_only_the_newest_batches_are_read(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    for second in range(200):
        writer.write((second, f"metric{second}", None, 1.0))
    read = rows_of(FolderFollower(tmp_path, [SAMPLES]).read()["samples"])
    # Their texts are of dictionaries that came with batches that are passed over.
    assert read == [(second, f"metric{second}", None, 1.0) for second in range(150, 200)]


def test_of_much_that_is_new_at_once_only_the_newest_bytes_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "MOST_BYTES", 3000)
    writer = Writer(tmp_path)
    follower = FolderFollower(tmp_path, [SAMPLES])
    for second in range(20):
        writer.write((second, "a", None, 1.0))
    read = rows_of(follower.read()["samples"])
    assert 1 <= len(read) < 20
    assert read[-1] == (19, "a", None, 1.0)
    writer.write((20, "a", None, 1.0))
    assert rows_of(follower.read()["samples"]) == [(20, "a", None, 1.0)]


def test_only_what_was_appended_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = Writer(tmp_path)
    for second in range(100):
        writer.write(*[(second, f"m{n}", None, 1.0) for n in range(100)])
    follower = FolderFollower(tmp_path, [SAMPLES])
    follower.read()
    before = (tmp_path / "samples-0.arrows").stat().st_size
    asked: list[int] = []
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, n, at: asked.append(at) or pread(fd, n, at))
    writer.write((100, "m0", None, 1.0))
    assert rows_of(follower.read()["samples"]) == [(100, "m0", None, 1.0)]
    assert asked
    assert min(asked) == before


@pytest.mark.parametrize("seed", range(4))
def test_a_stream_cut_anywhere_gives_what_is_whole_and_the_rest_later(
    tmp_path: Path, seed: int
) -> None:
    whole = tmp_path / "whole"
    writer = Writer(whole)
    rows = [(second, f"m{second % 7}", f"i{second}", 1.0 * second) for second in range(12)]
    for row in rows:
        writer.write(row)
    data = (whole / "samples-0.arrows").read_bytes()
    cuts = sorted(np.random.default_rng(seed).integers(0, len(data), 25).tolist())
    growing = tmp_path / "growing"
    growing.mkdir()
    follower = FolderFollower(growing, [SAMPLES])
    read = []
    for cut in [*cuts, len(data)]:
        (growing / "samples-0.arrows").write_bytes(data[:cut])
        read += rows_of(follower.read().get("samples", []))
        assert read == rows[: len(read)]
    assert read == rows
    assert follower.problems == []


def test_a_segment_that_is_closed_meanwhile_gives_the_rest_of_its_rows(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    follower = FolderFollower(tmp_path, [SAMPLES])
    writer.write((1, "a", None, 1.0))
    assert rows_of(follower.read()["samples"]) == [(1, "a", None, 1.0)]
    writer.write((2, "b", "x", 2.0))
    writer.table.close()
    assert not (tmp_path / "samples-0.arrows").exists()
    writer.write((3, "a", None, 3.0))
    assert rows_of(follower.read()["samples"]) == [(2, "b", "x", 2.0), (3, "a", None, 3.0)]
    assert follower.read() == {}


def test_two_writers_of_one_table_are_both_followed(tmp_path: Path) -> None:
    ring, node = Writer(tmp_path), Writer(tmp_path)
    follower = FolderFollower(tmp_path, [SAMPLES])
    for second in range(3):
        ring.write((second, "python.gc.count", "0", 1.0))
        node.write((second, "proc.cpu.percent", None, 2.0))
        assert sorted(rows_of(follower.read()["samples"])) == [
            (second, "proc.cpu.percent", None, 2.0),
            (second, "python.gc.count", "0", 1.0),
        ]
    ring.table.close()
    node.table.close()
    ended = rows_of(FolderFollower(tmp_path, [SAMPLES]).read()["samples"])
    assert {metric for _, metric, _, _ in ended} == {"proc.cpu.percent", "python.gc.count"}


def test_an_ended_run_shows_its_last_rows(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=20)
    (part,) = FolderFollower(run / "n0#0", [SPANS]).read()["spans"]
    assert len(part.columns["start"]) == 20 * 5
    assert int((part.columns["start"] + part.columns["duration"]).max()) == T0 + 240 * MS


def test_dictionaries_that_take_the_place_of_others_are_seen(tmp_path: Path) -> None:
    rows = [[sample(n, f"metric{n}", 1.0 * n, f"i{n}")] for n in range(4)]
    write_live(tmp_path, schema.SAMPLES, rows)
    read = rows_of(FolderFollower(tmp_path, [SAMPLES]).read()["samples"])
    assert [(metric, instance) for _, metric, instance, _ in read] == [
        (f"metric{n}", f"i{n}") for n in range(4)
    ]


def test_null_steps_are_distinguished_from_step_0(tmp_path: Path) -> None:
    write_live(tmp_path, schema.SPANS, [[span(0, 1, "user", "a"), span(1, 1, "user", "b", 0)]])
    (part,) = FolderFollower(tmp_path, [SPANS]).read()["spans"]
    assert part.columns["step"].tolist() == [-1, 0]


@pytest.mark.parametrize("damage", ["zeros", "noise", "body"])
def test_damage_is_reported_once_and_what_is_before_it_is_there(
    tmp_path: Path, damage: str
) -> None:
    writer = Writer(tmp_path)
    for second in range(3):
        writer.write((second, "a", None, 1.0))
    file = tmp_path / "samples-0.arrows"
    whole = file.stat().st_size
    writer.write((3, "a", None, 1.0))
    data = bytearray(file.read_bytes())
    if damage == "zeros":
        data[whole:] = bytes(len(data) - whole)
    elif damage == "noise":
        data[whole:] = os.urandom(len(data) - whole)
        data[whole] = 1
    else:
        data[whole + 16 : whole + 64] = b"\xff" * 48
    file.write_bytes(data)
    follower = FolderFollower(tmp_path, [SAMPLES])
    assert [row[0] for row in rows_of(follower.read()["samples"])] == [0, 1, 2]
    assert follower.read() == {}
    (problem,) = follower.problems
    assert problem.startswith(f"{file}: damaged (")


def test_a_file_of_another_version_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    folder = write_process(tmp_path)
    other = schema.arrow_schema(schema.SPANS)
    other = other.with_metadata({**other.metadata, schema.KEY_VERSION.encode(): b"9.0"})
    with pa.OSFile(str(folder / "spans-0.arrows"), "wb") as sink, pa.ipc.new_stream(sink, other):
        pass
    write_live(folder, schema.SAMPLES, [[sample(1, "a", 1.0)]])
    follower = FolderFollower(folder, [SPANS, SAMPLES])
    assert list(follower.read()) == ["samples"]
    (problem,) = follower.problems
    assert "field 'version' is 9.0" in problem
    assert "update haiprof" in problem


def test_another_table_under_this_name_is_left_out(tmp_path: Path) -> None:
    write_closed(tmp_path, schema.EVENTS, [event(1, "mark", "x")]).rename(
        tmp_path / "samples-0.arrow"
    )
    follower = FolderFollower(tmp_path, [SAMPLES])
    assert follower.read() == {}
    (problem,) = follower.problems
    assert "'events', not 'samples'" in problem


def test_a_folder_that_is_gone_is_quiet(tmp_path: Path) -> None:
    follower = FolderFollower(tmp_path / "none", [SPANS])
    assert follower.read() == {}
    assert follower.problems == []


@pytest.mark.parametrize("suffix", [".arrow", ".arrows"])
@pytest.mark.parametrize("way", WRONG_TEXTS)
def test_texts_that_cannot_be_read_are_left_out_and_reported(
    tmp_path: Path, way: str, suffix: str
) -> None:
    rows = [sample(1, "a.x.count", 1.0), sample(2, "a.x.count", 2.0)]
    good = batch(schema.SAMPLES, rows)
    place = good.schema.get_field_index("metric")
    bad = good.set_column(place, good.schema.field(place), WRONG_TEXTS[way](2))
    file = tmp_path / f"samples-0{suffix}"
    new_writer = pa.ipc.new_stream if suffix == ".arrows" else pa.ipc.new_file
    with pa.OSFile(str(file), "wb") as sink, new_writer(sink, good.schema) as out:
        out.write_batch(bad)
    if suffix == ".arrows":
        write_live(tmp_path, schema.SAMPLES, [rows], number=1)
    else:
        write_closed(tmp_path, schema.SAMPLES, rows, number=1)
    follower = FolderFollower(tmp_path, [SAMPLES])
    assert len(rows_of(follower.read()["samples"])) == 2
    (line,) = follower.problems
    assert line.startswith(f"{file}: damaged (")
