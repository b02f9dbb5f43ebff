"""A node's part of a run stays below its limit, and what is removed is known."""

from __future__ import annotations

import functools
import itertools
import json
import os
import random
import signal
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import runs
from recording import process_file, read_table, run_python, wait_recorded

import haiprof
from haiprof import _core, schema
from haiprof.common.owned_files import Folder
from haiprof.recorder.arrow_stream import WIDTHS, Batch, Texts, Values
from haiprof.recorder.process import RecordedProcess
from haiprof.recorder.segments import TableWriter, close_left
from haiprof.recorder.storage import Storage, limit_of

LIMIT = 2 << 20
#: Rows of a batch: of kernels and spans it is larger than the smallest segment.
ROWS = 1000
#: How many batches of a kind are more than the limit.
KINDS = {"kernels": 30, "spans": 30, "stacks": 60, "samples": 100}


def batch(name: str, now: int) -> Batch:
    """Rows of a table that do not compress, from the last second before ``now``."""
    table, some = schema.TABLES[name], random.Random(now)
    begins = array("q", range(now - runs.SECOND, now - runs.SECOND + ROWS)).tobytes()
    columns = []
    for column in table.columns:
        if column.kind == "text":
            columns.append(Values(bytes(4 * ROWS), None, 0, Texts(["some text"])))
        elif column.name in ("start", "time"):
            columns.append(Values(begins, None, 0))
        else:
            columns.append(Values(some.randbytes(WIDTHS[column.kind] * ROWS), None, 0))
    return Batch(table, ROWS, columns)


class Writing:
    """A recorder's writers, whose clock goes on by a second with each batch."""

    def __init__(self, run: Path, limit: int = LIMIT, node: str = "n0") -> None:
        self.run = run
        self.storage = Storage(Folder.at(run), node, limit)
        self.now = runs.T0
        self.written: dict[tuple[str, str], int] = {}
        self.most = 0
        self._writers: dict[tuple[str, str], TableWriter] = {}

    def write(self, folder: str, table: str, batches: int = 1) -> None:
        key = folder, table
        if key not in self._writers:
            files = Folder.at(self.run).folder(folder, make=True)
            part = self.storage.part(files, lambda: self.now)
            self._writers[key] = TableWriter(files, schema.TABLES[table], part)
        for _ in range(batches):
            self.now += runs.SECOND
            self._writers[key].prepare()
            self._writers[key].append(batch(table, self.now))
            self._writers[key].push()
            self.written[key] = self.written.get(key, 0) + ROWS
            self.most = max(self.most, size_of(self.run))

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "r"
    folder.mkdir()
    return folder


def size_of(run: Path) -> int:
    return sum(file.stat().st_size for file in run.glob("*/*.arrow*"))


def note_of(folder: Path) -> dict[str, Any]:
    note: dict[str, Any] = json.loads((folder / "thinned.json").read_text())
    return note


def thinned(folder: Path) -> dict[str, dict[str, int]]:
    """What a note says of each table."""
    tables: dict[str, dict[str, int]] = note_of(folder)["tables"]
    return tables


def names(folder: Path, table: str = "") -> list[str]:
    return sorted(file.name for file in folder.glob(f"{table}*.arrow*"))


