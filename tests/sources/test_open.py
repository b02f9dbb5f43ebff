"""Raw traces opened as a run: processes, names, problems, kept imports, and nothing left behind."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import polars as pl
import pytest
import runs
import traces

from haiprof.analyzer import Analyzer
from haiprof.errors import HaiprofError
from haiprof.sources.imports.formats import find
from haiprof.sources.imports.kept import keep, place_of
from haiprof.sources.open import open_path


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Two hosts' ranks, profiled twice."""
    for rank in range(2):
        for stamp in (5, 1700):
            name = f"node{rank}_{41}.{stamp}.pt.trace.json.gz"
            traces.write(tmp_path / "job" / name, traces.small(rank, begin=1000 * stamp))
    return tmp_path / "job"


def kept(path: Path) -> Path:
    found = find(str(path))
    assert found is not None
    place = place_of(found)
    assert place is not None
    keep(found, place)
    return place


def test_each_worker_and_span_is_a_process(job: Path) -> None:
    run = open_path(job).run
    assert run.name == "job"
    assert run.source == str(job)
    assert [(p.folder.name, p.label, p.rank, p.node, p.pid, p.state) for p in run.processes] == [
        ("node0#0.1", "rank 0, span 1", 0, "node0", 41, "ended"),
        ("node0#0.2", "rank 0, span 2", 0, "node0", 41, "ended"),
        ("node1#1.1", "rank 1, span 1", 1, "node1", 41, "ended"),
        ("node1#1.2", "rank 1, span 2", 1, "node1", 41, "ended"),
    ]
    process = run.processes[1]
    assert process.world_size == 4
    assert process.trace is not None
    assert process.trace.file == "node0_41.1700.pt.trace.json.gz"
    assert (process.trace.worker, process.trace.span) == ("node0_41", 2)
    assert (process.trace.begin, process.trace.end) == (1_700_000_000, 1_700_200_000)
    assert process.trace.distributed == {"rank": 0, "world_size": 4}
    assert process.trace.version == 1


def test_gpus_are_those_that_were_used(tmp_path: Path) -> None:
    cards = [
        {"id": n, "name": f"card {n}", "totalGlobalMem": 80 << 30, "numSms": 132,
         "computeMajor": 9, "computeMinor": 0}
        for n in range(8)
    ]  # fmt: skip
    file = traces.write(tmp_path / "w.json", {**traces.small(), "deviceProperties": cards})
    (gpu,) = open_path(file).run.processes[0].gpus
    assert (gpu.device, gpu.name, gpu.memory_bytes) == (0, "card 0", 80 << 30)
    assert (gpu.multiprocessors, gpu.capability) == (132, (9, 0))


def test_the_analyzer_reads_raw_traces_and_leaves_nothing(job: Path, temporary: Path) -> None:
    before = sorted(job.iterdir())
    analyzer = Analyzer(job)
    assert analyzer.ranks == [0, 1]
    assert analyzer.problems() == []
    assert analyzer.steps().height == 4 * 2
    kernels = analyzer.kernels(1)
    assert kernels["name"].cast(pl.String).to_list() == ["gemm"] * 4
    assert repr(analyzer) == f"Analyzer('{job}'): 2 ranks"
    with pytest.raises(HaiprofError, match="job: has no rank 9"):
        analyzer.steps(9)
    assert len(list(temporary.iterdir())) == 1
    del analyzer
    gc.collect()
    assert list(temporary.iterdir()) == []
    assert sorted(job.iterdir()) == before


def test_another_process_can_read_the_traces(job: Path) -> None:
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        assert Analyzer(job, executor=pool).spans().equals(Analyzer(job).spans())


def test_a_rank_is_reported_by_the_file_else_by_its_name(tmp_path: Path) -> None:
    traces.write(tmp_path / "r" / "rank_3.json", traces.small(rank=None))
    traces.write(tmp_path / "r" / "rank_4.json", traces.small(rank=0))
    traces.write(tmp_path / "r" / "other.json", traces.small(rank=None))
    found = {p.folder.name: (p.rank, p.role) for p in open_path(tmp_path / "r").run.processes}
    assert found == {
        "rank_3#3": (3, "rank"),
        "rank_4#0": (0, "rank"),
        "other#-": (None, "process"),
    }


