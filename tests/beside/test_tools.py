"""Jobs beside debuggers, profilers and event loops: each does what it does without haiprof."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipapp
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from beside_others import LOOP_PRINTS, Recorded, alone, hold, in_this_python, write_job
from commands import haiprof
from recording import python, run_python, wait_for

import haiprof as ours
from haiprof import Analyzer

pytestmark = [pytest.mark.usefixtures("shm"), pytest.mark.jobs]

PY_SPY = str(Path(sys.executable).parent / "py-spy")

#: Knows nothing of haiprof; where it was brought, it steps. Never waits.
ATTACHED = """
    import os, sys
    {before}
    def step():
        session = sys.modules.get("haiprof.capture.session")
        if getattr(session, "active", lambda: None)() is not None:
            import haiprof
            haiprof.step()
    def work():
        sum(range(10000))
        step()
    print("ready", flush=True)
    while not os.path.exists("END"):
        work()
    print("over")
"""


@contextmanager
def attachable(folder: Path, before: str = "") -> Iterator[int]:
    """Run a job; its pid. It must end well."""
    job = python(ATTACHED.format(before=before), cwd=folder)
    try:
        assert job.stdout is not None
        assert job.stdout.readline() == "ready\n"
        yield job.pid
        (folder / "END").touch()
        assert job.communicate(timeout=60) == ("over\n", "")
        assert job.returncode == 0
    finally:
        job.kill()
        job.wait()


def attach(pid: int, folder: Path, name: str, seconds: float = 3) -> Any:
    words = ("--time", str(seconds), "--log-dir", folder / "logs", "--name", name)
    return haiprof("attach", str(pid), *words)


# -- debuggers and samplers ----------------------------------------------------------------------


def test_py_spy_sees_the_stack_of_a_job_that_is_recorded(tmp_path: Path) -> None:
    job = Recorded(tmp_path, *in_this_python(write_job(tmp_path)))
    job.wait_sampled()
    dump = subprocess.run([PY_SPY, "dump", "-p", str(job.pid)], capture_output=True, text=True)
    done = job.finish()
    assert dump.returncode == 0, dump.stderr
    assert "main (job.py" in dump.stdout
    assert (done.code, done.stdout) == (0, LOOP_PRINTS)
    hold("py-spy", job, work=job.turns())


def test_a_job_can_be_attached_to_while_py_spy_records_it(tmp_path: Path) -> None:
    with attachable(tmp_path) as pid:
        words = [PY_SPY, "record", "-p", str(pid), "-r", "200", "-d", "60", "-f", "raw"]
        spy = subprocess.Popen([*words, "-o", str(tmp_path / "stacks")], stderr=subprocess.PIPE)
        try:
            done = attach(pid, tmp_path, "r")
            assert spy.poll() is None
        finally:
            spy.send_signal(2)
            assert spy.communicate(timeout=60)[1] is not None
    assert done.returncode == 0, done.stderr
    assert Analyzer(tmp_path / "logs" / "r").steps().height > 3
    assert "work (<string>:" in (tmp_path / "stacks").read_text()


@pytest.mark.skipif(shutil.which("gdb") is None, reason="no gdb")
def test_gdb_sees_the_stack_of_a_job_that_is_recorded(tmp_path: Path) -> None:
    job = Recorded(tmp_path, *in_this_python(write_job(tmp_path)))
    job.wait_sampled()
    words = ["gdb", "-q", "-nx", "-batch", "-p", str(job.pid), "-ex", "bt"]
    seen = subprocess.run(words, capture_output=True, text=True, timeout=120)
    done = job.finish()
    assert "_PyEval_EvalFrameDefault" in seen.stdout, seen.stderr
    assert (done.code, done.stdout) == (0, LOOP_PRINTS)
    hold("gdb", job, work=job.turns())


@pytest.mark.skipif(shutil.which("gdb") is None, reason="no gdb")
def test_a_job_that_gdb_holds_is_watched_from_outside_and_attached_to_later(tmp_path: Path) -> None:
    with attachable(tmp_path) as pid:
        words = ["gdb", "-q", "-nx", "-p", str(pid)]
        gdb = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            status = Path(f"/proc/{pid}/status")
            wait_for(lambda: f"TracerPid:\t{gdb.pid}\n" in status.read_text(), 60)
            refused = attach(pid, tmp_path, "held")
        finally:
            gdb.communicate(b"detach\nquit\n", timeout=120)
        done = attach(pid, tmp_path, "later")
    assert refused.returncode == 3
    assert f"process {gdb.pid} (gdb) is tracing it; end that first" in refused.stderr
    assert done.returncode == 0, done.stderr
    assert Analyzer(tmp_path / "logs" / "later").steps().height > 3


# -- coverage and profilers ----------------------------------------------------------------------


def test_coverage_measures_the_lines_and_branches_that_it_would(tmp_path: Path) -> None:
    job = write_job(tmp_path)

    def command(data: str) -> list[str]:
        words = ["-m", "coverage", "run", "--branch", f"--include={job}", f"--data-file={data}"]
        return [sys.executable, *words, str(job)]

    def arcs(data: str) -> str:
        program = f"""
            import coverage
            data = coverage.CoverageData({str(tmp_path / data)!r})
            data.read()
            print(sorted(data.arcs({str(job)!r})))
        """
        return run_python(program)

    assert alone(tmp_path, *command("without")).stdout == LOOP_PRINTS
    recorded = Recorded(tmp_path, *command("with"))
    done = recorded.finish()
    assert (done.code, done.stdout) == (0, LOOP_PRINTS)
    # While it waited for a sample the loop went on, which it does not do without.
    assert arcs("with") == arcs("without")
    hold("coverage", recorded, work=recorded.turns())


#: Eight steps each with a tracer of Python's calls, with cProfile and with torch.profiler.
PROFILED = """
import cProfile, collections, json, os, pstats, sys
import torch
from torch.profiler import ProfilerActivity, profile
from maybe import finish
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(torch.randn(32, 8), batch_size=4)
def train():
    for batch in loader:
        optimizer.zero_grad()
        loss = model(batch).pow(2).mean()
        loss.backward()
        optimizer.step()
    return loss.item()
