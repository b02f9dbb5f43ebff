"""A callback for Ray Train, which records the workers without a change to what they run.

>>> RunConfig(name="mine", callbacks=[HaiprofCallback("/shared/haiprof-logs")])

Ray's ``UserCallback`` runs in the controller, which is no rank and knows of no step. This is one of
its ``WorkerCallback`` and ``TrainContextCallback``, which run in the workers: Ray calls all three
"developer API", and documents only the first.

Tests: tests/peers/test_ray.py.
"""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import ray.train
from ray.train.v2._internal.execution import callback, context

import haiprof
from haiprof.capture.session import end_with
from haiprof.integrations import marks
from haiprof.integrations.marks import harmless

__all__ = ["HaiprofCallback"]


class HaiprofCallback(
    callback.WorkerCallback,  # type: ignore[misc]
    callback.TrainContextCallback,  # type: ignore[misc]
):
    """Records each worker from its start to its end, with its rank; reports and what it raised.

    Nothing is changed in Ray, and nothing is raised into it.
    """

    def __init__(self, log_dir: str | os.PathLike[str] | None = None, **options: Any) -> None:
        """Keep the options for the workers.

        Args:
            log_dir: folder that runs are written to, which all nodes reach: from the folder of the
                program, not of the workers; default ``HAIPROF_LOG_DIR`` or ``haiprof-logs``.
            options: others of :func:`haiprof.start`; ``run`` is the name of Ray's run if not given.

        Raises:
            TypeError: :func:`haiprof.start` has no such option.
        """
        inspect.signature(haiprof.start).bind_partial(**options)
        folder = log_dir or os.environ.get("HAIPROF_LOG_DIR") or "haiprof-logs"
        self._options = options | {"log_dir": Path(folder).absolute()}
        self._reports = 0

    @harmless
    def after_init_train_context(self) -> None:
        """Begin to record this worker, before it joins the others."""
        about = ray.train.get_context()
        os.environ.update(  # as Ray sets them for torch, only later
            RANK=str(about.get_world_rank()),
            LOCAL_RANK=str(about.get_local_rank()),
            WORLD_SIZE=str(about.get_world_size()),
            LOCAL_WORLD_SIZE=str(about.get_local_world_size()),
        )
        run = about.get_experiment_name()
        haiprof.start(**{"run": run} | self._options)
        marks.train("ray", run=run)

    @contextlib.contextmanager
    def on_report(self) -> Generator[None]:
        """Record how long a report takes, which waits for those of the other workers."""
        self._reports += 1
        with haiprof.range("ray.report", number=self._reports):
            yield

    @harmless
    def before_worker_shutdown(self) -> None:
        """End the recording, and with it the last step, before Ray kills this worker."""
        raised = None
        with contextlib.suppress(AttributeError):  # Ray has it in no other place
            thread = context.get_train_context().execution_context.training_thread_runner
            raised = thread.get_error()
        if raised is None:
            haiprof.stop()
        else:
            end_with(getattr(raised, "_base_exc", raised))
