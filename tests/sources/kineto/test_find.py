"""Which traces at a path are one run, and which worker and span each is."""

from __future__ import annotations

from pathlib import Path

import pytest
import traces

from haiprof.errors import HaiprofError
from haiprof.sources.kineto.find import find


def touch(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).touch()
    return folder


def spans(path: Path) -> list[tuple[str, int]]:
    found = find(str(path))
    assert found is not None
    return [(source.file, source.span) for source in found.sources]


def test_spans_of_a_worker_are_numbered_in_the_order_of_time(tmp_path: Path) -> None:
    touch(tmp_path, "a.200.pt.trace.json", "a.1000.pt.trace.json.gz", "b.5.pt.trace.json")
    assert spans(tmp_path) == [
        ("a.200.pt.trace.json", 1),
        ("a.1000.pt.trace.json.gz", 2),
        ("b.5.pt.trace.json", 1),
    ]


def test_traces_of_torchs_handler_are_not_mixed_with_other_json(tmp_path: Path) -> None:
    touch(tmp_path, "config.json", "rank0.json", ".hidden.json", "notes.txt")
    assert spans(tmp_path) == [("config.json", 1), ("rank0.json", 1)]
    touch(tmp_path, "w.pt.trace.json")
    assert spans(tmp_path) == [("w.pt.trace.json", 1)]


def test_one_trace_twice_is_reported(tmp_path: Path) -> None:
    touch(tmp_path, "w.1.pt.trace.json", "w.1.pt.trace.json.gz")
    found = find(str(tmp_path))
    assert found is not None
    assert [source.file for source in found.sources] == ["w.1.pt.trace.json"]
    (problem,) = found.problems
    assert problem.startswith(f"{tmp_path}/w.1.pt.trace.json.gz: left out, since")


def test_a_run_is_named_after_its_folder_or_file(tmp_path: Path) -> None:
    file = traces.write(tmp_path / "job" / "w.pt.trace.json", traces.small())
    for path, name in ((file, "w"), (file.parent, "job"), (f"{file.parent}/", "job")):
        found = find(str(path))
        assert found is not None
        assert found.run == name


def test_folders_of_runs_are_named(tmp_path: Path) -> None:
    for n in range(12):
        touch(tmp_path / f"run{n:02}", "w.pt.trace.json", "v.pt.trace.json")
    touch(tmp_path / "haiprof-import", "w.json")
    with pytest.raises(HaiprofError) as error:
        find(str(tmp_path))
    assert str(error.value).startswith(
        f"{tmp_path}: has no traces of its own, but folders with some: run00 (2 traces), run01"
    )
    assert str(error.value).endswith("run09 (2 traces) and 2 more: give one of them")


def test_a_folder_without_traces_has_none(tmp_path: Path) -> None:
    touch(tmp_path / "below", "notes.txt")
    assert find(str(tmp_path)) is None


def test_what_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(HaiprofError, match="no such file or folder: give a run, a trace"):
        find(str(tmp_path / "none"))


def test_ten_thousand_files_are_one_run(tmp_path: Path) -> None:
    touch(tmp_path, *(f"n_{n}.1.pt.trace.json" for n in range(10_000)))
    assert len(spans(tmp_path)) == 10_000


def test_a_folder_behind_a_url_is_a_run() -> None:
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
    for name in ("w.2.pt.trace.json", "w.1.pt.trace.json", "notes.txt"):
        with fsspec.open(f"memory://a-run/{name}", "wb") as out:
            out.write(b"{}")
    found = find("memory://a-run/")
    assert found is not None
    assert found.run == "a-run"
    assert [(s.path, s.span, s.bytes) for s in found.sources] == [
        ("memory://a-run/w.1.pt.trace.json", 1, 2),
        ("memory://a-run/w.2.pt.trace.json", 2, 2),
    ]
    with pytest.raises(HaiprofError, match="memory://nowhere"):
        find("memory://nowhere")
