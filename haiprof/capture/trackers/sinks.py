"""Logs figures to the run of a tracker, each by its public calls.

Tests: tests/capture/test_trackers.py.
Tests: tests/peers/test_trackers.py.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

from haiprof.capture.trackers.figures import Now

_FINDING: Final = "haiprof/finding"
#: haiprof's number of the step, where the job's own is the axis.
_STEPS: Final = "haiprof/steps"
#: MLflow takes 5000 characters at least.
_LONGEST: Final = 2000


class Sink(Protocol):
    """The run of a tracker."""

    def show(self, now: Now) -> None:
        """Log it. Raises whatever the tracker makes it raise."""

    def close(self) -> None:
        """Free what was made for it, and leave the run alone."""


class Wandb:
    """A run of Weights & Biases."""

    def __init__(self, run: Any, run_id: str | None) -> None:
        """Draw our values over our number of the step."""
        if getattr(sys.modules.get("wandb"), "patched", {}).get("tensorboard"):
            raise RuntimeError("it copies what is logged to TensorBoard")
        self._run, self._finding = run, ""
        run.define_metric("haiprof/*", step_metric=_STEPS)

    def show(self, now: Now) -> None:
        """Add to the row that the job is about to log; see the package."""
        # Not to count as an error of the tracker's: the job ended it in a way of its own.
        if getattr(self._run, "_is_finished", False):
            return
        self._run.log({**now.values, _STEPS: now.step}, commit=False)
        if now.findings != self._finding:
            self._finding = now.findings
            self._run.summary[_FINDING] = now.findings[:_LONGEST]

    def close(self) -> None:
        """There is nothing to free."""


class Mlflow:
    """A run of MLflow."""

    def __init__(self, client: Any, run_id: str | None) -> None:
        """Open the store that the job logs to.

        Raises:
            ValueError: the call did not name a run.
        """
        if run_id is None:
            raise ValueError("the call that logs names no run")
        self._client, self._id, self._finding = type(client)(client.tracking_uri), run_id, ""

    def show(self, now: Now) -> None:
        """Log to it while it runs."""
        from mlflow.entities import Metric

        if self._client.get_run(self._id).info.status != "RUNNING":
            return
        at_ms = time.time_ns() // 1_000_000
        metrics = [Metric(name, value, at_ms, now.step) for name, value in now.values.items()]
        self._client.log_batch(self._id, metrics=metrics)
        if now.findings != self._finding:
            self._finding = now.findings
            self._client.set_tag(self._id, _FINDING, now.findings[:_LONGEST])

    def close(self) -> None:
        """There is nothing to free."""


class TensorBoard:
    """A folder below the one of a SummaryWriter."""

    def __init__(self, writer: Any, run_id: str | None) -> None:
        """Make it."""
        if getattr(sys.modules.get("wandb"), "patched", {}).get("tensorboard"):
            raise RuntimeError("wandb copies what is logged to it")
        # Of subclasses, nobody knows what they are to be made of.
        made_by = next(each for each in type(writer).__mro__ if each.__name__ == "SummaryWriter")
        folder = os.path.join(str(writer.log_dir), "haiprof")  # noqa: PTH118 (or a URL)
        self._writer, self._finding = made_by(folder), ""

    def show(self, now: Now) -> None:
        """Write to it."""
        for name, value in now.values.items():
            self._writer.add_scalar(name, value, now.step)
        if now.findings != self._finding:
            self._finding = now.findings
            self._writer.add_text(_FINDING, now.findings[:_LONGEST] or "none", now.step)
        self._writer.flush()

    def close(self) -> None:
        """Close our file."""
        self._writer.close()


class Comet:
    """An experiment of Comet."""

    def __init__(self, experiment: Any, run_id: str | None) -> None:
        """Nothing of it is touched yet."""
        self._experiment, self._finding = experiment, ""

    def show(self, now: Now) -> None:
        """Log at the step that the job has set: another one would become the job's."""
        for name, value in {**now.values, _STEPS: now.step}.items():
            self._experiment.log_metric(name, value, include_context=False)
        if now.findings != self._finding:
            self._finding = now.findings
            self._experiment.log_other(_FINDING, now.findings[:_LONGEST])

    def close(self) -> None:
        """There is nothing to free."""


#: By the name of the ranges of what logs (haiprof/capture/hooks/trackers.py).
SINKS: Final[dict[str, Callable[[Any, str | None], Sink]]] = {
    "logging.wandb": Wandb,
    "logging.mlflow": Mlflow,
    "logging.tensorboard": TensorBoard,
    "logging.comet": Comet,
}