def test_kernels_go_first_and_events_never(run: Path) -> None:
    writing = Writing(run)
    rank = run / "n0#0"
    gone: list[list[str]] = []
    writing.write("n0#0", "events", 3)
    for kind, batches in KINDS.items():
        writing.write("n0#0", kind, batches)
        gone.append(sorted(thinned(rank)))
    writing.close()
    assert gone == [sorted(list(KINDS)[: n + 1]) for n in range(len(KINDS))]
    assert writing.most <= LIMIT
    # Each kind keeps what is newest as long as there is anything else to remove.
    sizes = {k: sum(f.stat().st_size for f in rank.glob(f"{k}-*.arrow")) for k in KINDS}
    assert all(LIMIT // 32 < size < LIMIT // 8 for k, size in sizes.items() if k != "samples")
    assert read_table(rank, "events").num_rows == 3 * ROWS
    assert size_of(run) > LIMIT // 2


def test_the_oldest_of_all_processes_goes_and_the_note_says_until_when(run: Path) -> None:
    writing = Writing(run)
    for turn, rank in itertools.product(range(25), range(2)):
        writing.write(f"n0#{rank}", "kernels", 1 + (turn == 5) * rank)
    writing.close()
    for rank in range(2):
        folder = run / f"n0#{rank}"
        note = thinned(folder)["kernels"]
        kept = read_table(folder, "kernels")
        assert kept.num_rows + note["rows"] == writing.written[folder.name, "kernels"]
        assert note["segments"] == min(int(n[8:].split(".")[0]) for n in names(folder)) > 0
        # A batch has the second before its segment was closed.
        assert min(kept["start"].to_pylist()) >= note["until_ns"] - runs.SECOND
        assert note_of(folder)["limit_bytes"] == LIMIT
        assert note_of(folder)["removing"] == []
    untils = [thinned(run / f"n0#{rank}")["kernels"]["until_ns"] for rank in range(2)]
    assert abs(untils[0] - untils[1]) <= 3 * runs.SECOND


def test_a_limit_that_cannot_be_met_is_said_once(run: Path) -> None:
    writing = Writing(run, LIMIT // 8)
    writing.write("n0#0", "events", 12)
    writing.write("n0#0", "kernels", 4)
    (remark,) = writing.storage.remarks()
    assert remark.endswith("and nothing more can be removed")
    assert "limit of 0.0002441 GiB (storage_limit)" in remark
    writing.write("n0#0", "events", 1)
    assert writing.storage.remarks() == []
    writing.close()
    assert read_table(run / "n0#0", "events").num_rows == 13 * ROWS
    # The last segment says how far the ring was read.
    assert names(run / "n0#0", "kernels") == ["kernels-3.arrow"]


def test_tables_that_a_later_version_adds_are_kept(run: Path) -> None:
    writing = Writing(run, LIMIT // 4)
    (run / "n0#0").mkdir()
    others = [run / "n0#0" / name for name in ("steps-0.arrow", "hang-1.json", "x-0.arrow")]
    for file in others:
        file.write_bytes(bytes(1000))
    writing.write("n0#0", "kernels", 20)
    assert all(file.stat().st_size == 1000 for file in others)
    assert list(thinned(run / "n0#0")) == ["kernels"]


def test_a_new_recorder_counts_what_earlier_ones_left(run: Path) -> None:
    before = Writing(run)
    before.write("n0#0", "kernels", 8)
    before.close()
    runs.write_process(run)  # it has ended
    runs.write_process(run, 1, host="elsewhere", state="live", start_time=1)
    runs.write_process(run, 0, node="n1")
    runs.write_node(run, "n0.cluster")
    others = ("n0#1", "n1#0", "n0.cluster")
    for folder in others:
        other = Writing(run, node="n1")
        other.write(folder, "kernels", 2)
        other.close()
    foreign = [names(run / name) for name in others]
    after = Writing(run)
    assert after.storage.bytes == size_of_folder(run / "n0#0")
    after.now = time.time_ns()  # as the times of files are
    after.write("n0#0.7", "kernels", 25)
    after.close()
    # A recorder of this node may be writing the first, and the others are other nodes'.
    assert [names(run / name) for name in others] == foreign
    assert thinned(run / "n0#0")["kernels"]["rows"] == 7 * ROWS
    assert names(run / "n0#0") == ["kernels-7.arrow"]


def test_what_takes_the_place_of_a_segment_is_not_followed(run: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("x")
    writing = Writing(run)
    writing.write("n0#0", "kernels", 6)
    (run / "n0#0" / "kernels-0.arrow").unlink()
    (run / "n0#0" / "kernels-0.arrow").symlink_to(precious)
    (run / "n0#0" / "kernels-1.arrow").unlink()
    (run / "n0#0" / "kernels-1.arrow").mkdir()
    (run / "n0#0" / "thinned.json").symlink_to(precious)
    writing.write("n0#0", "kernels", 20)
    assert precious.read_text() == "x"
    assert (run / "n0#0" / "kernels-0.arrow").is_symlink()
    assert not (run / "n0#0" / "thinned.json").is_symlink()
    note = thinned(run / "n0#0")["kernels"]
    assert note["segments"] == 26 - 2 - len(list((run / "n0#0").glob("kernels-*.arrow"))) + 2


def test_a_folder_that_ended_and_is_now_a_link_is_left_alone(run: Path, tmp_path: Path) -> None:
    writing = Writing(run)
    writing.write("n0#0", "kernels", 6)
    writing.close()
    part = writing.storage.part(Folder.at(run / "n0#0"), time.time_ns)
    part.end()
    (run / "n0#0").rename(tmp_path / "moved")
    (run / "n0#0").symlink_to(tmp_path / "moved")
    writing.write("n0#1", "kernels", 24)
    assert len(names(tmp_path / "moved")) == 6
    assert size_of(run / "n0#1" / "..") - size_of_folder(tmp_path / "moved") <= LIMIT


def size_of_folder(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("*.arrow*"))


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"tables": [], "removing": {}}'])
def test_a_note_that_makes_no_sense_is_as_if_it_were_missing(run: Path, content: bytes) -> None:
    (run / "n0#0").mkdir()
    (run / "n0#0" / "thinned.json").write_bytes(content)
    writing = Writing(run)
    writing.write("n0#0", "kernels", 25)
    note = thinned(run / "n0#0")["kernels"]
    assert note["segments"] == 25 - len(names(run / "n0#0"))


def test_a_note_names_only_segments_that_may_be_removed(run: Path) -> None:
    writing = Writing(run)
    writing.write("n0#0", "kernels", 2)
    writing.write("n0#0", "events", 6)
    writing.close()
    (run / "precious").write_text("x")
    gone = ["kernels-0.arrow", "events-0.arrow", "../precious", "kernels-7.arrow", 7, "n0#0"]
    (run / "n0#0" / "thinned.json").write_text(json.dumps({"removing": gone}))
    runs.write_process(run)
    Storage(Folder.at(run), "n0", LIMIT)
    assert names(run / "n0#0") == ["events-0.arrow", "events-1.arrow", "kernels-1.arrow"]
    assert (run / "precious").exists()


def test_a_disk_that_refuses_the_note_keeps_the_segments(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing = Writing(run)
    monkeypatch.setattr(os, "fsync", lambda fd: (_ for _ in ()).throw(OSError(28, "full")))
    writing.write("n0#0", "kernels", 20)
    assert len(names(run / "n0#0")) == 20
    assert any("cannot be thinned" in remark for remark in writing.storage.remarks())
    monkeypatch.undo()
    writing.write("n0#0", "kernels", 2)
    assert size_of(run) <= LIMIT


KILLED = """
    import sys
    sys.path[:0] = sys.argv[2:]
    from pathlib import Path
    from test_storage import kill_writers
    kill_writers(Path(sys.argv[1]))
"""


def test_a_kill_at_any_time_loses_nothing_that_was_to_be_kept(shm: Path) -> None:
    here, run = Path(__file__).parent, shm / "r"
    run.mkdir()
    run_python(KILLED, str(run), str(here), str(here.parent))
    assert thinned(run / "n0#1")["kernels"]["segments"] > 5


def kill_writers(run: Path) -> None:
    """Every segment that was closed is there or counted, and those that are there are the last."""
    runs.write_process(run, 0)
    runs.write_process(run, 1)
    closed: dict[str, list[int]] = {"n0#0": [], "n0#1": []}
    some = random.Random(5)
    for turn in range(6):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            write_for_ever(run, writing)
        os.close(writing)
        with os.fdopen(reading) as lines:
            said = [next(lines) for _ in range(4 if turn else 20)]
            time.sleep(some.random() * 0.1)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            said += lines
        for folder, now in map(str.split, said):
            closed[folder].append(int(now))
        finished = Storage(Folder.at(run), "n0", LIMIT)
        assert finished.bytes == size_of(run)
        for folder, times in closed.items():
            check_kept(run / folder, times)


def write_for_ever(run: Path, pipe: int) -> None:
    # As on a slow disk: most of the time it removes something.
    for name in ("fsync", "unlink"):
        setattr(os, name, functools.partial(slowly, getattr(os, name)))
    for folder in ("n0#0", "n0#1"):
        close_left(Folder.at(run / folder))
    writing = Writing(run)
    while True:
        for folder in ("n0#0", "n0#1"):
            writing.now = time.time_ns() - runs.SECOND  # so that times of files go on with it
            writing.write(folder, "kernels")
            os.write(pipe, f"{folder} {writing.now}\n".encode())


def slowly(function: Callable[..., None], *args: Any, **keywords: Any) -> None:
    time.sleep(0.003)
    function(*args, **keywords)


def check_kept(folder: Path, times: list[int]) -> None:
    note = note_of(folder)
    assert note["removing"] == []
    until = note["tables"]["kernels"]["until_ns"]
    there = set()
    numbers = {int(name[8:].split(".")[0]) for name in names(folder, "kernels")}
    assert note["tables"]["kernels"]["segments"] + len(numbers) == max(numbers) + 1
    for name in names(folder, "kernels"):
        if name.endswith(".arrow"):
            read = pa.ipc.open_file(str(folder / name)).read_all()
            there.add(read["start"][0].as_py() + runs.SECOND)
    # Of those that were closed, the ones after the note's time are there.
    assert {time for time in times if time > until} <= there


def test_a_ring_is_recorded_within_the_limit(shm: Path, run: Path) -> None:
    ring = shm / "1.ring"
    _core.open_ring(str(ring), node="n0", run="r", run_dir=str(run))
    try:
        process = RecordedProcess(ring, run, storage=Storage(Folder.at(run), "n0", LIMIT // 2))
        for turn in range(20):
            _core.event("mark", f"turn {turn}")
            for _ in range(10_000):
                with haiprof.range("some work"):
                    pass
            process.drain()
            process._write()
            assert size_of(run) <= LIMIT // 2
    finally:
        _core.close_ring()
    process.drain()
    process.finish()
    note = thinned(process.folder)["spans"]
    assert note["rows"] + read_table(process.folder, "spans").num_rows == 20 * 10_000
    assert note["segments"] > 0
    marks = [row["text"] for row in read_table(process.folder, "events").to_pylist()]
    assert [text for text in marks if text and text.startswith("turn")] == [
        f"turn {turn}" for turn in range(20)
    ]
    assert process_file(process.folder)["lost"]["records"] == 0


def test_a_recorder_has_the_limit_of_the_option(shm: Path, tmp_path: Path) -> None:
    program = """
        import haiprof, random, sys
        session = haiprof.start(sys.argv[1], run="run", hooks=False, storage_limit=0.01)
        for turn in range(30):
            for _ in range(800):
                with haiprof.range(f"{random.getrandbits(8000):x}"):
                    pass
            haiprof.flush()
    """
    run_python(program, str(tmp_path))
    wait_recorded(shm)
    (folder,) = (tmp_path / "run").glob("*#*")
    assert note_of(folder)["limit_bytes"] == int(0.01 * (1 << 30))
    assert size_of(tmp_path / "run") <= 0.01 * (1 << 30)
    kept = read_table(folder, "spans").num_rows
    # On a busy machine a flush may take longer than it is waited for.
    lost = process_file(folder)["lost"]["records"]
    assert kept + thinned(folder)["spans"]["rows"] + lost == 30 * 800


def test_a_tenth_of_the_disk_is_the_limit_and_no_more_than_100_gib(tmp_path: Path) -> None:
    disk = os.statvfs(tmp_path)
    tenth = disk.f_blocks * disk.f_frsize // 10
    assert limit_of(0, Folder.at(tmp_path)) == min(max(tenth, min(1 << 30, 5 * tenth)), 100 << 30)
    assert limit_of(0.5, Folder.at(tmp_path)) == 1 << 29


@pytest.mark.parametrize(
    ("mib", "limit"),
    [(2, 1), (1024, 512), (4096, 1024), (20480, 2048), (1 << 22, 102400), (0, 102400)],
)
def test_the_usual_limit_is_a_tenth_of_the_disk_but_not_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mib: int, limit: int
) -> None:
    disk = os.statvfs_result((4096, 4096, mib << 8, 0, 0, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "fstatvfs", lambda _: disk)
    assert limit_of(0, Folder.at(tmp_path)) == limit << 20
