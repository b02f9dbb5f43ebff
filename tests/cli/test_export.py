"""``haiprof export``: writes a run for other programs, or says in one line why not."""

from __future__ import annotations

import csv
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import perfetto_trace
import polars as pl
import pytest
import runs
import traces
from commands import haiprof, only_line
from recording import wait_for

from haiprof.analyzer import Analyzer

#: A window of the run below, s, and ns UTC: in the middle of step 12, and of step 15.
WINDOW = ["--from", "0.149", "--until", "0.185"]
FIRST, LAST = runs.T0 + 149 * runs.MS, runs.T0 + 185 * runs.MS


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
    assert (done.returncode, done.stdout) == (2, "")
    assert "--to xls" in only_line(done)
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_a_file_is_one_line(tmp_path: Path, trace: Path) -> None:
    (tmp_path / "out").write_text("x")
    done = haiprof("export", trace, "-o", tmp_path / "out")
    assert done.returncode == 1
    assert f"{tmp_path / 'out'}: cannot be written" in only_line(done)


@pytest.mark.parametrize("to", ["perfetto", "chrome"])
def test_the_critical_path_is_drawn_over_a_trace(tmp_path: Path, trace: Path, to: str) -> None:
    for step in ("longest", "1"):
        out = tmp_path / f"{step}.json"
        done = haiprof("export", trace, "-o", out, "--to", to, "--critical-path", step)
        assert (done.returncode, done.stderr) == (0, "")
        assert b"critical" in out.read_bytes()
    done = haiprof("export", trace, "-o", tmp_path / "x", "--to", to, "--critical-path", "9")
    assert (done.returncode, done.stdout) == (1, "")
    assert "there is no step 9" in only_line(done)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--critical-path", "longest"], "--critical-path: choose --to perfetto or chrome"),
        (["--to", "chrome", "--critical-path", "first"], "give the number of a step, or longest"),
    ],
)
def test_a_critical_path_that_cannot_be_drawn_is_one_line(
    tmp_path: Path, trace: Path, more: list[str], says: str
) -> None:
    done = haiprof("export", trace, "-o", tmp_path / "out", *more)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in only_line(done)


@pytest.mark.parametrize("to", ["perfetto", "chrome", "tensorboard", "parquet"])
def test_each_format_names_its_files(tmp_path: Path, trace: Path, to: str) -> None:
    done = haiprof("export", trace, "-o", tmp_path / "out", "--to", to)
    assert (done.returncode, done.stderr) == (0, "")
    out = tmp_path / "out"
    found = [out] if out.is_file() else [path for path in out.rglob("*") if path.is_file()]
    assert sorted(map(Path, done.stdout.splitlines())) == sorted(found)
    again = haiprof("export", trace, "-o", out, "--to", to)
    assert (again.returncode, again.stdout) == (1, "")
    assert "out: already exists" in only_line(again)


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
    ("words", "message"),
    [
        (
            ["lines", "{}"],
            "lines: is not a kind of export: did you mean 'timeline'? choose summary",
        ),
        (["summery", "{}"], "summery: is not a kind of export: did you mean 'summary'? choose"),
        (
            ["{}", "--to", "parqet"],
            "--to parqet: is not a format: did you mean 'parquet'? choose csv",
        ),
        (["summary", "timeline", "{}"], "summary: is not a kind of export"),
        (["summary", "{}", "--to", "csv"], "--to csv: a summary has none"),
        (["summary", "{}", "--format", "xml"], "--format xml: choose csv or json"),
        (["{}", "--format", "json"], "--format json: only a summary or timeline has one"),
        (["{}", "--rank", "0"], "--rank: the views as CSV are of all ranks"),
        (["{}", "--rank", "7", "--to", "parquet"], "--rank 7: the run has no such rank: it has 0"),
    ],
)
def test_what_cannot_be_meant_is_one_line(
    tmp_path: Path, trace: Path, words: list[str], message: str
) -> None:
    done = haiprof("export", *(word.format(trace) for word in words), "-o", tmp_path / "out")
    of_the_run = "the run has" in message
    assert (done.returncode, done.stdout) == (1 if of_the_run else 2, "")
    assert message in only_line(done)
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


