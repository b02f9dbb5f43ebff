"""``haiprof export``: writes a run for other programs, or says in one line why not."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path

import pytest
import runs
import traces
from commands import haiprof, only_line, start_haiprof
from recording import wait_for


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return traces.write(tmp_path / "t" / "w.pt.trace.json", traces.small()).parent


def test_each_file_is_named(tmp_path: Path, trace: Path) -> None:
    done = haiprof("export", trace, "-o", tmp_path / "out")
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(map(Path, done.stdout.splitlines())) == sorted((tmp_path / "out").iterdir())
    assert str(tmp_path / "out" / "operators.csv") in done.stdout


def test_a_format_that_is_none_is_one_line(tmp_path: Path, trace: Path) -> None:
    done = haiprof("export", trace, "-o", tmp_path / "out", "--to", "xls")
    assert (done.returncode, done.stdout) == (1, "")
    assert "--to xls" in only_line(done)
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_a_file_is_one_line(tmp_path: Path, trace: Path) -> None:
    (tmp_path / "out").write_text("x")
    done = haiprof("export", trace, "-o", tmp_path / "out")
    assert done.returncode == 1
    assert f"{tmp_path / 'out'}: cannot be written" in only_line(done)


@pytest.mark.parametrize("to", ["perfetto", "chrome", "tensorboard", "parquet"])
def test_each_format_names_its_files(tmp_path: Path, trace: Path, to: str) -> None:
    done = haiprof("export", trace, "-o", tmp_path / "out", "--to", to)
    assert (done.returncode, done.stderr) == (0, "")
    out = tmp_path / "out"
    found = [out] if out.is_file() else [path for path in out.rglob("*") if path.is_file()]
    assert sorted(map(Path, done.stdout.splitlines())) == sorted(found)
    again = haiprof("export", trace, "-o", out, "--to", to)
    assert (again.returncode, again.stdout) == (1, "")
    assert "out: is there already" in only_line(again)


@pytest.mark.parametrize("kind", ["summary", "timeline"])
@pytest.mark.parametrize("form", ["csv", "json", ""])
def test_in_the_manner_of_msprof(tmp_path: Path, trace: Path, kind: str, form: str) -> None:
    asked = ["--format", form] if form else []
    done = haiprof("export", kind, trace, "-o", tmp_path / "out", *asked)
    assert (done.returncode, done.stderr) == (0, "")
    files = sorted((tmp_path / "out").iterdir())
    assert sorted(map(Path, done.stdout.splitlines())) == files
    ending = form or {"summary": "csv", "timeline": "json"}[kind]
    assert {file.suffix for file in files} == {f".{ending}"}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["lines", "{}"], "lines: is no kind of export: choose summary or timeline"),
        (["summary", "timeline", "{}"], "summary: is no kind of export"),
        (["summary", "{}", "--to", "csv"], "--to csv: a summary has none"),
        (["summary", "{}", "--format", "xml"], "--format xml: choose csv or json"),
        (["{}", "--format", "json"], "--format json: only a summary or timeline has one"),
        (["{}", "--rank", "0"], "--rank: the views as CSV are of all ranks"),
        (["{}", "--rank", "7", "--to", "parquet"], "--rank 7: the run has no such rank: it has 0"),
    ],
)
def test_what_cannot_be_meant_is_one_line(
    tmp_path: Path, trace: Path, words: list[str], told: str
) -> None:
    done = haiprof("export", *(word.format(trace) for word in words), "-o", tmp_path / "out")
    assert (done.returncode, done.stdout) == (1, "")
    assert told in only_line(done)
    assert not (tmp_path / "out").exists()


def test_a_run_may_be_named_like_a_kind(tmp_path: Path) -> None:
    runs.make_run(tmp_path / "summary")
    done = haiprof("export", "summary", "-o", "out", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "out" / "steps.csv").exists()


@pytest.mark.parametrize("to", ["perfetto", "chrome", "parquet", "tensorboard", "summary"])
def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path, to: str) -> None:
    run = runs.make_gpu_run(tmp_path / "run", ranks=2)
    (tmp_path / "place").mkdir()
    words = ["summary", run] if to == "summary" else [run, "--to", to]
    done = haiprof(
        "export", *words, "-o", tmp_path / "place" / "out",
        # As a disk that has no room: a file cannot grow beyond this.
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000)),
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    assert "out: cannot be written (File too large)" in only_line(done)
    assert list((tmp_path / "place").iterdir()) == []


def test_an_interrupt_leaves_nothing(tmp_path: Path) -> None:
    run = runs.make_run(tmp_path / "run", ranks=32, steps=1000)
    (tmp_path / "place").mkdir()
    process = start_haiprof("export", run, "--to", "tensorboard", "-o", tmp_path / "place" / "out")
    wait_for(lambda: any((tmp_path / "place").glob("*/out/*")), what="the first file")
    os.killpg(process.pid, signal.SIGINT)
    told, said = process.communicate(timeout=60)
    assert (process.returncode, told, said) == (130, "", "haiprof: interrupted\n")
    assert list((tmp_path / "place").iterdir()) == []
