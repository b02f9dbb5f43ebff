"""A deep trace of the example, in the tools that people have: it loads, and they see what we see.

The traces are of the CPU. There torch-tb-profiler 0.4.3 is right, and shows whole µs. HTA 0.5 has
no table of operators: it is made of the events that it read and of its call graph. Of an operator
that calls nothing but one of the same name, HTA has both; torch and the plugin take those for one
call, and so do we.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import sys
import tempfile
from collections import defaultdict
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import peers
import pytest
from commands import haiprof, the_run
from fixtures import ROOT

from haiprof.analyzer import Analyzer

#: What a peer's table and ours have in common, per operator: calls, own and total time (ns).
Table = dict[str, tuple[int, Fraction, Fraction]]

STEPS = 3
EXAMPLE = ROOT / "examples" / "train_digits.py"
_ARMED = "import _haiprof_boot\n_haiprof_boot.arm()\n"
#: The example as it is, but for its model, whose gradients the ranks average.
_DISTRIBUTED = """
import sys
sys.path.insert(0, {folder!r})
import torch.distributed
import train_digits
from torch.nn.parallel import DistributedDataParallel

torch.distributed.init_process_group("gloo")
make_model = train_digits.make_model
train_digits.make_model = lambda: DistributedDataParallel(make_model())
train_digits.main()
torch.distributed.destroy_process_group()
"""


class Traced(NamedTuple):
    """A folder with the deep traces of a job, one for each rank, and them as JSON by rank."""

    folder: Path
    traces: dict[int, dict[str, Any]]


@pytest.fixture(scope="module", params=[1, 2], ids=["one process", "two ranks"])
def traced(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Traced:
    place = tmp_path_factory.mktemp("job")
    script = place / "train.py"
    if request.param == 1:
        script.write_text(_ARMED + EXAMPLE.read_text())
        command = [script]
    else:
        script.write_text(_ARMED + _DISTRIBUTED.format(folder=str(EXAMPLE.parent)))
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command = [*launcher, "--nproc-per-node", "2", script]
    options = ["--log-dir", place / "logs", "--trace-steps", STEPS, "--trace-warmup", "2"]
    example = ["--epochs", "1", "--batch", "128", "--workers", "0"]
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("HAIPROF_")]:
            patch.delenv(name)
        rings = tempfile.mkdtemp(prefix="haiprof-test-", dir="/dev/shm")
        patch.setenv("HAIPROF_SHM_DIR", rings)
        patch.setenv("OMP_NUM_THREADS", "1")
        try:
            done = haiprof("trace", *map(str, options), "--", *command, *example)
        finally:
            shutil.rmtree(rings, ignore_errors=True)
    assert done.returncode == 0, done.stderr
    folder = place / "traces"
    folder.mkdir()
    traces = {}
    for file in sorted(the_run(place / "logs").glob("*#*/*.pt.trace.json.gz")):
        shutil.copy(file, folder)
        rank = int(file.parent.name.partition("#")[2].partition(".")[0])
        traces[rank] = json.loads(gzip.decompress(file.read_bytes()))
    assert sorted(traces) == list(range(request.param))
    return Traced(folder, traces)


def ours(traced: Traced, rank: int) -> Table:
    # Only a launcher tells a rank; the file of a process alone has none.
    alone = len(traced.traces) == 1
    rows = Analyzer(traced.folder).operators(None if alone else rank).to_dicts()
    return {
        row["name"]: (row["calls"], Fraction(row["host_self"]), Fraction(row["host_total"]))
        for row in rows
    }


def theirs(rows: list[dict[str, Any]]) -> Table:
    return {
        row["name"]: (
            row["calls"],
            1000 * Fraction(row["host_self_duration"]),
            1000 * Fraction(row["host_total_duration"]),
        )
        for row in rows
    }


class Call:
    """One operator event, and those right beneath it on its thread."""

    def __init__(self, name: str, start: int, end: int) -> None:
        self.name, self.start, self.end = name, start, end
        self.beneath: list[Call] = []


def calls(trace: dict[str, Any]) -> list[Call]:
    """All operator events of a trace, those of one thread nested by their times."""
    threads: dict[tuple[int, int], list[Call]] = defaultdict(list)
    for event in trace["traceEvents"]:
        if event.get("cat") == "cpu_op":
            start, took = (int(Fraction(str(event[key])) * 1000) for key in ("ts", "dur"))
            threads[event["pid"], event["tid"]].append(Call(event["name"], start, start + took))
    result = []
    for found in threads.values():
        around: list[Call] = []
        for call in sorted(found, key=lambda call: (call.start, -call.end)):
            while around and around[-1].end <= call.start:
                around.pop()
            if around:
                assert call.end <= around[-1].end
                around[-1].beneath.append(call)
            around.append(call)
            result.append(call)
    return result


def _calls_itself(call: Call) -> bool:
    return [below.name for below in call.beneath] == [call.name]


def merged(found: list[Call]) -> list[Call]:
    """Take an operator and the only one beneath it for one, where both have one name."""
    gone = set()
    for call in found:  # those around others come first
        while id(call) not in gone and _calls_itself(call):
            gone.add(id(call.beneath[0]))
            call.beneath = call.beneath[0].beneath
    return [call for call in found if id(call) not in gone]


def table(found: list[Call]) -> Table:
    rows: Table = {}
    for call in found:
        took = call.end - call.start
        own = took - sum(below.end - below.start for below in call.beneath)
        count, self_ns, total_ns = rows.get(call.name, (0, 0, 0))
        rows[call.name] = (count + 1, Fraction(self_ns + own), Fraction(total_ns + took))
    return rows


def assert_close(found: Table, expected: Table, ns: float, ns_a_call: float = 0) -> None:
    assert found.keys() == expected.keys()
    for name, (count, *times) in expected.items():
        assert found[name][0] == count, name
        for theirs, time in zip(found[name][1:], times, strict=True):
            assert abs(theirs - time) <= ns + ns_a_call * count, name


def test_our_table_is_what_the_events_say(traced: Traced) -> None:
    for rank, trace in traced.traces.items():
        found = ours(traced, rank)
        assert found == table(merged(calls(trace)))
        assert found["aten::convolution_backward"][0] == 3 * (STEPS + 1)
        assert ("c10d::allreduce_" in found) == (len(traced.traces) > 1)


def test_the_plugin_loads_it_and_has_the_same_table(traced: Traced, plugin: Path) -> None:
    tables = peers.drive(plugin, peers.PLUGIN.driver, traced.folder, "--tables").tables
    assert len(tables) == len(traced.traces)
    for worker, rows in tables.items():
        rank = int(worker.partition("#")[2].partition("/")[0])
        # It has times as doubles of µs since a date, which of today are 1 ns apart.
        assert_close(theirs(rows), ours(traced, rank), ns=500, ns_a_call=10)


def test_hta_loads_it_and_has_the_same_table(traced: Traced, hta: Path) -> None:
    tables = peers.drive(hta, peers.HTA.driver, traced.folder, "--operators").tables
    for rank, trace in traced.traces.items():
        # HTA leaves out the last step: the file has one more than was asked for.
        assert len(tables[f"steps 0 {rank}"]) == STEPS
        found = calls(trace)
        assert_close(theirs(tables[f"operators 0 {rank}"]), table(found), ns=0.1)
        # Ours differs where one call has two events, and nowhere else.
        twice = {call.name for call in found if _calls_itself(call)}
        events, mine = table(found), ours(traced, rank)
        assert {name for name in events if events[name] != mine[name]} == twice
        assert "aten::div" in twice
