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
}


def names(recorded: Any) -> list[str]:
    return [row.name for row in recorded.spans() if row.name.startswith("logging.")]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Makes the module of a tracker, and imports it."""
    monkeypatch.syspath_prepend(str(tmp_path))
    packages = [name.split(".")[0] for name in TRACKERS]

    def imported(name: str) -> ModuleType:
        owner, logs, _ = TRACKERS[name]
        file = tmp_path.joinpath(*name.split(".")).with_suffix(".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(TRACKER.format(owner=owner, logs=logs))
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


def test_afterwards_they_are_what_they_were(recorded: Any, make: Any) -> None:
    from haiprof.capture import hooks

    run = make("wandb.sdk.wandb_run").Run
    before = run.log.__wrapped__
    assert hooks.status()["trackers"].startswith("on")
    hooks.uninstall()
    assert run.log is before
    run().log({"loss": 1.0})
    assert names(recorded) == []


def test_a_tracker_that_is_imported_already(shm: Path, make: Any) -> None:
    from haiprof import _core
    from haiprof.capture import hooks

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
    from haiprof.capture import hooks

    # It is imported by now, and the others are recorded all the same.
    hooks.uninstall()
    hooks.install()
    assert hooks.status()["trackers"].startswith("on")
    make("mlflow.tracking.client").MlflowClient().log_metric("loss", 1.0)
    assert names(recorded) == ["logging.mlflow"]