def shown(file, name):
    for folder in ("torch/nn/modules/", "torch/optim/", "torch/utils/data/", "job.py"):
        if folder in file:
            return file.rpartition("/")[2] + " " + name
train()
found = {}
calls = collections.Counter()
def tracer(frame, event, argument):
    if event == "call":
        calls[shown(frame.f_code.co_filename, frame.f_code.co_name)] += 1
    return tracer
sys.settrace(tracer)
loss = train()
sys.settrace(None)
found["settrace"] = [loss, {name: n for name, n in calls.items() if name}]
profiler = cProfile.Profile()
loss = profiler.runcall(train)
stats = pstats.Stats(profiler).stats
calls = collections.Counter()
for (file, _, name), (_, number, *_) in stats.items():
    calls[shown(file, name)] += number
found["cProfile"] = [loss, {name: n for name, n in calls.items() if name}]
with profile(activities=[ProfilerActivity.CPU]) as profiler:
    loss = train()
found["torch.profiler"] = [loss, collections.Counter(event.name for event in profiler.events())]
turns = 0
while not os.path.exists("END"):
    train()
print(json.dumps(found, sort_keys=True))
"""


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, Recorded]:
    """What the profilers found without haiprof and with it; the job with it."""
    folder = tmp_path_factory.mktemp("profiled")
    job = in_this_python(write_job(folder, PROFILED))
    without = alone(folder, *job)
    recorded = Recorded(folder, *job)
    done = recorded.finish()
    assert (done.code, without.code) == (0, 0), done.stderr + without.stderr
    return json.loads(without.stdout), json.loads(done.stdout), recorded


@pytest.mark.parametrize(
    ("tool", "row", "sign"),
    [
        ("settrace", "`sys.settrace`", "linear.py forward"),
        ("cProfile", "cProfile", "linear.py forward"),
        ("torch.profiler", "torch.profiler", "aten::addmm"),
    ],
)
def test_a_profiler_counts_the_calls_that_it_would(
    profiled: tuple[Any, Any, Recorded], tool: str, row: str, sign: str
) -> None:
    without, with_ours, job = profiled
    assert with_ours[tool] == without[tool]
    assert with_ours[tool][1][sign] == 16
    hold(row, job)


# -- event loops ---------------------------------------------------------------------------------

GREENLETS = """
{first}
from gevent import monkey
monkey.patch_all()
import gevent, os, threading, time
from maybe import finish, interval, step
def load(came):
    with interval("load"):
        time.sleep(0.001)
    came.append(1)
