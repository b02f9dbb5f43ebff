"""What is shown in trackers, and that a tracker that fails costs the job nothing.

The trackers here are doubles that keep what they are given, with the names that the real ones have;
those themselves: tests/peers/test_trackers.py.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch
from phases import read_spans
from recording import wait_for

from haiprof import _core
from haiprof.capture import hooks, trackers, where
from haiprof.capture.trackers.figures import Figures
from haiprof.common import threads
from haiprof.common.places import FIGURES_MARK, FIGURES_NAME, FINDINGS_NAME, open_rings

# Hooks are attached once torch is imported.
assert torch.__version__
EVERY_S = 0.02
MODULES = {
    "wandb.sdk.wandb_run": """
import threading
class Run:
    def __init__(self):
        self.logged, self.defined, self.summary, self.fails = [], [], {}, False
    def define_metric(self, name, step_metric):
        self.defined.append((name, step_metric))
    def log(self, values, step=None, commit=None):
        if self.fails:
            raise OSError("no\\tspace")
        self.logged.append((values, step, commit, threading.get_ident()))
    def finish(self):
        pass
""",
    "mlflow.tracking.client": """
from types import SimpleNamespace
LOGGED, TAGS, OVER = [], {}, set()
class MlflowClient:
    def __init__(self, tracking_uri="here"):
        self.tracking_uri = tracking_uri
    def get_run(self, run_id):
        status = "FINISHED" if run_id in OVER else "RUNNING"
        return SimpleNamespace(info=SimpleNamespace(status=status))
    def log_metric(self, run_id, key, value):
        pass
    def log_batch(self, run_id, metrics):
        LOGGED.extend((self.tracking_uri, run_id, each.key, each.step) for each in metrics)
    def set_tag(self, run_id, key, value):
        TAGS[key] = value
    def set_terminated(self, run_id):
        OVER.add(run_id)
""",
    "comet_ml.experiment": """
class CometExperiment:
    def __init__(self):
        self.logged, self.others = [], {}
    def log_metric(self, name, value, step=None, include_context=True):
        self.logged.append((name, value, step, include_context))
    def log_other(self, name, value):
        self.others[name] = value
    def end(self):
        pass
""",
    "mlflow.entities": """
from collections import namedtuple
Metric = namedtuple("Metric", "key value timestamp step")
""",
    "tensorboardX.writer": """
WRITERS = []
class SummaryWriter:
    def __init__(self, log_dir):
        self.log_dir, self.scalars, self.flushed = log_dir, [], 0
        WRITERS.append(self)
    def add_scalar(self, name, value, step):
        self.scalars.append((name, value, step))
    def flush(self):
        self.flushed += 1
    def close(self):
        pass
""",
}


class Place(NamedTuple):
    run_dir: Path
    ring: Path

    def folder(self) -> Path | None:
        return None


class Rings:
    """The folder of the rings, as the recorder writes into it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.steps = 0

    def put(self, *ranks: dict[str, Any]) -> None:
        with open_rings(self.path).replacing(FIGURES_NAME) as file:
            file.write(json.dumps({"ranks": ranks}).encode())

    def further(self, steps: int = 1) -> None:
        self.steps += steps
        self.put(rank(steps=self.steps))


def rank(pid: int | None = None, steps: int = 1, **more: Any) -> dict[str, Any]:
    """Return what the recorder says of a rank with steps of 10 ms, of which 4 are forward."""
    return {
        "pid": os.getpid() if pid is None else pid,
        "rank": 0,
        "steps": steps,
        "duration": steps * 10_000_000,
        "phases": {"forward": steps * 4_000_000},
        "parts": {"wait": steps * 2_000_000},
        **more,
    }


