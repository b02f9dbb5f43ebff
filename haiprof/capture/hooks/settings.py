"""Settings of torch that decide how fast a step can be: threads, types, determinism, checks.

They are read before a few of the first backward passes, on the thread that runs them, and recorded
when they have changed.
"""

from __future__ import annotations

import contextlib
import functools
import os
from typing import Any, Final

from haiprof.capture.hooks.facts import Facts
from haiprof.capture.hooks.passes import Passes
from haiprof.capture.hooks.replaced import Replaced

#: Kinds of the events.
THREADS: Final = "threads"
AUTOGRAD: Final = "autograd"

#: Before which backward passes the settings are read: many jobs make some in their first steps.
_PASSES: Final = (1, 5, 20)
#: … and before these, too: libraries change the number of threads at any time, and a profiler may
#: have been left on.
_LATER: Final = (50, 200, 1000)
#: Where autocast is entered so often without any backward pass, nobody waits for one.
_MOST_ENTERED: Final = 1000

_OF_THREADS: Final = {
    "num_threads": "get_num_threads",
    "num_interop_threads": "get_num_interop_threads",
}
_OF_AUTOGRAD: Final = {
    "anomaly_detection": "is_anomaly_enabled",
    "anomaly_check_nan": "is_anomaly_check_nan_enabled",
    "default_dtype": "get_default_dtype",
    # Since torch 2.9 it refuses to answer where newer settings contradict the older ones.
    "matmul_precision": "get_float32_matmul_precision",
    "profiler": "_C._autograd._profiler_enabled",
    "deterministic": "are_deterministic_algorithms_enabled",
    "cudnn_benchmark": "_C._get_cudnn_benchmark",
    "cudnn_deterministic": "_C._get_cudnn_deterministic",
}


class Settings:
    """The settings of the thread that runs the first backward passes."""

    name = "settings"

    def __init__(self, passes: Passes) -> None:
        """``passes`` says when to look; it is left by its owner."""
        self._passes = passes
        self._threads = Facts(THREADS)
        self._autograd = Facts(AUTOGRAD)
        self._autocast: Replaced | None = None
        self._entered = 0
        #: Device, type and whether it was on; a dictionary keeps the order.
        self._seen: dict[tuple[str, str, bool], None] = {}
        self._casts: list[dict[str, Any]] | None = None

    def attach(self) -> str:
        """Look before some passes, and until the last at autocast; return how."""
        if not self._passes.watched:
            raise RuntimeError("backward passes are not seen")
        # An unknown torch: then it is not known what autocast does.
        with contextlib.suppress(AttributeError, ImportError, LookupError, TypeError):
            from torch.amp import autocast_mode

            self._autocast = Replaced(autocast_mode.autocast, "__enter__", note=self._note)
        for number in _PASSES:
            self._passes.before(number, functools.partial(self._look_first, number == _PASSES[-1]))
        for number in _LATER:
            self._passes.before(number, self._look)
        return f"on: read before the backward passes {', '.join(map(str, _PASSES + _LATER))}"

    def detach(self) -> None:
        """Restore autocast."""
        if self._autocast is not None:
            self._autocast.restore()
            self._autocast = None

    def _note(self, args: tuple[Any, ...], keywords: dict[str, Any], result: Any) -> None:
        context = args[0]
        dtype = str(context.fast_dtype).removeprefix("torch.")
        self._seen[context.device, dtype, bool(context._enabled)] = None
        self._entered += 1
        if self._entered >= _MOST_ENTERED:
            self.detach()

    def _look_first(self, last: bool) -> None:
        if self._autocast is not None or self._seen:
            self._casts = [
                {"device": device, "dtype": dtype, "enabled": enabled}
                for device, dtype, enabled in self._seen
            ]
        self._look()
        if last:
            self.detach()

    def _look(self) -> None:
        threads = _threads()
        count, cpus = threads["num_threads"], threads["affinity"]
        self._threads.record(f"torch computes with {count} threads on {cpus} CPUs", threads)
        autograd = _answers(_OF_AUTOGRAD) | {"autocast": self._casts}
        self._autograd.record(f"tensors are of {autograd['default_dtype']} by default", autograd)


def _answers(questions: dict[str, str]) -> dict[str, Any]:
    """Return what functions of torch say; None where this torch has none or it does not answer."""
    import torch

    found: dict[str, Any] = {}
    for name, path in questions.items():
        answer: Any = None
        with contextlib.suppress(Exception):
            answer = functools.reduce(getattr, path.split("."), torch)()
        known = answer is None or isinstance(answer, (bool, int, str))
        found[name] = answer if known else str(answer).removeprefix("torch.")
    return found


def _threads() -> dict[str, Any]:
    has_mask = hasattr(os, "sched_getaffinity")
    return _answers(_OF_THREADS) | {
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
        "mkl_num_threads": os.environ.get("MKL_NUM_THREADS"),
        "cpus": os.cpu_count(),
        "affinity": len(os.sched_getaffinity(0)) if has_mask else None,
        "local_world_size": os.environ.get("LOCAL_WORLD_SIZE"),
    }
