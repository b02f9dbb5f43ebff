"""When to begin recording the GPU: right before torch initialises CUDA.

Not earlier: initialising the driver settles which devices the process sees, and the job may still
set CUDA_VISIBLE_DEVICES. Not later: what is traced from before the first context costs least.

Tests: tests/gpu/test_handover.py.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from haiprof import _core
from haiprof.capture.after_import import AfterImport, imported
from haiprof.capture.hooks.graphs import GraphReplays
from haiprof.common import threads
from haiprof.options import Options

Report = Callable[[str, str], None]

_KERNEL_LOSSES: Final = {
    "dropped": "records that CUPTI had no buffer for",
    "foreign_buffers": "buffers of another user of CUPTI",
    "timeless": "records that CUPTI could not time",
    "clockless": "records with timestamps of no known clock",
    "damaged_buffers": "buffers that could not be read to their end",
}
_SPAN_LOSSES: Final = {
    "boundaries_exhausted": "boundaries without a free CUDA event",
    "spans_apart": "intervals that ended on another stream than they began on",
    "spans_unresolved": "intervals the GPU had not finished",
}
_SPANS_LEFT_OUT: Final = {
    "boundaries_left_out": "ends of phases to keep the cost down",
    "boundaries_capturing": "inside the capture of a graph",
    "replays_left_out": "replays of CUDA graphs to keep the cost down",
    # Such as the phase in which the job first used CUDA, or recording was stopped.
    "spans_with_one_end": "with an event at one end only",
}

#: How long a start that was stopped meanwhile may take to end, s.
_LATE_SECONDS: Final = 1.0

_lock = threads.lock()
_attached: CudaCalls | None = None


class CudaCalls:
    """``torch.cuda``'s initialisation, and recording from there on."""

    def __init__(self, report: Report, options: Options) -> None:
        """Attach now, or right after ``torch.cuda`` has been imported."""
        self._report = report
        self._options = options
        self._waiting: AfterImport | None = None
        self._replays: GraphReplays | None = None
        self._module: ModuleType | None = None
        self._original: Any = None
        self._wrapped: Any = None
        self._begun = self._detached = False
        self._before: dict[str, int] = {}
        then = self._wrap
        if _core.gpu_driver_initialised():
            self._begin()
            then = self._use
        module = imported("torch.cuda")
        if module is not None:
            then(module)
        else:
            self._waiting = AfterImport("torch.cuda", then)

    def _wrap(self, module: ModuleType) -> None:
        self._waiting = None
        original = getattr(module, "_lazy_init", None)
        if original is None:
            self._report("hook", "the GPU is not recorded: this torch.cuda has no _lazy_init")
            return

        def _lazy_init() -> Any:
            # Once is enough, and later readers of the function should not find ours.
            self._restore()
            with contextlib.suppress(Exception):  # the job must not notice
                self._use(module)
                self._begin()
            return original()

        self._module, self._original, self._wrapped = module, original, _lazy_init
        module._lazy_init = _lazy_init  # type: ignore[attr-defined]

    def _use(self, module: ModuleType) -> None:
        """Find what is timed on torch's current stream; a torch without CUDA has none."""
        self._waiting = None
        query = getattr(sys.modules.get("torch._C"), "_cuda_getCurrentRawStream", None)
        if query is None:
            return
        _core.gpu_set_stream_query(query)
        try:
            self._replays = GraphReplays(module.CUDAGraph)
        except Exception as error:
            self._report("hook", f"replays of CUDA graphs are not timed: {error!r}")

    def _restore(self) -> None:
        if self._module is not None and self._module._lazy_init is self._wrapped:
            self._module._lazy_init = self._original  # type: ignore[attr-defined]
        # Ours refers to this object.
        self._module = self._original = self._wrapped = None

    def _begin(self) -> None:
        if self._begun or not _core.ready_for_event():
            return
        self._begun = True
        self._before = _core.gpu_counts()
        try:
            shared, in_use = torch_profiler()
            refused = _core.gpu_start(
                ":".join(libcupti_folders()),
                kernels=self._options.kernels,
                budget=self._options.budget,
                period=self._options.kernels_period,
                graph_kernels=self._options.graph_kernels,
                shared=shared,
                in_use=in_use,
            )
        except Exception as error:  # torch is about to use CUDA, and must not notice
            refused = (repr(error), "report this as a bug of haiprof")
        if self._detached:  # by another thread meanwhile, which found nothing to stop
            _core.gpu_stop(_LATE_SECONDS)
        elif refused is not None:
            reason, fix = refused
            if not _core.gpu_collecting():
                what = "the GPU is"
            elif self._options.kernels != "off" and not _core.gpu_tracing():
                what = "kernels are"
            else:
                what = "phases on the GPU are"
            self._report("hook", f"{what} not recorded: {reason}; {fix}")

    def detach(self, seconds: float) -> None:
        """Stop, take over the remaining records, and restore torch's function."""
        if self._waiting is not None:
            self._waiting.cancel()
        self._restore()
        if self._replays is not None:
            self._replays.restore()
        self._begun = self._detached = True
        if not _core.gpu_collecting():
            return
        _core.gpu_stop(seconds)
        counts = {what: n - self._before[what] for what, n in _core.gpu_counts().items()}
        if self._options.kernels != "off":
            self._report(
                "gpu",
                f"{counts['kernels']} kernels and {counts['others']} other GPU activities; taking "
                f"them over took {counts['thread_ns'] / 1e6:.1f} ms of CPU time",
            )
        timed, left_out = counts["device_spans"], _listed(counts, _SPANS_LEFT_OUT)
        if timed or left_out:
            rest = f"; left out: {left_out}" if left_out else ""
            self._report("gpu", f"{timed} intervals timed on the GPU{rest}")
        for what, causes in (("activity", _KERNEL_LOSSES), ("intervals", _SPAN_LOSSES)):
            if lost := _listed(counts, causes):
                self._report("lost", f"GPU {what} lost: {lost}")


