"""haiprof attach, as people type it: ``haiprof train.py --time 60``."""

from __future__ import annotations

import itertools
import json
import signal
import statistics
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import HAIPROF, haiprof, only_line
from control_jobs import TRAINS
from recording import wait_for

from haiprof import Analyzer
from haiprof.control.client import ControlError
from haiprof.control.sockets import socket_of

pytestmark = pytest.mark.jobs


@pytest.fixture
def running(shm: Path, tmp_path: Path) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    """A script that trains, and its process."""
    script = tmp_path / f"train_{time.monotonic_ns()}.py"
    script.write_text(textwrap.dedent(TRAINS.format(before="", each="")))
    with subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, text=True, cwd=tmp_path
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield script, process
        assert process.poll() is None
        (tmp_path / "END").touch()
        assert process.wait(240) == 0


def test_a_script_is_enough(running: tuple[Path, subprocess.Popen[str]], tmp_path: Path) -> None:
    done = haiprof(running[0].name, "--time", "10", "--log-dir", str(tmp_path / "logs"))
    assert done.returncode == 0, done.stderr
    (run,) = (tmp_path / "logs").iterdir()
    assert f"run {run}" in done.stderr
    assert "steps, median" in done.stderr
    first, second, *_ = done.stderr.splitlines()
    assert first.endswith(" for 10 s")
    assert second.endswith(": over after 10 of 10 s; closing the files")
    assert Analyzer(run).steps().height > 20


def test_a_trace_is_made_where_it_is_asked_for(
    running: tuple[Path, subprocess.Popen[str]], tmp_path: Path
) -> None:
    options = ("--time", "4", "--trace", "--name", "t", "--log-dir", str(tmp_path / "logs"))
    done = haiprof("attach", str(running[1].pid), *options)
    assert done.returncode == 0, done.stderr
    # A thread of the lowest priority compresses it, after the recording.
    run = tmp_path / "logs" / "t"
    (trace,) = wait_for(lambda: list(run.glob("*/*.pt.trace.json.gz")), 240, "the trace")
    operators = Analyzer(trace).operators()
    assert "aten::addmm" in operators["name"].cast(str).to_list()


def test_it_can_be_asked_first_who_is_meant(
    running: tuple[Path, subprocess.Popen[str]], tmp_path: Path
) -> None:
    done = haiprof(running[0].name, "--dry-run", "--log-dir", str(tmp_path / "logs"))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"pid {running[1].pid}: haiprof would be loaded into it\n"
    assert not (tmp_path / "logs").exists()


