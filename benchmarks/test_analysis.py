"""Deep traces, opened and analysed: haiprof beside torch-tb-profiler and HolisticTraceAnalysis.

Each run is a fresh process, and what counts is its work after the imports: from the file until all
views are there. The tools take turns, so that a slow minute of the machine slows all of them. A
tool's time is its fastest run; a ratio is told with the least and the most that any two runs give.
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
from peers import HAIPROF, HTA, PLUGIN, Run
from real_data import DATA

TWO_SPANS = DATA / "traces" / "tb_resnet50_num_workers_0"
ONE_RANK = DATA / "traces" / "hta_df_index_resolver" / "worker0.pt.trace.json.gz"
#: Events of this many copies of ONE_RANK, and how often each tool opens them.
LONG = [pytest.param(5, 3, id="1M"), pytest.param(20, 2, id="4M", marks=pytest.mark.large)]

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


def ratio(runs: Runs, of: str, to: str, what: str) -> tuple[float, float, float]:
    """How many times as much ``of`` takes as ``to``: by the least of each, and from … to."""
    more = [getattr(run, what) for run in runs[of]]
    less = [getattr(run, what) for run in runs[to]]
    return min(more) / min(less), min(more) / max(less), max(more) / min(less)


class Targets:
    """What was asked for and what was measured, told in the results and asserted at the end."""

    def __init__(self, benchmark: Any) -> None:
        self._told = benchmark.extra_info
        self._missed: list[str] = []

    def tell_runs(self, runs: Runs) -> None:
        for name, each in runs.items():
            self._told[name] = [
                {key: round(getattr(run, key), 4) for key in ("work_s", "opened_s", "cpu_s")}
                | {"peak_mib": round(run.peak_bytes / 2**20)}
                for run in each
            ]
            self._told[f"{name} rows"] = each[0].rows

    def tell(self, name: str, found: tuple[float, float, float]) -> None:
        self._told[name] = [round(value, 2) for value in found]

    def want(self, name: str, found: tuple[float, float, float], least: float) -> None:
        self.tell(name, found)
        self._told[f"target {name}"] = least
        if found[0] < least:
            self._missed.append(f"{name}: {found[0]:.2f}, wanted {least:g}")

    def check(self) -> None:
        assert not self._missed, "; ".join(self._missed)


def assert_same_work(runs: Runs) -> None:
    """All have read the whole trace: each found its steps, operators and kernels."""
    for name, each in runs.items():
        for view in ("temporal", "kernels") if name == "HTA" else ("overview", "operators"):
            found = sum(rows for label, rows in each[0].rows.items() if label.startswith(view))
            assert found > 0, f"{name} found nothing for {view}"


def test_two_spans_of_a_training_job(benchmark: Any, plugin: Path, hta: Path) -> None:
    folder = needs(TWO_SPANS)
    tools: Tools = {
        "haiprof": lambda: haiprof(folder),
        "plugin": lambda: peers.drive(plugin, PLUGIN.driver, folder),
        "plugin as it is": lambda: peers.drive(plugin, PLUGIN.driver, folder, "--processes"),
        "HTA": lambda: peers.drive(hta, HTA.driver, folder),
    }
    runs = benchmark.pedantic(take_turns, (tools, 5), rounds=1, iterations=1)

    targets = Targets(benchmark)
    targets.tell_runs(runs)
    assert_same_work(runs)
    targets.want("plugin: time", ratio(runs, "plugin", "haiprof", "work_s"), 8)
    targets.want("HTA: time", ratio(runs, "HTA", "haiprof", "work_s"), 5)
    targets.tell("plugin: CPU time", ratio(runs, "plugin", "haiprof", "cpu_s"))
    targets.tell("HTA: CPU time", ratio(runs, "HTA", "haiprof", "cpu_s"))
    targets.tell("plugin as it is: time", ratio(runs, "plugin as it is", "haiprof", "work_s"))
    targets.check()


@pytest.mark.parametrize(("copies", "rounds"), LONG)
def test_a_long_trace_and_its_import(
    benchmark: Any, plugin: Path, hta: Path, scratch: Path, copies: int, rounds: int
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

    targets = Targets(benchmark)
    targets.tell_runs(runs)
    benchmark.extra_info.update(events=events, megabytes=round(trace.stat().st_size / 1e6))
    assert_same_work(runs)
    assert runs["haiprof"][0].rows == runs["haiprof again"][0].rows
    for peer in ("plugin", "HTA"):
        targets.want(f"{peer}: time", ratio(runs, peer, "haiprof", "work_s"), 15)
        targets.want(f"{peer}: memory", ratio(runs, peer, "haiprof", "peak_bytes"), 5)
        targets.want(f"{peer}: again", ratio(runs, peer, "haiprof again", "opened_s"), 100)
        targets.tell(f"{peer}: CPU time", ratio(runs, peer, "haiprof", "cpu_s"))
        targets.tell(f"{peer}: all views again", ratio(runs, peer, "haiprof again", "work_s"))
    targets.check()


def keep_import(folder: Path) -> None:
    """Import the traces of ``folder``, so that they need not be read again."""
    command = [sys.executable, "-m", "haiprof.cli.main", "import", folder]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "copies", [pytest.param(1, id="200k"), pytest.param(5, id="1M", marks=pytest.mark.large)]
)
def test_sixteen_ranks_on_two_cores(benchmark: Any, scratch: Path, copies: int) -> None:
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
    targets = Targets(benchmark)
    targets.tell_runs(runs)
    steps = {int(ranks): each[0].rows["steps"] for ranks, each in runs.items()}
    assert all(count == ranks * steps[1] > 0 for ranks, count in steps.items())
    # Two ranks keep both cores busy, one alone need not.
    time = [16 / 2 * value for value in ratio(runs, "2", "16", "work_s")]
    memory = [16 * value for value in ratio(runs, "1", "16", "peak_bytes")]
    targets.want("time per rank, of 2 to 16", (time[0], time[1], time[2]), 1 / 1.1)
    targets.want("memory per rank, of 1 to 16", (memory[0], memory[1], memory[2]), 1)
    targets.check()