def _listed(counts: Mapping[str, int], causes: Mapping[str, str]) -> str:
    return ", ".join(f"{counts[cause]} {text}" for cause, text in causes.items() if counts[cause])


def torch_profiler() -> tuple[bool, bool]:
    """Return whether torch.profiler records GPU activity when asked to, and whether it may now."""
    torch = imported("torch")
    if torch is None or getattr(torch.version, "cuda", None) is None:
        return False, False
    shared = torch.profiler.ProfilerActivity.CUDA in torch.profiler.supported_activities()
    # The first is this thread's, the second everybody's, but not every torch has it.
    profiling = torch._C._autograd._profiler_enabled()
    return shared, profiling or getattr(torch.autograd.profiler, "_is_profiler_enabled", False)


def _after_fork() -> None:
    global _lock
    _lock = threads.lock()  # the parent's may have been locked by a thread that is not here


os.register_at_fork(after_in_child=_after_fork)


def libcupti_folders() -> list[str]:
    """Return where the packages that come with torch have put a libcupti."""
    import importlib.util

    found = []
    for package in ("nvidia.cu13", "nvidia.cuda_cupti"):
        try:
            spec = importlib.util.find_spec(package)
        except (ImportError, ValueError, AttributeError):
            continue
        for place in (spec.submodule_search_locations or []) if spec is not None else []:
            if (Path(place) / "lib").is_dir():
                found.append(str(Path(place) / "lib"))
    return found


def install(report: Report, options: Options) -> None:
    """Record the GPU from the first use of CUDA on. Idempotent. Never raises.

    Args:
        report: called with the kind of an event and its text.
        options: which kernels, how often, at what cost; phases, ranges and devices always.
    """
    global _attached
    with _lock:
        if _attached is None:
            try:
                _attached = CudaCalls(report, options)
            except Exception as error:
                report("hook", f"the GPU is not recorded: {error!r}")


def uninstall(seconds: float) -> None:
    """Stop it; wait up to ``seconds`` for what CUPTI still has. Idempotent. Never raises."""
    global _attached
    with _lock:
        attached, _attached = _attached, None
    if attached is not None:
        attached.detach(seconds)