def test_ctrl_c_ends_the_recording_and_not_the_job(
    running: tuple[Path, subprocess.Popen[str]], tmp_path: Path
) -> None:
    logs = tmp_path / "logs"
    command = [sys.executable, "-m", "haiprof.cli.main", running[0].name, "--log-dir", str(logs)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as attaching:
        wait_for(lambda: list(logs.glob("*/*#0/spans-0.arrows")))
        attaching.send_signal(signal.SIGINT)
        said = attaching.communicate(timeout=60)[1]
    assert attaching.returncode == 130
    assert "interrupted" in said
    (run,) = logs.iterdir()
    assert f"run {run}" in said
    wait_for(lambda: not list(run.glob("*/*.arrows")), 10, "closed files")


def test_ctrl_c_while_ranks_are_reached_ends_those_that_were(
    running: tuple[Path, subprocess.Popen[str]], tmp_path: Path
) -> None:
    """The other one is asleep in C code, and is given up after a while."""
    script, process = running
    logs = tmp_path / "logs"
    asleep = "import ctypes; s = ctypes.PyDLL(None).sleep; print('ready', flush=True); s(100)"
    (tmp_path / "other").mkdir()
    other = tmp_path / "other" / script.name
    other.write_text(asleep)
    options = ("--time", "300", "--log-dir", str(logs))
    command = [sys.executable, "-m", "haiprof.cli.main", script.name, *options]
    with subprocess.Popen([sys.executable, other], stdout=subprocess.PIPE, text=True) as sleeper:
        try:
            assert sleeper.stdout is not None
            assert sleeper.stdout.readline() == "ready\n"
            with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as attaching:
                wait_for(lambda: list(logs.glob("*/*#*/spans-0.arrows")))
                attaching.send_signal(signal.SIGINT)
                said = attaching.communicate(timeout=60)[1]
            assert sleeper.poll() is None
        finally:
            sleeper.kill()
    assert attaching.returncode == 130
    assert said.startswith("haiprof: interrupted: the recording ends here, the job goes on\n")
    (run,) = logs.iterdir()
    assert f"haiprof: run {run}\n" in said
    assert "steps, median" in said
    wait_for(lambda: not list(run.glob("*/*.arrows")), 10, "closed files")
    with pytest.raises(ControlError, match="not loaded haiprof"):
        socket_of(process.pid)


def test_nobody_is_one_line(shm: Path) -> None:
    done = haiprof("no_such_script.py", "--time", "1")
    assert done.returncode == 2
    assert only_line(done).startswith("haiprof: no_such_script.py: no Python process here")


def test_what_could_only_be_watched_is_said_and_the_exit_code(shm: Path, tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        try:
            words = ["attach", str(sleeper.pid), "--time", "1", "--log-dir", str(tmp_path)]
            done = haiprof(*words)
            asked = haiprof(*words, "--dry-run")
        finally:
            sleeper.kill()
    assert done.returncode == 3
    assert f"pid {sleeper.pid}: observed from outside only: " in done.stderr
    assert "No step was recorded: the job was only watched from outside" in done.stderr
    assert (asked.returncode, asked.stderr) == (3, "")
    assert "can only be observed from outside" in asked.stdout


def test_options_are_checked_before_anything_is_touched(
    running: tuple[Path, subprocess.Popen[str]], tmp_path: Path
) -> None:
    done = haiprof(running[0].name, "--kernels", "some", "--log-dir", str(tmp_path / "logs"))
    assert done.returncode == 2
    assert "--kernels 'some' must be" in only_line(done)
    assert not (tmp_path / "logs").exists()


def test_any_option_reaches_the_job(
    running: tuple[Path, subprocess.Popen[str]], tmp_path: Path
) -> None:
    options = ["--kernels-period", "7", "--no-hooks", "--io-interval=3"]
    done = haiprof(running[0].name, "--time", "1", "--log-dir", tmp_path / "logs", *options)
    assert done.returncode == 0, done.stderr
    (run,) = (tmp_path / "logs").iterdir()
    used = json.loads((run / "run.json").read_text())["options"]
    assert (used["kernels_period"], used["hooks"], used["io_interval"]) == (7.0, False, 3.0)


#: A loop whose phases wait for as long as on any machine: 10, 20, 30 and 40 ms. Writes when each
#: began, and the last one ended, of each step into a file.
TRAINS_LONG = """
    import json, os, time
    import torch
    torch.set_num_threads(1)
    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return 1 << 40
        def __getitem__(self, index):
            time.sleep(0.01)
            return torch.ones(16)
    class Waits(torch.autograd.Function):
        @staticmethod
        def forward(context, batch):
            time.sleep(0.02)
            return batch.clone()
        @staticmethod
        def backward(context, gradient):
            time.sleep(0.03)
            return gradient
    class Model(torch.nn.Linear):
        def forward(self, batch):
            return Waits.apply(super().forward(batch))
    class Optimizer(torch.optim.SGD):
        def step(self, closure=None):
            time.sleep(0.04)
            super().step(closure)
    model = Model(16, 16)
    optimizer = Optimizer(model.parameters(), lr=0.001)
    print("ready", flush=True)
    steps, times = [], [time.time_ns()]
    for batch in torch.utils.data.DataLoader(Data()):
        times.append(time.time_ns())
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        times.append(time.time_ns())
        loss.backward()
        times.append(time.time_ns())
        optimizer.step()
        times.append(time.time_ns())
        steps.append(times)
        times = times[-1:]
        if os.path.exists("END"):
            break
    with open("times", "w") as file:
        json.dump(steps, file)
"""
OF_FOUR = ("dataloader", "forward", "backward", "optimizer")


def shares(run: Path) -> dict[str, float]:
    """What part of a step each phase takes, by the median step."""
    phases = Analyzer(run).phases()
    medians = {
        str(name): float(rows["duration"].cast(int).median())
        for (name,), rows in phases.group_by("name")
    }
    return {name: median / sum(medians.values()) for name, median in medians.items()}


def noted(run: Path, times: Path) -> list[float]:
    """What part of the four each takes by the script's notes of the steps that were recorded."""
    recorded = Analyzer(run).steps()
    begin = recorded["start"].min()
    end = (recorded["start"] + recorded["duration"].cast(int)).max()
    steps = [step for step in json.loads(times.read_text()) if begin < step[0] and step[4] < end]
    medians = [
        statistics.median(b - a for a, b in pairs)
        for pairs in zip(*(itertools.pairwise(step) for step in steps), strict=True)
    ]
    return [median / sum(medians) for median in medians]


def test_phases_are_those_of_the_same_job_under_haiprof_run(shm: Path, tmp_path: Path) -> None:
    script, logs = tmp_path / "train_long.py", tmp_path / "logs"
    script.write_text(textwrap.dedent(TRAINS_LONG))
    options = ["--log-dir", str(logs), "--name"]
    for name, start in (
        ("launched", [*HAIPROF, "run", *options, "launched", "--"]),
        ("attached", []),
    ):
        with subprocess.Popen(
            [*start, sys.executable, script], stdout=subprocess.PIPE, text=True, cwd=tmp_path
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            if name == "launched":
                time.sleep(3)
            else:
                done = haiprof("attach", str(process.pid), "--time", "3", *options, "attached")
                assert done.returncode == 0, done.stderr
            (tmp_path / "END").touch()
            assert process.wait(60) == 0
        (tmp_path / "END").unlink()
        (tmp_path / "times").rename(tmp_path / f"times-{name}")
    launched, attached = shares(logs / "launched"), shares(logs / "attached")
    assert {"dataloader", "forward", "backward", "optimizer"} <= set(launched)
    assert set(attached) == set(launched)
    for name, found in (("launched", launched), ("attached", attached)):
        wanted = noted(logs / name, tmp_path / f"times-{name}")
        assert [found[part] for part in OF_FOUR] == pytest.approx(wanted, abs=0.05), name
