"""A trace's file, from what torch writes to what tools open; which devices torch is asked for."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from haiprof.capture.trace import files, profiler


class Writes:
    """Stands for a profiler that has stopped and writes this."""

    def __init__(self, text: str) -> None:
        self.text = text

    def save(self, path: Path) -> None:
        path.write_text(self.text)


def trace_file(folder: Path, milliseconds: int = 7) -> files.TraceFile:
    """A file of a process whose folder is ``folder``."""
    session: Any = SimpleNamespace(run_dir=folder.parent, folder=lambda: folder)
    return files.TraceFile(session, milliseconds)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "node#5"
    folder.mkdir()
    return folder


def event(category: str, name: str, filler: int = 0) -> str:
    """An event as torch 2.13 lays it out."""
    head = f'  {{\n    "ph": "X",\n    "cat": "{category}",\n    "name": "{name}",\n    "pid": 0,'
    return head + f'\n    "ts": 1.5,\n    "dur": 2.0,\n    "args": {{"x": "{"y" * filler}"}}\n  }}'


def test_steps_that_kineto_repeats_for_streams_are_no_steps_wherever_they_lie(folder: Path) -> None:
    # So far apart that some lie across two chunks of the reader.
    events = []
    for number in range(700):
        events.append(event("user_annotation", f"ProfilerStep#{number}", filler=number % 97))
        events.append(event("gpu_user_annotation", f"ProfilerStep#{number}", filler=6000))
    text = '{"traceEvents": [\n' + ",\n".join(events) + "\n]}"
    file = trace_file(folder)
    assert file.save(Writes(text), 0) == len(text) > 4 << 20  # type: ignore[arg-type]
    placed = file.place(cut=699)
    assert placed == folder / "node#5.7.pt.trace.json.gz"
    found = [e["name"] for e in json.loads(gzip.decompress(placed.read_bytes()))["traceEvents"]]
    assert found == [
        name
        for number in range(700)
        for name in (
            f"ProfilerStep#{number}" if number < 699 else "cut step 699",
            f"step {number}",
        )
    ]
    assert [p.name for p in folder.parent.rglob("*") if p.is_file()] == [placed.name]


def call(name: str, tid: int, number: int, caller: int | None) -> str:
    """A call of a Python function as torch 2.13 lays it out."""
    parent = "null" if caller is None else caller
    return (
        f'  {{\n    "ph": "X",\n    "cat": "python_function",\n    "name": "{name}",\n'
        f'    "pid": 9,\n    "tid": {tid},\n    "ts": 1.5,\n    "dur": 2.0\n    ,\n    "args": {{\n'
        f'      "Python parent id": {parent}, "Python id": {number}, "Ev Idx": 7\n    }}\n  }}'
    )


def test_our_own_threads_are_left_out_of_it(folder: Path) -> None:
    begin = "haiprof/common/threads.py(50): _work"
    head = '  {\n    "ph": "M",\n    "name": "thread_name",\n    "pid": 9,\n    "tid": 12,\n'
    events = [
        head + '    "args": {\n      "name": "thread 12 (python)"\n    }\n  }',
        # Two threads that torch does not know, and one that it knows.
        call(begin, 0, 1, None),
        call("haiprof/capture/socket/server.py(166): _run", 0, 2, 1),
        call("their/server.py(1): serve", 0, 3, None),
        call("<built-in method accept>", 0, 4, 2),
        call("their/server.py(5): accept", 0, 5, 3),
        call(begin, 12, 6, None),
        call("train.py(3): train", 11, 7, None),
        # What the job's thread calls of ours is on its way.
        call("haiprof/common/threads.py(77): set", 11, 8, 7),
    ]
    for number in range(9, 6000):  # over several chunks of the reader
        events.append(call("haiprof/capture/trace/watch.py(26): look", 12, number, 6))
        events.append(call("train.py(5): step", 11, 10000 + number, 7))
    text = '{"traceEvents": [\n' + ",\n".join(events) + '\n  ],"traceName": "t" }'
    file = trace_file(folder)
    assert file.save(Writes(text), 0) > 2 << 20  # type: ignore[arg-type]
    placed = json.loads(gzip.decompress(file.place(cut=None).read_bytes()))
    assert [e["name"] for e in placed["traceEvents"]] == [
        "their/server.py(1): serve",
        "their/server.py(5): accept",
        "train.py(3): train",
        "haiprof/common/threads.py(77): set",
        *["train.py(5): step"] * 5991,
    ]
    assert placed["traceName"] == "t"


@pytest.mark.parametrize("text", ["", '{"traceEvents": [{"ph": "X", "na'])
def test_a_file_that_torch_did_not_finish_is_none(folder: Path, text: str) -> None:
    with pytest.raises(OSError, match="not written to its end"):
        trace_file(folder).save(Writes(text), 0)  # type: ignore[arg-type]
    assert not [p for p in folder.parent.rglob("*") if p.is_file()]


def test_a_folder_that_cannot_be_written_leaves_nothing(folder: Path) -> None:
    file = trace_file(folder)
    file.save(Writes('{"traceEvents": []}'), 0)  # type: ignore[arg-type]
    folder.rmdir()
    with pytest.raises(FileNotFoundError):
        file.place(cut=None)
    assert not list(folder.parent.iterdir())


def test_without_a_folder_of_the_process_it_lies_in_the_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_FOLDER_SECONDS", 0.1)
    session: Any = SimpleNamespace(run_dir=tmp_path, folder=lambda: None)
    file = files.TraceFile(session, 12)
    file.save(Writes('{"traceEvents": []}'), 0)  # type: ignore[arg-type]
    placed = file.place(cut=None)
    assert placed.parent == tmp_path
    assert placed.name.endswith(".12.pt.trace.json.gz")


@pytest.mark.parametrize(("initialised", "wanted"), [(True, ["CPU", "CUDA"]), (False, ["CPU"])])
def test_a_device_is_recorded_only_where_the_job_uses_it(
    initialised: bool, wanted: list[str]
) -> None:
    class Activity(SimpleNamespace):
        def __hash__(self) -> int:
            return hash(self.name)

    supported = {Activity(name="CPU"), Activity(name="CUDA")}
    torch: Any = SimpleNamespace(
        profiler=SimpleNamespace(supported_activities=lambda: supported),
        cuda=SimpleNamespace(is_initialized=lambda: initialised),
    )
    assert sorted(a.name for a in profiler.activities(torch)) == wanted