@pytest.fixture
def rings(shm: Path, monkeypatch: pytest.MonkeyPatch) -> Rings:
    folder = shm / "haiprof-test" / "r~0"
    open_rings(folder, make=True)
    monkeypatch.setattr(where, "_find", lambda: Place(shm, folder / "1.ring"))
    return Rings(folder)


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Makes the module of a tracker, and imports it."""
    for name, text in MODULES.items():
        file = tmp_path.joinpath(*name.split(".")).with_suffix(".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        # Or one that is installed would be found.
        (tmp_path / name.split(".")[0] / "__init__.py").touch()
        file.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    packages = {name.split(".")[0] for name in MODULES}

    def forget() -> None:
        for name in [each for each in sys.modules if each.split(".")[0] in packages]:
            del sys.modules[name]

    def imported(name: str) -> ModuleType:
        importlib.invalidate_caches()
        return importlib.import_module(name)

    forget()
    yield imported
    forget()


@pytest.fixture
def shown(rings: Rings, shm: Path) -> Iterator[Rings]:
    """Hooks, a ring, and trackers that are looked at all the time."""
    _core.open_ring(str(shm / "test.ring"))
    hooks.install()
    trackers.arm(EVERY_S)
    yield rings
    trackers.disarm()
    hooks.uninstall()
    _core.close_ring()


def said(shm: Path) -> list[str]:
    """Return the texts of the events."""
    reader = _core.RingReader(str(shm / "test.ring"))
    reader.take()
    return [str(text) for text in reader.texts("events", "text")[1]]


def test_means_of_the_steps_since_the_last_look(rings: Rings) -> None:
    figures = Figures()
    assert figures.read() is None
    figures.ask()
    assert (rings.path / FIGURES_MARK).exists()
    rings.put(rank(steps=0))
    assert figures.read() is None
    rings.put(rank(steps=4))
    now = figures.read()
    assert now is not None
    assert now.values == {
        "haiprof/step_seconds": 0.01,
        "haiprof/phase/forward_seconds": 0.004,
        "haiprof/wait_seconds": 0.002,
        "haiprof/findings": 0.0,
    }
    assert figures.read() is None, "no step since"
    rings.put(rank(steps=6, duration=4 * 10_000_000 + 2 * 30_000_000))
    now = figures.read()
    assert now is not None
    assert now.values["haiprof/step_seconds"] == 0.03
    rings.put(rank(steps=1))  # a recorder that took over
    now = figures.read()
    assert now is not None
    assert now.values["haiprof/step_seconds"] == 0.01


def test_who_waits_for_gradients_waits(rings: Rings) -> None:
    rings.put(rank(phases={"gradient_sync": 5_000_000}), rank(pid=1, phases={}, parts={}))
    now = Figures().read()
    assert now is not None
    assert now.values["haiprof/phase/gradient_sync_seconds"] == 0.005
    assert now.values["haiprof/wait_seconds"] == 0.002
    assert now.values["haiprof/node/wait_seconds_min"] == 0
    assert now.values["haiprof/node/wait_seconds_max"] == pytest.approx(0.007)


def test_ranks_of_the_node_and_findings(rings: Rings) -> None:
    late = rank(pid=1, duration=30_000_000, parts={"wait": 0})
    rings.put(rank(), late, rank(pid=2, steps=0))
    problems = [
        {"problem": "Rank 1 is late\x1b[2J", "since_ns": 1},
        {"problem": "b", "since_ns": 2},
    ]
    (rings.path / FINDINGS_NAME).write_text(json.dumps({"findings": problems}))
    now = Figures().read()
    assert now is not None
    assert now.values["haiprof/node/ranks"] == 2
    assert now.values["haiprof/node/step_seconds_max"] == 0.03
    assert now.values["haiprof/node/wait_seconds_min"] == 0
    assert now.values["haiprof/node/wait_seconds_max"] == 0.002
    assert now.values["haiprof/findings"] == 2
    assert now.findings.startswith("Rank 1 is late")
    assert "\x1b" not in now.findings


def test_names_that_no_tracker_would_take(rings: Rings) -> None:
    rings.put(rank(phases={"a b=c/../@\n": 5_000_000, "": 1_000_000}))
    now = Figures().read()
    assert now is not None
    names = {name for name in now.values if name.startswith("haiprof/phase/")}
    assert names == {"haiprof/phase/a-b-c-..--_seconds", "haiprof/phase/unnamed_seconds"}


@pytest.mark.parametrize(
    "odd",
    ["", "[]", "{}", '{"ranks": 5}', '{"ranks": [5]}', "[" * 100_000, '{"ranks": [{"pid": 1}]}'],
)
def test_an_odd_file_is_none(rings: Rings, odd: str) -> None:
    (rings.path / FIGURES_NAME).write_text(odd)
    assert Figures().read() is None


def test_odd_values_and_another_process(rings: Rings) -> None:
    for odd in (rank(pid=1), rank(steps="5", duration=0), rank(phases=[]), rank(parts={"a": 0.5})):
        rings.put(odd)
        assert Figures().read() is None


def test_a_run_of_wandb(shown: Rings, make: Any, shm: Path) -> None:
    run = make("wandb.sdk.wandb_run").Run()
    run.log({"loss": 1.0}, step=7)
    shown.further(3)
    wait_for(lambda: len(run.logged) > 1)
    assert run.defined == [("haiprof/*", "haiprof/steps")]
    (own, step, _, _), (values, no_step, commit, thread) = run.logged
    assert (own, step) == ({"loss": 1.0}, 7)
    assert values["haiprof/step_seconds"] == 0.01
    assert (no_step, commit) == (None, False)
    assert thread != threading.get_ident()
    ranges = [row.name for row in read_spans(shm / "test.ring") if row.name.startswith("logging.")]
    assert ranges == ["logging.wandb"], "ours is none of the job's"


def test_a_finding_is_said_until_it_is_over(shown: Rings, make: Any) -> None:
    run = make("wandb.sdk.wandb_run").Run()
    run.log({})
    findings = shown.path / FINDINGS_NAME
    findings.write_text(json.dumps({"findings": [{"problem": "slow", "since_ns": 1}]}))
    shown.further()
    wait_for(lambda: run.summary.get("haiprof/finding") == "slow")
    findings.unlink()
    shown.further()
    wait_for(lambda: run.summary["haiprof/finding"] == "")
    assert list(run.summary) == ["haiprof/finding"]


def test_with_the_first_error_it_ends_and_says_so_once(shown: Rings, make: Any, shm: Path) -> None:
    run = make("wandb.sdk.wandb_run").Run()
    client = make("mlflow.tracking.client")
    run.log({"loss": 1.0})
    run.fails = True
    shown.further()
    why = "nothing of haiprof is shown in logging.wandb any more: no\tspace"
    wait_for(lambda: said(shm) == [why])
    run.fails = False
    client.MlflowClient().log_metric("1", "loss", 1.0)
    for _ in range(3):
        before = len(client.LOGGED)
        shown.further()
        wait_for(lambda before=before: len(client.LOGGED) > before)
    assert len(run.logged) == 1
    assert said(shm) == [why]


def test_a_run_of_mlflow_until_it_ends(shown: Rings, make: Any, shm: Path) -> None:
    module = make("mlflow.tracking.client")
    client = module.MlflowClient("there")
    client.log_metric(run_id="first", key="loss", value=1.0)
    shown.further()
    wait_for(lambda: len(module.LOGGED) == 4)
    assert {(uri, run) for uri, run, *_ in module.LOGGED} == {("there", "first")}
    module.LOGGED.clear()
    client.set_terminated("first")
    client.log_metric("second", "loss", 1.0)
    client.set_terminated("another")
    shown.further()
    wait_for(lambda: len(module.LOGGED) == 4)
    assert {run for _, run, *_ in module.LOGGED} == {"second"}
    assert said(shm) == []


def test_an_experiment_of_comet(shown: Rings, make: Any) -> None:
    experiment = make("comet_ml.experiment").CometExperiment()
    experiment.log_metric("loss", 1.0, step=7)
    findings = shown.path / FINDINGS_NAME
    findings.write_text(json.dumps({"findings": [{"problem": "slow", "since_ns": 1}]}))
    shown.further(3)
    wait_for(lambda: experiment.others)
    own, *ours = experiment.logged
    assert own == ("loss", 1.0, 7, True)
    assert {name for name, *_ in ours} > {"haiprof/step_seconds", "haiprof/steps"}
    assert {(step, context) for *_, step, context in ours} == {(None, False)}
    assert experiment.others == {"haiprof/finding": "slow"}


def test_a_folder_of_tensorboard(shown: Rings, make: Any) -> None:
    module = make("tensorboardX.writer")

    class Mine(module.SummaryWriter):  # type: ignore[misc]
        def __init__(self, something: int, more: int) -> None:
            super().__init__("here")

    writer = Mine(1, 2)
    writer.add_scalar("loss", 1.0, 0)
    shown.further()
    wait_for(lambda: len(module.WRITERS) == 2 and module.WRITERS[1].flushed)
    ours = module.WRITERS[1]
    assert ours.log_dir == "here/haiprof"
    assert {name for name, *_ in ours.scalars} >= {"haiprof/step_seconds", "haiprof/findings"}
    assert writer.scalars == [("loss", 1.0, 0)]


def test_what_wandb_copies_is_left_alone(shown: Rings, make: Any, shm: Path) -> None:
    run = make("wandb.sdk.wandb_run").Run()
    sys.modules["wandb"].patched = {"tensorboard": [("torch.utils", "tensorboard")]}  # type: ignore[attr-defined]
    writer = make("tensorboardX.writer").SummaryWriter("here")
    run.log({})
    writer.add_scalar("loss", 1.0, 0)
    shown.further()
    wait_for(lambda: len(said(shm)) == 2)
    assert len(run.logged) == 1
    assert len(sys.modules["tensorboardX.writer"].WRITERS) == 1


def test_without_a_further_thread_it_says_why(
    shown: Rings, make: Any, shm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threads, "_start", refuse)
    run = make("wandb.sdk.wandb_run").Run()
    for _ in range(2):
        run.log({})
    assert said(shm) == ["nothing of haiprof is shown in trackers: can't start new thread"]
    assert len(run.logged) == 2


def test_nothing_happens_without_a_run_or_once_it_is_off(shown: Rings, make: Any) -> None:
    running = threading._active  # type: ignore[attr-defined]
    before = set(running)
    module = make("wandb.sdk.wandb_run")
    shown.further()
    assert set(running) == before
    assert not (shown.path / FIGURES_MARK).exists()
    trackers.disarm()
    run = module.Run()
    run.log({})
    assert not (shown.path / FIGURES_MARK).exists()
    assert len(run.logged) == 1


def test_a_child_shows_nothing(shown: Rings, make: Any) -> None:
    run = make("wandb.sdk.wandb_run").Run()
    run.log({})
    pid = os.fork()
    if pid == 0:
        try:
            run.log({})
            shown.put(rank())
            time.sleep(10 * EVERY_S)
            os._exit(len(run.logged))
        finally:
            os._exit(99)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 2
    shown.further()
    wait_for(lambda: len(run.logged) == 2)


def test_a_tracker_that_never_answers_holds_up_no_end(rings: Rings, tmp_path: Path) -> None:
    rings.put(rank(pid=0))
    program = f"""
import json, os, threading, time
from pathlib import Path
from types import SimpleNamespace
from haiprof.capture import trackers, where

logging = threading.Event()
class Run:
    def define_metric(self, name, step_metric):
        pass
    def log(self, values, commit):
        logging.set()
        time.sleep(1000)

file = Path({str(rings.path / FIGURES_NAME)!r})
known = json.loads(file.read_text())
known["ranks"][0]["pid"] = os.getpid()
file.write_text(json.dumps(known))
where.set_session_finder(lambda: SimpleNamespace(ring=file))
trackers.arm({EVERY_S})
trackers._shown.logs("logging.wandb", (Run(),), {{}})
assert logging.wait(60)
trackers.disarm()
"""
    command = [sys.executable, "-P", "-c", program]
    done = subprocess.run(command, cwd=tmp_path, timeout=100, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
