"""Names and attributes that are seen once: all are kept, and nothing grows with them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from recording import process_file, run_python, wait_recorded

from haiprof import _core, schema
from haiprof.common.owned_files import Folder
from haiprof.recorder.closing import Batches, close_stream
from haiprof.recorder.segments import TableWriter, live_streams
from haiprof.recorder.tables import RingTables
from haiprof.sources.follow import FolderFollower, Wanted
from haiprof.sources.tables import read_table

SPANS = Wanted(schema.SPANS, ("start", "duration", "name"), 50)
#: Rows of one batch; the dictionaries begin anew after several.
ROWS = 2000
BATCHES = 20


@pytest.fixture
def ring(shm: Path) -> Iterator[Path]:
    path = shm / "1.ring"
    _core.open_ring(str(path))
    yield path
    _core.close_ring()


def record_batches(ring: Path, writer: TableWriter) -> Iterator[list[str]]:
    """Write batch after batch as the recorder does; yield the names in each."""
    reader = _core.RingReader(str(ring))
    tables = RingTables()
    for batch in range(BATCHES):
        names = [f"span {batch * ROWS + n}" if n % 10 else "often" for n in range(ROWS)]
        for n, name in enumerate(names):
            with _core.Span(name, attributes=json.dumps({"n": batch * ROWS + n})):
                pass
        reader.take()
        record_batch = tables.batch(schema.SPANS, reader.rows()["spans"], reader.texts)
        reader.clear()
        writer.prepare()
        writer.append(record_batch)
        writer.push()
        yield names
    assert reader.losses["names"] == 0


def check(frame: pl.DataFrame, names: list[str]) -> None:
    assert frame["name"].cast(pl.String).to_list() == names
    numbers = [json.loads(each)["n"] for each in frame["attributes"].to_list()]
    assert numbers == list(range(len(names)))


def test_dictionaries_begin_anew_within_a_file_and_every_text_is_read(
    ring: Path, tmp_path: Path
) -> None:
    follower = FolderFollower(tmp_path, [SPANS])
    writer = TableWriter(tmp_path, schema.SPANS)
    names: list[str] = []
    for batch in record_batches(ring, writer):
        names += batch
        followed = [
            part.texts["name"][index]
            for part in follower.read()["spans"]
            for index in part.columns["name"].tolist()
        ]
        assert followed == batch
    live = read_table(tmp_path, schema.SPANS)
    assert (live.cut, live.problems, follower.problems) == (0, [], [])
    check(live.frame, names)

    sizes = {"name": [0], "attributes": [0]}
    for rows, _ in Batches(Folder.at(tmp_path), "spans-0.arrows"):
        for column, known in sizes.items():
            known.append(len(rows.column(column).dictionary))
    for known in sizes.values():
        assert max(known) <= (1 << 13) + ROWS
        assert sum(after < before for before, after in pairwise(known)) >= 3

    # A first look at what is there already, then at what it is closed into.
    assert FolderFollower(tmp_path, [SPANS]).read()["spans"][-1].texts["name"]
    writer.close()
    check(read_table(tmp_path, schema.SPANS).frame, names)
    (path,) = tmp_path.iterdir()
    found = pa.ipc.open_file(str(path)).read_all()
    words = found["name"].chunk(0).dictionary
    assert len(words) == len(set(words.to_pylist())) == len(set(names))


def test_a_stream_whose_writer_was_killed_is_closed_with_all_its_texts(
    ring: Path, tmp_path: Path
) -> None:
    writer = TableWriter(tmp_path, schema.SPANS)
    names = [name for batch in record_batches(ring, writer) for name in batch]
    folder = Folder.at(tmp_path)
    for left in live_streams(folder):
        close_stream(folder, left)
    check(read_table(tmp_path, schema.SPANS).frame, names)
    writer.close()


def test_what_a_job_makes_up_costs_it_nothing_and_is_all_there(shm: Path, tmp_path: Path) -> None:
    program = """
        import sys
        import haiprof
        from haiprof import _core

        def memory():
            with open("/proc/self/status") as file:
                return next(int(line.split()[1]) for line in file if line.startswith("RssAnon"))

        haiprof.start(sys.argv[1], run="run", hooks=False, ring_mib=64)
        begin = 0
        for number in range(100_000):
            with haiprof.range(f"load shard {number}", file=f"shard-{number}.tar", bytes=number):
                pass
            if number % 20_000 == 19_999:
                haiprof.mark(f"{number} done", shard=number)
                haiprof.mark(f"loss/{number}", 0.5)
                assert haiprof.flush(60)
                begin = begin or memory()
        grown = memory() - begin
        assert not any(_core.losses().values()), _core.losses()
        haiprof.stop()
        print(grown)
    """
    grown = int(run_python(program, str(tmp_path)))
    assert grown < 8192  # KiB; the texts alone are 7 MiB
    wait_recorded(shm)
    (folder,) = tmp_path.glob("run/*#0*")
    assert not any(process_file(folder)["lost"].values())
    spans = read_table(folder, schema.SPANS, ("category", "name", "attributes"))
    frame = spans.frame.filter(pl.col("category") == "user")
    assert frame["name"].cast(pl.String).to_list() == [f"load shard {n}" for n in range(100_000)]
    assert [json.loads(each) for each in frame["attributes"].to_list()] == [
        {"file": f"shard-{n}.tar", "bytes": n} for n in range(100_000)
    ]
    marks = range(19_999, 100_000, 20_000)
    events = read_table(folder, schema.EVENTS).frame.filter(pl.col("kind") == "mark")
    assert events["text"].to_list() == [f"{n} done" for n in marks]
    samples = read_table(folder, schema.SAMPLES).frame["metric"].cast(pl.String).to_list()
    assert [name for name in samples if name.startswith("loss/")] == [f"loss/{n}" for n in marks]