@pytest.mark.parametrize("words", [[], ["--workers", "2"]], ids=["here", "workers"])
def test_an_interrupt_leaves_nothing(tmp_path: Path, words: list[str]) -> None:
    run = runs.make_run(tmp_path / "run", ranks=32, steps=1000)
    (tmp_path / "place").mkdir()
    out = tmp_path / "place" / "out"
    # Whatever the machine does, it is not done before the interrupt comes.
    program = f"""
import sys, time
from pathlib import Path
from haiprof.cli.main import main
from haiprof.export import tensorboard
results = tensorboard.done
def first_result(*given):
    yield next(results(*given))
    Path({str(tmp_path / "first")!r}).touch()
    while True:
        time.sleep(0.01)
if __name__ == "__main__":
    tensorboard.done = first_result
    main()
"""
    command = [sys.executable, "-c", program, "export", run, "--to", "tensorboard", "-o", out]
    process = subprocess.Popen(
        [*command, *words], start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    wait_for((tmp_path / "first").exists, 120, what="the first file")
    assert any((tmp_path / "place").glob("*/out/*"))
    os.killpg(process.pid, signal.SIGINT)
    printed, said = process.communicate(timeout=120)
    assert (process.returncode, printed, said) == (130, "", "haiprof: interrupted\n")
    assert list((tmp_path / "place").iterdir()) == []


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two ranks, whose steps take 12 ms each; of ten of them kernels are recorded."""
    return runs.make_gpu_run(tmp_path_factory.mktemp("logs") / "run", ranks=2)


def exported(job: Path, out: Path, *words: str) -> Path:
    kind = [words[0]] if words[0] in ("summary", "timeline") else []
    done = haiprof("export", *kind, job, "-o", out, *words[len(kind) :])
    assert (done.returncode, done.stderr) == (0, "")
    return out


def steps_of(spans: pl.DataFrame) -> list[tuple[int, int]]:
    """Start and end of each step, ns."""
    found = spans.filter(pl.col("category").cast(pl.String) == "step").sort("start")
    return [(start, start + length) for start, length in found.select("start", "duration").rows()]


def inside(times: list[tuple[int, int]]) -> bool:
    """Whether it reaches from one edge of the window to the other, and not beyond."""
    return min(a for a, _ in times) == FIRST and max(b for _, b in times) == LAST


def test_parquet_of_a_window_is_cut_at_its_edges(tmp_path: Path, job: Path) -> None:
    out = exported(job, tmp_path / "out", "--to", "parquet", *WINDOW)
    spans = pl.read_parquet(out / "spans" / "*.parquet")
    for rank in (0, 1):
        steps = steps_of(spans.filter(pl.col("rank") == rank))
        # Steps follow each other without a gap: two of the four are cut.
        assert [b - a for a, b in steps] == [7 * runs.MS, 12 * runs.MS, 12 * runs.MS, 5 * runs.MS]
        assert inside(steps)
    kernels = pl.read_parquet(out / "kernels" / "*.parquet")
    whole = pl.read_parquet(
        exported(job, tmp_path / "all", "--to", "parquet") / "kernels" / "*.parquet"
    )
    ends = pl.col("start") + pl.col("duration")
    overlapping = whole.filter(ends > FIRST, pl.col("start") < LAST)
    assert 0 < kernels.height == overlapping.height < whole.height
    assert kernels["duration"].sum() == sum(
        min(start + length, LAST) - max(start, FIRST)
        for start, length in overlapping.select("start", "duration").rows()
    )
    for table in ("samples", "events"):
        for file in (out / table).glob("*.parquet") if (out / table).exists() else ():
            assert pl.read_parquet(file)["time"].is_between(FIRST, LAST, closed="left").all()


def test_other_programs_are_given_the_window_only(tmp_path: Path, job: Path) -> None:
    trace = perfetto_trace.read(exported(job, tmp_path / "p", "--to", "perfetto", *WINDOW))
    assert inside([(each.start, each.end) for each in trace.slices])
    for to in ("chrome", "tensorboard"):
        again = Analyzer(exported(job, tmp_path / to, "--to", to, *WINDOW))
        assert again.ranks == [0, 1]
        assert inside(steps_of(again.spans(rank=1)))
        assert inside([(a, a + d) for a, d in again.spans().select("start", "duration").rows()])
    for form in ("csv", "json"):
        out = exported(job, tmp_path / form, "timeline", "--format", form, *WINDOW)
        if form == "csv":
            with (out / "rank_0.csv").open() as file:
                rows = list(csv.DictReader(file))
            assert min(float(row["Start Time(us)"]) for row in rows) == FIRST / 1000
        else:
            assert json.loads((out / "rank_0.json").read_text())["traceEvents"]


def test_views_and_summaries_are_of_the_window_only(tmp_path: Path, job: Path) -> None:
    out = exported(job, tmp_path / "views", *WINDOW)
    steps = pl.read_csv(out / "steps.csv")
    assert steps.group_by("rank").agg(pl.col("duration").sum())["duration"].to_list() == (
        [LAST - FIRST] * 2
    )
    phases = pl.read_csv(out / "device_phases.csv")
    # That kernels were being recorded was reported before the window, and still holds in it.
    assert phases["busy"].null_count() < phases.height
    assert "mark" not in pl.read_csv(out / "events.csv")["kind"].to_list()
    whole = exported(job, tmp_path / "whole", "summary")
    part = exported(job, tmp_path / "part", "summary", *WINDOW)
    counts = [pl.read_csv(each / "op_statistic.csv")["Count"].sum() for each in (part, whole)]
    assert 0 < counts[0] < counts[1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--from", "600"], "no data from 600 s on"),
        (["--from", "2", "--until", "1"], "--until 1: give more seconds than --from has (2)"),
        (["--from", "-1"], "--from -1: give seconds after the run began, from 0 on"),
        (["--from", "nan"], "--from nan: give seconds"),
        (["--workers", "0"], "--workers 0: give a number from 1 to 1024"),
    ],
)
def test_a_window_that_is_none_is_one_line(
    tmp_path: Path, job: Path, words: list[str], message: str
) -> None:
    done = haiprof("export", job, "-o", tmp_path / "out", *words)
    assert (done.returncode, done.stdout) == (
        2 if words[-2] in ("--from", "--until") and "give" in message else 1,
        "",
    )
    assert message in only_line(done)
    assert not (tmp_path / "out").exists()


def contents(place: Path) -> dict[str, bytes]:
    files = [place] if place.is_file() else sorted(p for p in place.rglob("*") if p.is_file())
    return {str(file.relative_to(place)): file.read_bytes() for file in files}


FORMATS = (
    ["--to", "csv"], ["--to", "perfetto"], ["--to", "chrome"], ["--to", "tensorboard"],
    ["--to", "parquet"], ["summary"], ["timeline"], ["timeline", "--format", "csv"],
)  # fmt: skip


@pytest.mark.parametrize("words", FORMATS, ids=" ".join)
def test_processes_of_this_machine_write_the_same(
    tmp_path: Path, job: Path, words: list[str]
) -> None:
    here = contents(exported(job, tmp_path / "here", *words))
    assert here
    assert contents(exported(job, tmp_path / "there", *words, "--workers", "2")) == here


def test_a_dask_cluster_writes_the_same(tmp_path: Path, job: Path) -> None:
    distributed = pytest.importorskip("distributed")
    here = contents(exported(job, tmp_path / "here", "--to", "parquet"))
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as cluster:
        address = str(cluster.scheduler_address).removeprefix("tcp://")
        there = exported(job, tmp_path / "there", "--to", "parquet", "--dask", address)
    assert contents(there) == here


def test_a_full_disk_of_a_worker_is_one_line(tmp_path: Path, job: Path) -> None:
    (tmp_path / "place").mkdir()
    done = haiprof(
        "export", job, "--to", "chrome", "-o", tmp_path / "place" / "out", "--workers", "2",
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000)),
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    assert "out: cannot be written (File too large)" in only_line(done)
    assert list((tmp_path / "place").iterdir()) == []
