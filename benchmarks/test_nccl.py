"""What haiprof's plugin costs NCCL, and that it loses nothing of a busy one; by the stand-in."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import nccl_truth
import pyarrow as pa
import pytest
from figures import Figure, Measured, Reference, Unit, added_at_most, at_most, nanoseconds
from reporting import Report

#: A call may cost so much above NCCL's own part, s.
CALL: Final = 100e-9
#: Rounds, operations a round.
ROUNDS: Final = ("300", "2000")
#: Operations a second, and for how long, s.
RATE, SECONDS = 10_000, 60
#: From its threads; a part of the operations goes over the network.
THREADS: Final = 4

BUSY = """
import _haiprof_boot
_haiprof_boot.arm()
import ctypes, os, sys
import haiprof
haiprof.start()
haiprof.flush()  # the recorder is there
nccl = ctypes.CDLL(sys.argv[1])
nccl.fake_nccl_run.argtypes = [ctypes.c_char_p, *[ctypes.c_int] * 3, ctypes.c_double]
numbers = [*map(int, sys.argv[3:6]), float(sys.argv[6])]
assert nccl.fake_nccl_run(os.fsencode(sys.argv[2]), *numbers) == 0
"""


def test_time_of_a_call(benchmark: Any, report: Report, native_programs: Path, shm: Path) -> None:
    def measure() -> dict[str, Any]:
        done = subprocess.run(
            [native_programs / "nccl_cost", shm / "nccl.ring", *ROUNDS],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        costs: dict[str, Any] = json.loads(done.stdout)
        return costs

    costs = benchmark.pedantic(measure, rounds=1, iterations=1)
    benchmark.extra_info.update(costs)
    assert costs["no_place"] == 0
    report(figure(costs, "operation", 2), figure(costs, "transfer", 3))


def figure(costs: dict[str, Any], name: str, calls: int) -> Figure:
    """Return the cost of a call of NCCL, of those that it makes for one of these."""
    what = f"a call of NCCL's profiler, of {calls} for each {name}"
    bare = nanoseconds(costs[f"{name}_bare_ns"]).times(1 / calls)
    ours = nanoseconds(costs[f"{name}_ns"]).times(1 / calls)
    return Figure(what, Unit.SECONDS, ours, Reference("no plugin", bare), added_at_most(CALL))


@pytest.mark.soak
def test_nothing_is_lost_of_a_busy_nccl(
    benchmark: Any, report: Report, native_build: Path, shm: Path, tmp_path: Path
) -> None:
    from launched import recorded
    from recording import wait_recorded

    from haiprof.analyzer import Analyzer

    nccl = native_build / "tests" / "native" / "nccl" / "libnccl.so.2"
    truth, each = tmp_path / "truth", RATE * SECONDS // THREADS

    def run() -> None:
        environment = recorded(tmp_path, run="run", stack_hz=0) | {"RANK": "0", "WORLD_SIZE": "1"}
        numbers = map(str, (1, THREADS, each, RATE))
        subprocess.run(
            [sys.executable, "-c", BUSY, nccl, truth, *numbers], env=environment, check=True
        )
        wait_recorded(shm)

    benchmark.pedantic(run, rounds=1, iterations=1)
    done = nccl_truth.read(truth)
    recorded_run = Analyzer(tmp_path / "run")
    assert recorded_run.events(kind="lost")["text"].to_list() == []
    found = recorded_run.nccl()
    nccl_truth.check(done, found)
    lost = Measured(1 - len(found) / len(done.operations))
    what = f"operations of NCCL that are lost, of {RATE} a second"
    files = list((tmp_path / "run").glob("*#0/nccl-*.arrow"))
    rows = sum(pa.ipc.open_file(file).read_all().num_rows for file in files)
    size = Measured(sum(file.stat().st_size for file in files) / rows)
    report(
        Figure(what, Unit.SHARE, lost, target=at_most(0)),
        Figure("a record of NCCL on disk", Unit.BYTES, size),
    )
    benchmark.extra_info["rows"] = rows