total = turn = 0
while turn < 30 or not os.path.exists("END"):
    came = []
    gevent.joinall([gevent.spawn(load, came) for _ in range(3)])
    step()
    total += sum(came) if turn < 30 else 0
    turn += 1
finish(turn)
gevent.spawn(time.sleep, 0.01)
gevent.wait()  # until nothing waits any more: a greenlet of ours would keep it here
print(total, threading.active_count())
"""


@pytest.mark.parametrize("first", ["", "from maybe import step; step()"], ids=["early", "late"])
def test_gevent_runs_the_jobs_greenlets_and_none_of_ours(tmp_path: Path, first: str) -> None:
    job = Recorded(tmp_path, *in_this_python(write_job(tmp_path, GREENLETS.format(first=first))))
    done = job.finish()
    assert (done.code, done.stdout) == (0, "90 1\n")
    assert done.stderr.startswith("haiprof: run ")  # and no word of the job's
    hold("gevent", job, load=3 * job.turns())


def test_a_job_of_gevent_that_never_gives_way_can_be_attached_to(tmp_path: Path) -> None:
    with attachable(tmp_path, before="from gevent import monkey; monkey.patch_all()") as pid:
        done = attach(pid, tmp_path, "r")
        tasks = Path(f"/proc/{pid}/task")
        wait_for(lambda: len(list(tasks.iterdir())) == 1)
    assert done.returncode == 0, done.stderr
    assert Analyzer(tmp_path / "logs" / "r").steps().height > 3


COROUTINES = """
import asyncio, os, signal
import uvloop
from maybe import finish, interval, step
async def load(number):
    with interval("load"):
        await asyncio.sleep(0.001 * number)
    return number
async def main():
    loop = asyncio.get_running_loop()
    heard = []
    loop.add_signal_handler(signal.SIGUSR1, heard.append, "heard")
    os.kill(os.getpid(), signal.SIGUSR1)
    total = turn = 0
    while turn < 30 or not os.path.exists("END"):
        came = await asyncio.gather(*map(load, range(3)))
        step()
        total += sum(came) if turn < 30 else 0
        turn += 1
    finish(turn)
    child = await asyncio.create_subprocess_exec("true")
    print(total, heard, await child.wait(), type(loop).__module__)
asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
asyncio.run(main())
"""


def test_uvloop_serves_the_job_as_it_does(tmp_path: Path) -> None:
    job = Recorded(tmp_path, *in_this_python(write_job(tmp_path, COROUTINES)))
    done = job.finish()
    assert (done.code, done.stdout) == (0, "90 ['heard'] 0 uvloop\n")
    hold("uvloop", job, load=3 * job.turns())


# -- zip files -----------------------------------------------------------------------------------


def test_a_zipapp_is_recorded(tmp_path: Path) -> None:
    folder = tmp_path / "app"
    folder.mkdir()
    write_job(folder).rename(folder / "__main__.py")
    zipapp.create_archive(folder, tmp_path / "app.pyz")
    job = Recorded(tmp_path, *in_this_python(tmp_path / "app.pyz"))
    done = job.finish()
    assert (done.code, done.stdout) == (0, LOOP_PRINTS)
    hold("a zipapp", job, work=job.turns())


def test_haiprof_in_a_zip_file_says_in_one_line_that_it_cannot_be_there(tmp_path: Path) -> None:
    package = Path(ours.__file__).parent
    archive = tmp_path / "app.pyz"
    with zipfile.ZipFile(archive, "w") as file:
        for path in [*package.rglob("*.py"), *package.glob("*.so")]:
            file.write(path, Path("haiprof", path.relative_to(package)))
    program = "import haiprof\ntry:\n    haiprof.start()\nexcept ImportError as e:\n    print(e)"
    bare = {n: v for n, v in os.environ.items() if n != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-S", "-c", program],
        env={**bare, "PYTHONPATH": str(archive)}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    (line,) = done.stdout.splitlines()
    assert f"{archive}/haiprof" in line
    assert "install haiprof" in line
