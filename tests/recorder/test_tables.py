"""Rows of the recorder's own, whose texts may hardly ever repeat."""

from __future__ import annotations

import errno
import json
import os
import subprocess
from pathlib import Path

import pyarrow as pa
import pytest
from recording import read_table

from haiprof import schema
from haiprof.recorder import process as recorded
from haiprof.recorder.node import NodeRecorder
from haiprof.recorder.segments import TableWriter
from haiprof.recorder.tables import MOST_TEXTS, RowTable
from haiprof.sources import tables

#: How many rows each write of these tests brings.
ROWS = 500


def record(node: NodeRecorder, texts: list[str]) -> None:
    for number, text in enumerate(texts):
        node.event("ecc", text, {"n": number})
        if number % ROWS == ROWS - 1:
            node.write()


def test_texts_that_never_repeat_go_on_in_files_that_do_not_know_the_ones_before(
    tmp_path: Path,
) -> None:
    texts = [f"error {number}" for number in range(MOST_TEXTS * 5 // 2)]
    node = NodeRecorder(tmp_path, {})
    record(node, texts)
    live = tables.read_table(node.folder, schema.EVENTS)
    assert (live.cut, live.problems) == (0, [])
    assert live.frame["text"].to_list() == texts[: len(texts) // ROWS * ROWS]
    node.close()
    files = sorted(node.folder.glob("events-*"))
    assert [file.name for file in files] == [f"events-{number}.arrow" for number in range(3)]
    for file in files:
        found = pa.ipc.open_file(str(file)).read_all()
        for name in ("text", "attributes"):
            assert len(found[name].chunk(0).dictionary) <= MOST_TEXTS + ROWS
    rows = read_table(node.folder, "events").to_pylist()
    assert [row["text"] for row in rows] == texts
    assert [json.loads(row["attributes"])["n"] for row in rows] == list(range(len(texts)))
    assert {row["kind"] for row in rows} == {"ecc"}


def test_what_happens_to_one_process_goes_on_in_new_files_as_well(
    native_build: Path, tmp_path: Path
) -> None:
    ring = tmp_path / "0.ring"
    with subprocess.Popen(
        [native_build / "tests" / "native" / "gpu_user", ring, tmp_path, "node1", "0"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as job:  # fmt: skip
        assert job.stdout is not None
        assert job.stdout.readline() == "ready\n"
        process = recorded.RecordedProcess(ring, tmp_path)
        texts = [f"{number} records were lost" for number in range(MOST_TEXTS + 2 * ROWS)]
        for number, text in enumerate(texts):
            process.event("lost", text)
            if number % ROWS == ROWS - 1:
                process.drain(0.0)
        job.communicate("")
        process.drain()
    assert process.ended
    assert len(list(process.folder.glob("events-*.arrow"))) == 2
    rows = read_table(process.folder, "events").to_pylist()
    assert [row["text"] for row in rows if row["kind"] == "lost"] == texts


def test_texts_that_repeat_stay_in_one_file(tmp_path: Path) -> None:
    node = NodeRecorder(tmp_path, {})
    for number in range(2 * MOST_TEXTS):
        node.event("disk", f"error {number % 10}")
        if number % ROWS == ROWS - 1:
            node.write()
    node.close()
    assert [file.name for file in node.folder.glob("events-*")] == ["events-0.arrow"]
    assert read_table(node.folder, "events").num_rows == 2 * MOST_TEXTS


def test_a_disk_that_is_full_just_when_a_new_file_begins_costs_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [f"error {number}" for number in range(MOST_TEXTS + 3)]
    rows, writer = RowTable(schema.EVENTS), TableWriter(tmp_path, schema.EVENTS)

    def write() -> None:
        if len(rows):
            writer.prepare()
            writer.append(rows.take())
        writer.push()
        rows.renew(writer)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for text in texts[:MOST_TEXTS]:
        rows.add(1, "ecc", text, None, None)
    writer.prepare()
    writer.append(rows.take())
    writer.push()
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        with pytest.raises(OSError, match="No space"):
            rows.renew(writer)  # the mark of the stream's end does not fit
        rows.add(2, "ecc", texts[-3], None, None)
        with pytest.raises(OSError, match="No space"):
            write()
    rows.add(3, "ecc", texts[-2], None, None)
    write()
    rows.add(4, "ecc", texts[-1], None, None)
    write()
    writer.close()
    assert [row["text"] for row in read_table(tmp_path, "events").to_pylist()] == texts
