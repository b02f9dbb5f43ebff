"""A recorded job whose NCCL loads haiprof's plugin, from the environment to the Analyzer."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import nccl_truth
import pytest
import runs
from commands import haiprof
from launched import recorded
from recording import run_python, wait_recorded

from haiprof import schema
from haiprof.analyzer import Analyzer
from haiprof.capture.hooks.nccl import require
from haiprof.capture.nccl import OLDEST

#: Communicates from the threads of the stand-in: library, truth, turns, threads, operations, rate.
WORK = """
import ctypes, os, sys
nccl = ctypes.CDLL(sys.argv[1])
nccl.fake_nccl_run.argtypes = [ctypes.c_char_p, *[ctypes.c_int] * 3, ctypes.c_double]
numbers = [*map(int, sys.argv[3:6]), float(sys.argv[6])]
assert nccl.fake_nccl_run(os.fsencode(sys.argv[2]), *numbers) == 0
"""
#: The same in a job that is recorded.
JOB = f"""
import _haiprof_boot
_haiprof_boot.arm()
import haiprof
haiprof.start()
{WORK}
from haiprof import _core
from haiprof.capture.hooks.nccl import NcclOperations
print(_core.nccl_version_asked(), NcclOperations().state(), os.environ["NCCL_PROFILER_PLUGIN"])
"""


@pytest.fixture
def nccl(native_build: Path) -> Path:
    return native_build / "tests" / "native" / "nccl" / "libnccl.so.2"


def test_ten_thousand_calls_a_second_are_all_in_the_tables(
    shm: Path, tmp_path: Path, nccl: Path
) -> None:
    truth, numbers = tmp_path / "truth", ["2", "3", "5000", "10000"]
    # So large that a recorder that gets no time for seconds loses nothing.
    environment = recorded(tmp_path, run="run", stack_hz=0, ring_mib=128)
    environment |= {"RANK": "0", "WORLD_SIZE": "1"}
    said = run_python(JOB, str(nccl), str(truth), *numbers, env=environment)
    assert said == "6 on: version 6 of NCCL's profiler interface libhaiprof-nccl.so\n"
    wait_recorded(shm)
    run = Analyzer(tmp_path / "run")
    done = nccl_truth.read(truth)
    assert run.events(kind="lost")["text"].to_list() == []
    assert all(each["recorded"] for each in done.operations.values())
    assert done.plugin["unloads"] == 2
    nccl_truth.check(done, run.nccl(rank=0))
    assert run.problems() == []
    question = "select op, count(*) as n from nccl where side = 'host' group by op"
    counted = dict(run.sql(question).rows())
    assert counted == dict(run.nccl()["op"].value_counts().rows())


def test_haiprof_run_offers_the_plugin(shm: Path, tmp_path: Path, nccl: Path) -> None:
    truth = tmp_path / "truth"
    program = f"import haiprof\nhaiprof.start()\n{WORK}"
    job = (sys.executable, "-c", program, nccl, truth, "1", "2", "100", "0")
    done = haiprof("run", "--log-dir", tmp_path, "--name", "run", *job)
    assert done.returncode == 0, done.stderr
    wait_recorded(shm)
    assert nccl_truth.read(truth).plugin["loads"] == 1
    nccl_truth.check(nccl_truth.read(truth), Analyzer(tmp_path / "run").nccl())


def test_a_job_that_chose_another_plugin_keeps_it(shm: Path, tmp_path: Path, nccl: Path) -> None:
    truth = tmp_path / "truth"
    environment = recorded(tmp_path, run="run") | {"NCCL_PROFILER_PLUGIN": "none"}
    said = run_python(JOB, str(nccl), str(truth), "1", "1", "10", "0", env=environment)
    assert said == "0 waiting: NCCL_PROFILER_PLUGIN has NCCL load none none\n"
    assert nccl_truth.read(truth).plugin["loads"] == 0
    wait_recorded(shm)
    assert Analyzer(tmp_path / "run").nccl().is_empty()


def test_without_haiprof_in_the_process_nccl_finds_nothing(
    shm: Path, tmp_path: Path, nccl: Path
) -> None:
    truth = tmp_path / "truth"
    environment = {**os.environ, "NCCL_PROFILER_PLUGIN": "libhaiprof-nccl.so"}
    run_python(WORK, str(nccl), str(truth), "1", "1", "10", "0", env=environment)
    done = nccl_truth.read(truth)
    assert (done.plugin["loads"], done.plugin["refusals"]) == (0, 0)
    assert len(done.operations) > 10


def test_where_nobody_records_nothing_is_recorded(shm: Path, tmp_path: Path, nccl: Path) -> None:
    truth = tmp_path / "truth"
    environment = {**os.environ, "NCCL_PROFILER_PLUGIN": "libhaiprof-nccl.so"}
    program = "from haiprof import _core\n" + WORK
    run_python(program, str(nccl), str(truth), "1", "2", "50", "0", env=environment)
    done = nccl_truth.read(truth)
    assert done.plugin["loads"] == 1
    assert not any(each["recorded"] for each in done.operations.values())


def test_only_the_program_itself_changes_its_environment() -> None:
    program = """
        import json, os, threading
        from haiprof.capture import nccl
        os.environ.pop(nccl.VARIABLE, None)
        other = threading.Thread(target=nccl.offer)
        other.start()
        other.join()
        found = [os.environ.get(nccl.VARIABLE)]
        nccl.offer()
        found.append(os.environ.get(nccl.VARIABLE))
        print(json.dumps(found))
    """
    assert json.loads(run_python(program)) == [None, "libhaiprof-nccl.so"]


def test_an_nccl_that_is_too_old_is_one_line() -> None:
    require(OLDEST)
    require((2, 27, 3))
    require((3, 0, 0))
    with pytest.raises(RuntimeError) as raised:
        require((2, 21, 5))
    assert str(raised.value) == "NCCL 2.21.5 is older than 2.27 and cannot say what it does"


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_an_nccl_that_loads_nothing_is_a_problem(tmp_path: Path, backend: str) -> None:
    process = runs.write_process(runs.write_run(tmp_path / "run"))
    attributes = json.dumps({"ranks": [0, 1], "backend": backend})
    group = {**runs.event(0.001, "group", "0"), "attributes": attributes}
    runs.write_closed(process, schema.EVENTS, [group])
    run = Analyzer(tmp_path / "run")
    assert run.nccl().is_empty()
    assert run.problems() == []  # it has not communicated
    runs.write_closed(process, schema.COLLECTIVES, runs.collective_loop(0, 2))
    run = Analyzer(tmp_path / "run")
    assert run.nccl().is_empty()
    said = [line for line in run.problems() if "did not load haiprof's plugin" in line]
    assert len(said) == (1 if backend == "nccl" else 0)
