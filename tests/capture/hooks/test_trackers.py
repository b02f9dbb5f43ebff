"""Calls that log to a tracker are ranges of the job's; tests/peers has the trackers themselves."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from haiprof.capture import hooks
from haiprof.capture.hooks import trackers as hook

# Hooks are attached once torch is imported.
assert torch.__version__
#: What a tracker promises: methods that log, by their names, and some that do not.
TRACKER = """
class {owner}:
    calls = 0

    def {logs}(self, *values, fails=False, also=None):
        type(self).calls += 1
        if fails:
            raise ValueError("no")
        if also is not None:
            also.{logs}(*values)
        return values

    def close(self):
        return "closed"
"""
TRACKERS = {
    "tensorboardX.writer": ("SummaryWriter", "add_scalar", "logging.tensorboard"),
    "wandb.sdk.wandb_run": ("Run", "log", "logging.wandb"),
    "mlflow.tracking.client": ("MlflowClient", "log_metric", "logging.mlflow"),
    "comet_ml.experiment": ("CometExperiment", "log_metrics", "logging.comet"),
}
#: What Accelerate does with the trackers it was given, its own ones and others.
ACCELERATE = {
    "accelerate.tracking": """
class GeneralTracker:
    def log(self, values, step=None):
        pass
    def finish(self):
        pass
class TensorBoardTracker(GeneralTracker):
    def log(self, values, step=None):
        return values
""",
    "accelerate.accelerator": """
class Accelerator:
    def __init__(self, *trackers):
        self.trackers = trackers
    def log(self, values, step=None):
        return [tracker.log(values, step=step) for tracker in self.trackers]