def test_two_workers_that_say_to_be_one_rank_are_kept_and_reported(tmp_path: Path) -> None:
    for name in ("n_1.7.pt.trace.json", "n_2.7.pt.trace.json"):
        traces.write(tmp_path / "r" / name, traces.small(rank=0))
    run = open_path(tmp_path / "r").run
    assert [p.folder.name for p in run.processes] == ["n#0", "n#0.n_2"]
    assert [p.label for p in run.processes] == ["rank 0, in n#0", "rank 0, in n#0.n_2"]
    (problem,) = run.problems
    assert "n_1.7.pt.trace.json: claims to be rank 0, and so does n_2.7.pt.trace.json" in problem


def test_times_begin_at_the_files_base_wherever_it_stands(tmp_path: Path) -> None:
    small = {**traces.small(), "baseTimeNanoseconds": 1_700_000_000_000_000_123}
    process = open_path(traces.write(tmp_path / "w.json", small)).run.processes[0]
    assert process.started_ns == 1_700_000_000_000_000_123 + 1_000_000


def test_a_large_file_is_written_in_parts_that_begin_at_its_base(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from haiprof.sources.kineto import one_file, stream

    small = traces.small()
    events = small["traceEvents"]
    small["traceEvents"] = [{**e, "ts": e["ts"] + 1000 * n} for n in range(1000) for e in events]
    small["baseTimeNanoseconds"] = 1_700_000_000_000_000_123
    file = traces.write(tmp_path / "w.json", small)
    whole = Analyzer(file)
    monkeypatch.setattr(stream, "PIECE", 1 << 12)
    monkeypatch.setattr(one_file, "_SEGMENT", 1 << 14)
    parts = Analyzer(file)
    assert len(list(parts.run.processes[0].folder.glob("spans-*"))) > 2
    for ask in (Analyzer.spans, Analyzer.kernels):
        assert ask(parts).equals(ask(whole))
    assert parts.run.processes[0].trace == whole.run.processes[0].trace


CASES = {
    "empty": (b"", "is empty: see whether the job could write it"),
    "blanks": (b"  \n", "is empty: see whether the job could write it"),
    "text": (b"hello", "is not a trace (it is neither a JSON object nor a list): give a trace"),
    "number": (b"17", "is not a trace (it is neither a JSON object nor a list): give a trace"),
    "other": (b'{"name": "config", "values": [1, 2]}', "is not a trace (traceEvents is missing)"),
    "no events": (b'{"traceEvents": []}', "has no events: give a trace of torch.profiler"),
    "others events": (
        b'[{"ph": "X", "cat": "FEE", "name": "f", "ts": 1, "dur": 2, "pid": 1, "tid": 1}]',
        "none of its 1 events is one that torch.profiler writes",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_no_trace_is_one_line(case: str, tmp_path: Path, temporary: Path) -> None:
    content, line = CASES[case]
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "w.json").write_bytes(content)
    for path in (tmp_path / "r" / "w.json", tmp_path / "r"):
        with pytest.raises(HaiprofError) as error:
            open_path(path)
        assert str(error.value).startswith(f"{tmp_path}/r/w.json: {line}")
        assert "\n" not in str(error.value)
    assert list(temporary.iterdir()) == []


def test_beside_good_traces_bad_ones_are_reported(job: Path) -> None:
    (job / "node7_41.5.pt.trace.json").write_bytes(b"hello")
    analyzer = Analyzer(job)
    assert analyzer.ranks == [0, 1]
    (problem,) = analyzer.problems()
    assert problem.startswith(f"{job}/node7_41.5.pt.trace.json: is not a trace")


def test_a_cut_trace_is_read_up_to_the_cut(tmp_path: Path) -> None:
    text = json.dumps(traces.small()).encode()
    (tmp_path / "w.json").write_bytes(text[: text.rindex(b'"kernel"')])
    analyzer = Analyzer(tmp_path / "w.json")
    assert (analyzer.spans(category="step").height, analyzer.kernels().height) == (2, 1)
    (problem,) = analyzer.problems()
    assert "w.json: is cut off at byte" in problem
    assert problem.endswith("copy the file again from where it was written")
    assert analyzer.events(kind="import")["text"].to_list() == [problem]


def test_a_cut_gzip_stream_is_reported_as_such(tmp_path: Path) -> None:
    file = traces.write(tmp_path / "w.json.gz", traces.small())
    file.write_bytes(file.read_bytes()[:-60])
    (problem,) = Analyzer(file).problems()
    assert "w.json.gz: is damaged: gzip cannot be read beyond byte" in problem


def test_odd_values_are_counted_and_the_rest_is_kept(tmp_path: Path) -> None:
    small = traces.small()
    events = small["traceEvents"]
    events[2]["args"]["External id"] = "seven"
    events[4]["args"]["device"] = 1 << 40
    events[4]["args"]["registers per thread"] = 1 << 20
    events.append({"ph": "X", "cat": "strange", "name": "x", "ts": 1, "dur": 1})
    events.append({"ph": "X", "name": "x", "ts": 1, "dur": 1})
    events.append({"ph": "X", "cat": "cpu_op", "name": "untimed", "dur": 1})
    events.append(17)
    analyzer = Analyzer(traces.write(tmp_path / "w.json", small))
    assert analyzer.spans().height == 6
    assert analyzer.spans(name="aten::mm")["external"].to_list() == [None, 3]
    assert analyzer.kernels()["device"].to_list() == [None, 0]
    assert analyzer.kernels()["registers"].null_count() == 2
    problems = "\n".join(analyzer.problems())
    for said in (
        "External id is not a number, once at byte",
        "device is too large, once at byte",
        "ts is missing, once at byte",
        "'cat' is 'strange' in 1 events: left out",
        "'cat' is missing in 1 events: left out",
    ):
        assert said in problems
    assert len(analyzer.problems()) == 6


def test_counters_and_failed_allocations_are_kept(tmp_path: Path) -> None:
    small = traces.small()
    small["traceEvents"] += [
        {"ph": "C", "name": "GPU power", "pid": 0, "ts": 1500, "args": {"W": 350.5, "limit": 700}},
        {"ph": "i", "name": "[OutOfMemory]", "pid": 41, "tid": 42, "ts": 1501,
         "args": {"Bytes": 1 << 40}},
        {"ph": "i", "name": "Record Window End", "pid": "", "tid": "", "ts": 1502},
    ]  # fmt: skip
    analyzer = Analyzer(traces.write(tmp_path / "w.json", small))
    samples = analyzer.samples("GPU power")
    assert samples["instance"].cast(pl.String).to_list() == ["W", "limit"]
    assert samples["value"].to_list() == [350.5, 700]
    (event,) = analyzer.events().to_dicts()
    assert (event["kind"], event["time"]) == ("out_of_memory", 1_501_000)
    assert json.loads(event["attributes"]) == {"Bytes": 1 << 40}


def test_a_fresh_kept_import_is_read_at_once(job: Path, temporary: Path) -> None:
    place = kept(job)
    assert place == job / "haiprof-import"
    fresh = Analyzer(job)
    assert list(temporary.iterdir()) == []
    assert fresh.run.folder == place
    assert fresh.run.source == str(job)
    assert fresh.spans().height == 4 * 6
    assert Analyzer(place).spans().equals(fresh.spans())


def test_an_import_of_one_file_lies_beside_it(job: Path) -> None:
    file = sorted(job.iterdir())[0]
    assert kept(file) == file.with_name(f"{file.name}.haiprof")
    assert Analyzer(file).run.folder == file.with_name(f"{file.name}.haiprof")
    # It is neither a trace nor a run of the folder around it.
    assert len(Analyzer(job).run.processes) == 4


@pytest.mark.parametrize("change", ["touched", "longer", "added", "version", "broken"])
def test_a_stale_import_is_not_read_and_reported(change: str, job: Path) -> None:
    place = kept(job)
    file = sorted(job.glob("*.gz"))[0]
    document = json.loads((place / "run.json").read_text())
    if change == "touched":
        os.utime(file, ns=(1, 1))
    elif change == "longer":
        file.write_bytes(file.read_bytes() + bytes(4))
    elif change == "added":
        traces.write(job / "n2_1.5.pt.trace.json", traces.small(2))
    elif change == "version":
        document["import"]["importer"] = 0
        (place / "run.json").write_text(json.dumps(document))
    else:
        (place / "run.json").write_text("{")
    analyzer = Analyzer(job)
    assert analyzer.run.folder != place
    (problem,) = analyzer.problems()
    assert problem.startswith(f"{place}: ")
    assert problem.endswith("and was not read: redo it with haiprof import")
    if change != "broken":
        assert kept(job) == place
        assert Analyzer(job).problems() == []
        assert Analyzer(job).run.folder == place


def test_a_folder_that_is_no_import_is_not_replaced(job: Path) -> None:
    runs.write_run(job / "haiprof-import")
    with pytest.raises(HaiprofError, match="exists and is not an import of haiprof: remove it"):
        kept(job)


def test_an_import_that_fails_leaves_the_older_one(job: Path) -> None:
    place = kept(job)
    before = (place / "run.json").read_text()
    for file in job.glob("*.gz"):
        file.write_bytes(b"hello")
    with pytest.raises(HaiprofError, match="and 3 more traces cannot be read"):
        kept(job)
    assert (place / "run.json").read_text() == before
    assert [p.name for p in job.iterdir() if p.name.startswith(".")] == []


def test_what_a_killed_import_left_is_removed(job: Path) -> None:
    here = os.uname().nodename
    left = job / f".haiprof-importing-{here}-abc"
    left.mkdir()
    # Whether another machine's was killed cannot be known here.
    elsewhere = job / f".haiprof-importing-{here}-2-abc"
    elsewhere.mkdir()
    kept(job)
    assert not left.exists()
    assert elsewhere.exists()


def test_runs_of_haiprof_come_before_traces_beside_them(job: Path) -> None:
    runs.make_run(job / "recorded", ranks=1)
    assert open_path(job).run.name == "recorded"


def test_opening_a_recorded_run_loads_no_parser(tmp_path: Path) -> None:
    run = runs.make_run(tmp_path / "r")
    code = (
        "import sys; from haiprof.sources.open import open_path; open_path(sys.argv[1])\n"
        "print('haiprof._core' in sys.modules)"
    )
    command = [sys.executable, "-c", code, str(run)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_of_many_unknown_categories_some_are_named(tmp_path: Path) -> None:
    small = traces.small()
    small["traceEvents"] += [
        {"ph": "X", "cat": f"c{n}", "name": "x", "ts": 1, "dur": 1} for n in range(5000)
    ]
    problems = Analyzer(traces.write(tmp_path / "w.json", small)).problems()
    assert len(problems) == 11
    assert problems[-1].endswith("w.json: 4990 events of 4990 more such 'cat': left out")


def test_files_of_haiprof_are_no_traces(tmp_path: Path) -> None:
    run = runs.make_run(tmp_path / "log" / "r")
    assert find(str(run)) is None
    assert find(str(tmp_path / "log")) is None


def test_a_fork_does_not_remove_what_it_borrows(job: Path, temporary: Path) -> None:
    analyzer = Analyzer(job)
    child = os.fork()
    if child == 0:
        analyzer._temporary.remove()  # type: ignore[union-attr]
        os._exit(0)
    os.waitpid(child, 0)
    assert analyzer.spans().height == 4 * 6


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_what_a_killed_analyzer_left_goes_with_the_next_one(
    job: Path, temporary: Path, number: signal.Signals
) -> None:
    code = (
        "import os, sys; from haiprof.analyzer import Analyzer\n"
        "analyzer = Analyzer(sys.argv[1]); os.kill(os.getpid(), int(sys.argv[2]))"
    )
    command = [sys.executable, "-c", code, str(job), str(int(number))]
    environment = {**os.environ, "TMPDIR": str(temporary)}
    assert subprocess.run(command, env=environment).returncode == -number
    (left,) = temporary.iterdir()
    first = Analyzer(job)
    assert not left.exists()
    second = Analyzer(job)
    assert len(list(temporary.iterdir())) == 2
    for analyzer in (first, second):
        assert analyzer.operators().height == 4
