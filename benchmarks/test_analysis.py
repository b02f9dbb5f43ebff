"""Deep traces, opened and analysed: haiprof beside torch-tb-profiler and HolisticTraceAnalysis.

Each run is a fresh process, and what counts is its work after the imports: from the file until all
views are there. The tools take turns, so that a slow minute of the machine slows all of them. A
tool's time is its fastest run; a ratio comes with the least and the most that any two runs give.
The plugin is run without its server and, which is faster, in one process (see its driver); of HTA
count the seven analyses that work on any trace.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import concatenate
import peers
import pytest
from figures import Figure, Measured, Reference, Target, Unit, least, ratio_at_most
from peers import HAIPROF, HTA, PLUGIN, Run
from real_data import DATA
from reporting import Report

TWO_SPANS = DATA / "traces" / "tb_resnet50_num_workers_0"
ONE_RANK = DATA / "traces" / "hta_df_index_resolver" / "worker0.pt.trace.json.gz"
#: Events of this many copies of ONE_RANK, and how often each tool opens them.
LONG = [pytest.param(5, 3, id="1M"), pytest.param(20, 2, id="4M", marks=pytest.mark.large)]

#: Of a long trace: what is measured, of which tool, which attribute of a run, and its target.
LONG_FIGURES = (
    ("all views", "haiprof", "work_s", ratio_at_most(1 / 15)),
    ("peak memory", "haiprof", "peak_bytes", ratio_at_most(1 / 5)),
    ("first view after haiprof import", "haiprof again", "opened_s", ratio_at_most(1 / 100)),
    ("CPU time", "haiprof", "cpu_s", None),
    ("all views after haiprof import", "haiprof again", "work_s", None),
)

#: What the table calls the peers.
NAMES = {
    "plugin": "torch-tb-profiler",
    "plugin as it is": "torch-tb-profiler, its processes too",
    "HTA": "HTA",
}

Tools = dict[str, Callable[[], Run]]
Runs = dict[str, list[Run]]


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Path]:
    """A folder for gigabytes, which are not kept for later."""
    yield tmp_path
    shutil.rmtree(tmp_path)


def haiprof(folder: Path) -> Run:
    return peers.drive(Path(sys.executable), HAIPROF, folder)


def needs(trace: Path) -> Path:
    if not trace.exists():
        pytest.skip(f"{trace} is not there: set HAIPROF_TEST_DATA")
    return trace


def take_turns(tools: Tools, rounds: int) -> Runs:
    """Run each tool once in each round, every other round in the opposite order."""
    runs: Runs = {name: [] for name in tools}
    for number in range(rounds):
        for name in list(tools)[:: -1 if number % 2 else 1]:
            runs[name].append(tools[name]())
    return runs


def compared(
    what: str, runs: Runs, tool: str, peer: str, taken: str, target: Target | None = None
) -> Figure:
    """What a tool takes beside a peer, each at its least; ``taken`` is an attribute of a run."""
    ours, theirs = (least([getattr(run, taken) for run in runs[of]]) for of in (tool, peer))
    unit = Unit.BYTES if taken == "peak_bytes" else Unit.SECONDS
    return Figure(what, unit, ours, Reference(NAMES[peer], theirs), target)


def keep(benchmark: Any, runs: Runs) -> None:
    """Put each run into the results."""
    for name, each in runs.items():
        benchmark.extra_info[name] = [
            {key: round(getattr(run, key), 4) for key in ("work_s", "opened_s", "cpu_s")}
            | {"peak_mib": round(run.peak_bytes / 2**20)}
            for run in each
        ]
        benchmark.extra_info[f"{name} rows"] = each[0].rows


def assert_same_work(runs: Runs) -> None:
    """All have read the whole trace: each found its steps, operators and kernels."""
    for name, each in runs.items():
        for view in ("temporal", "kernels") if name == "HTA" else ("overview", "operators"):
            found = sum(rows for label, rows in each[0].rows.items() if label.startswith(view))
            assert found > 0, f"{name} found nothing for {view}"


def test_two_spans_of_a_training_job(
    benchmark: Any, report: Report, plugin: Path, hta: Path
) -> None:
    folder = needs(TWO_SPANS)
    tools: Tools = {
        "haiprof": lambda: haiprof(folder),
        "plugin": lambda: peers.drive(plugin, PLUGIN.driver, folder),
        "plugin as it is": lambda: peers.drive(plugin, PLUGIN.driver, folder, "--processes"),
        "HTA": lambda: peers.drive(hta, HTA.driver, folder),
    }
    runs = benchmark.pedantic(take_turns, (tools, 5), rounds=1, iterations=1)

    keep(benchmark, runs)
    assert_same_work(runs)
    views, cpu = "two traces of 76 000 events: all views", "two traces of 76 000 events: CPU time"
    report(
        compared(views, runs, "haiprof", "plugin", "work_s", ratio_at_most(1 / 8)),
        compared(views, runs, "haiprof", "HTA", "work_s", ratio_at_most(1 / 5)),
        compared(views, runs, "haiprof", "plugin as it is", "work_s"),
        compared(cpu, runs, "haiprof", "plugin", "cpu_s"),
        compared(cpu, runs, "haiprof", "HTA", "cpu_s"),
    )


@pytest.mark.parametrize(("copies", "rounds"), LONG)
def test_a_long_trace_and_its_import(
    benchmark: Any,
    report: Report,
    plugin: Path,
    hta: Path,
    scratch: Path,
    copies: int,
    rounds: int,
) -> None:
    raw, imported = scratch / "raw", scratch / "imported"
    raw.mkdir()
    trace = raw / "worker0.1.pt.trace.json"
    events = concatenate.write(needs(ONE_RANK), copies, trace)
    imported.mkdir()
    (imported / trace.name).hardlink_to(trace)
    keep_import(imported)

    tools: Tools = {
        "haiprof": lambda: haiprof(raw),
        "haiprof again": lambda: haiprof(imported),
        "plugin": lambda: peers.drive(plugin, PLUGIN.driver, raw),
        "HTA": lambda: peers.drive(hta, HTA.driver, raw),
    }
    runs = benchmark.pedantic(take_turns, (tools, rounds), rounds=1, iterations=1)

    keep(benchmark, runs)
    benchmark.extra_info.update(events=events, megabytes=round(trace.stat().st_size / 1e6))
    assert_same_work(runs)
    assert runs["haiprof"][0].rows == runs["haiprof again"][0].rows
    trace_of = f"a trace of {events / 1e6:.1f} million events"
    report(
        *(
            compared(f"{trace_of}: {what}", runs, ours, peer, taken, target)
            for peer in ("plugin", "HTA")
            for what, ours, taken, target in LONG_FIGURES
        )
    )


def keep_import(folder: Path) -> None:
    """Import the traces of ``folder``, so that they need not be read again."""
    command = [sys.executable, "-m", "haiprof.cli.main", "import", folder]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "copies", [pytest.param(1, id="200k"), pytest.param(5, id="1M", marks=pytest.mark.large)]
)
def test_sixteen_ranks_on_two_cores(
    benchmark: Any, report: Report, scratch: Path, copies: int
) -> None:
    first = scratch / "first.json"
    events = concatenate.write(needs(ONE_RANK), copies, first)
    folders = {ranks: scratch / f"{ranks}" for ranks in (1, 2, 16)}
    for ranks, folder in folders.items():
        folder.mkdir()
        for rank in range(ranks):
            concatenate.copy_as(rank, first, folder / f"worker{rank}.1.pt.trace.json")

    tools: Tools = {f"{ranks}": partial(haiprof, folder) for ranks, folder in folders.items()}
    runs = benchmark.pedantic(take_turns, (tools, 3), rounds=1, iterations=1)

    benchmark.extra_info.update(events_per_rank=events)
    keep(benchmark, runs)
    steps = {int(ranks): each[0].rows["steps"] for ranks, each in runs.items()}
    assert all(count == ranks * steps[1] > 0 for ranks, count in steps.items())
    time, memory = per_rank(runs, 16, "work_s"), per_rank(runs, 16, "peak_bytes")
    # Two ranks keep both cores busy, one alone need not.
    of_2 = Reference("a rank of 2", per_rank(runs, 2, "work_s"))
    of_1 = Reference("a rank alone", per_rank(runs, 1, "peak_bytes"))
    rank = f"a rank of 16 with {events / 1e6:.1f} million events"
    report(
        Figure(f"{rank}: all views", Unit.SECONDS, time, of_2, ratio_at_most(1.1)),
        Figure(f"{rank}: peak memory", Unit.BYTES, memory, of_1, ratio_at_most(1)),
    )


def per_rank(runs: Runs, ranks: int, taken: str) -> Measured:
    """What a run over so many ranks takes at its least, divided by their number."""
    return least([getattr(run, taken) for run in runs[f"{ranks}"]]).times(1 / ranks)