""",
}


def names(recorded: Any) -> list[str]:
    return [row.name for row in recorded.spans() if row.name.startswith("logging.")]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Makes the module of a tracker, and imports it."""
    monkeypatch.syspath_prepend(str(tmp_path))
    packages = [name.split(".")[0] for name in (*TRACKERS, *ACCELERATE)]

    def imported(name: str) -> ModuleType:
        file = tmp_path.joinpath(*name.split(".")).with_suffix(".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        # Or one that is installed would be found.
        (tmp_path / name.split(".")[0] / "__init__.py").touch()
        if (text := ACCELERATE.get(name)) is None:
            owner, logs, _ = TRACKERS[name]
            text = TRACKER.format(owner=owner, logs=logs)
        file.write_text(text)
        importlib.invalidate_caches()
        return importlib.import_module(name)

    def forget() -> None:
        for name in [each for each in sys.modules if each.split(".")[0] in packages]:
            del sys.modules[name]

    forget()
    yield imported
    forget()


@pytest.mark.parametrize("name", TRACKERS)
def test_what_logs_is_a_range(recorded: Any, make: Any, name: str) -> None:
    owner, logs, said = TRACKERS[name]
    tracker = getattr(make(name), owner)()
    log = getattr(tracker, logs)
    assert log("loss", 1.0) == ("loss", 1.0)
    with pytest.raises(ValueError, match="no"):
        log(fails=True)
    assert tracker.close() == "closed"
    assert log.__name__ == logs
    assert names(recorded) == [said, said]


def test_a_call_inside_another_is_a_part_of_it(recorded: Any, make: Any) -> None:
    writer = make("tensorboardX.writer").SummaryWriter()
    client = make("mlflow.tracking.client").MlflowClient()
    writer.add_scalar("loss", also=writer)
    thread = threading.Thread(target=client.log_metric, args=("loss", 1.0))
    thread.start()
    thread.join()
    assert names(recorded) == ["logging.tensorboard", "logging.mlflow"]
    assert writer.calls == 2


class Watched:
    """Keeps of which trackers it is said that they log, and that they end."""

    def __init__(self) -> None:
        self.logged: list[tuple[str, Any]] = []
        self.ended: list[tuple[str, Any]] = []

    def logs(self, kind: str, args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        self.logged.append((kind, args[0]))

    def ends(self, kind: str, args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        self.ended.append((kind, args[0]))


@pytest.fixture
def watched() -> Iterator[Watched]:
    watching = Watched()
    hook.watch_with(watching)
    yield watching
    hook.watch_with(None)


def test_a_tracker_of_the_users_own_in_accelerate(
    recorded: Any, make: Any, watched: Watched
) -> None:
    tracking = make("accelerate.tracking")

    class Mine(tracking.GeneralTracker):  # type: ignore[misc]
        def log(self, values: Any, step: Any = None) -> Any:
            return values, step

    class Derived(Mine):
        pass

    mine, derived, original = Mine(), Derived(), Mine.log
    trackers = (tracking.TensorBoardTracker(), mine, derived)
    accelerator = make("accelerate.accelerator").Accelerator(*trackers)
    loss = {"loss": 1}
    for step in range(2):
        assert accelerator.log(loss, step=step) == [loss, (loss, step), (loss, step)]
    # Nothing is logged to them: they may not expect calls of another thread.
    assert watched.logged == []
    assert names(recorded) == ["logging.accelerate"] * 4
    hooks.uninstall()
    assert Mine.log is original
    assert accelerator.log({}, step=2) == [{}, ({}, 2), ({}, 2)]


def test_one_that_calls_a_known_tracker_is_that(recorded: Any, make: Any, watched: Watched) -> None:
    run = make("wandb.sdk.wandb_run").Run()

    class Mine(make("accelerate.tracking").GeneralTracker):  # type: ignore[misc]
        def log(self, values: Any, step: Any = None) -> None:
            run.log(values)

    make("accelerate.accelerator").Accelerator(Mine()).log({})
    assert watched.logged == [("logging.wandb", run)]
    assert sorted(names(recorded)) == ["logging.accelerate", "logging.wandb"]


def test_what_haiprof_logs_is_none_of_the_jobs(recorded: Any, make: Any, watched: Watched) -> None:
    class Mine(make("accelerate.tracking").GeneralTracker):  # type: ignore[misc]
        def log(self, values: Any, step: Any = None) -> None:
            pass

    accelerator = make("accelerate.accelerator").Accelerator(Mine())
    accelerator.log({})

    def ours() -> None:
        hook.leave_unrecorded()
        accelerator.log({})

    thread = threading.Thread(target=ours)
    thread.start()
    thread.join()
    assert names(recorded) == ["logging.accelerate"]


def test_afterwards_they_are_what_they_were(recorded: Any, make: Any) -> None:
    run = make("wandb.sdk.wandb_run").Run
    before = run.log.__wrapped__
    assert hooks.status()["trackers"].startswith("on")
    hooks.uninstall()
    assert run.log is before
    run().log({"loss": 1.0})
    assert names(recorded) == []


def test_a_tracker_that_is_imported_already(shm: Path, make: Any) -> None:
    from haiprof import _core

    run = make("wandb.sdk.wandb_run").Run
    original = run.log
    _core.open_ring(str(shm / "test.ring"))
    try:
        hooks.install()
        assert run.log is not original
    finally:
        hooks.uninstall()
        _core.close_ring()
    assert run.log is original


def test_an_unknown_version_is_left_alone(recorded: Any, tmp_path: Path, make: Any) -> None:
    make("tensorboardX.writer")
    other = tmp_path / "wandb" / "sdk" / "wandb_run.py"
    other.parent.mkdir(parents=True)
    other.write_text("def log(values): return values\n")
    importlib.invalidate_caches()
    assert importlib.import_module("wandb.sdk.wandb_run").log(3) == 3
    # It is imported by now, and the others are recorded all the same.
    hooks.uninstall()
    hooks.install()
    assert hooks.status()["trackers"].startswith("on")
    make("mlflow.tracking.client").MlflowClient().log_metric("loss", 1.0)
    assert names(recorded) == ["logging.mlflow"]
