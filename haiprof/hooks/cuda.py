"""When to begin recording GPU activity: right before torch initialises CUDA.

Not earlier: initialising the driver settles which devices the process sees, and the job may still
set CUDA_VISIBLE_DEVICES. Not later: what is traced from before the first context costs least.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from haiprof import _core
from haiprof.hooks.imports import AfterImport, imported

Report = Callable[[str, str], None]

_LOSSES: Final = {
    "dropped": "records that CUPTI had no buffer for",
    "spilled_buffers": "buffers in a rush",
    "foreign_buffers": "buffers of another user of CUPTI",
    "timeless": "records that CUPTI could not time",
    "clockless": "records with a time of no clock",
    "damaged_buffers": "buffers that could not be read to their end",
}

_lock = threading.Lock()
_attached: CudaCalls | None = None


class CudaCalls:
    """``torch.cuda``'s initialisation, and recording from there on."""

    def __init__(self, report: Report) -> None:
        """Attach now, or right after ``torch.cuda`` has been imported."""
        self._report = report
        self._waiting: AfterImport | None = None
        self._module: ModuleType | None = None
        self._original: Any = None
        self._wrapped: Any = None
        self._begun = False
        self._before: dict[str, int] = {}
        if _core.gpu_driver_initialised():
            self._begin()
            return
        module = imported("torch.cuda")
        if module is not None:
            self._wrap(module)
        else:
            self._waiting = AfterImport("torch.cuda", self._wrap)

    def _wrap(self, module: ModuleType) -> None:
        self._waiting = None
        original = getattr(module, "_lazy_init", None)
        if original is None:
            self._report("hook", "kernels are not recorded: this torch.cuda has no _lazy_init")
            return

        def _lazy_init() -> Any:
            # Once is enough, and nobody who looks at the function later should find ours.
            self._restore()
            self._begin()
            return original()

        self._module, self._original, self._wrapped = module, original, _lazy_init
        module._lazy_init = _lazy_init  # type: ignore[attr-defined]

    def _restore(self) -> None:
        if self._module is not None and self._module._lazy_init is self._wrapped:
            self._module._lazy_init = self._original  # type: ignore[attr-defined]

    def _begin(self) -> None:
        if self._begun or not _core.ready():
            return
        self._begun = True
        self._before = _core.gpu_counts()
        try:
            shared, in_use = torch_profiler()
            refused = _core.gpu_start(
                ":".join(libcupti_folders()), kernels="all", shared=shared, in_use=in_use
            )
        except Exception as error:  # torch is about to use CUDA, and must not notice
            refused = (repr(error), "report this as a bug of haiprof")
        if refused is not None:
            reason, mend = refused
            self._report("hook", f"kernels are not recorded: {reason}; {mend}")

    def detach(self, seconds: float) -> None:
        """Stop, take over what is left, and give torch its function back."""
        if self._waiting is not None:
            self._waiting.cancel()
        self._restore()
        self._begun = True
        if not _core.gpu_collecting():
            return
        _core.gpu_stop(seconds)
        counts = {what: n - self._before[what] for what, n in _core.gpu_counts().items()}
        self._report(
            "gpu",
            f"{counts['kernels']} kernels and {counts['others']} other GPU activities; taking them "
            f"over took {counts['thread_ns'] / 1e6:.1f} ms of CPU time",
        )
        lost = {cause: counts[cause] for cause in _LOSSES if counts[cause]}
        if lost:
            told = ", ".join(f"{count} {_LOSSES[cause]}" for cause, count in lost.items())
            self._report("lost", f"GPU activity was lost: {told}")


def torch_profiler() -> tuple[bool, bool]:
    """Return whether torch.profiler records GPU activity when asked to, and whether it may now."""
    torch = imported("torch")
    if torch is None or getattr(torch.version, "cuda", None) is None:
        return False, False
    shared = torch.profiler.ProfilerActivity.CUDA in torch.profiler.supported_activities()
    # The first is this thread's, the second everybody's, but not every torch has it.
    profiling = torch._C._autograd._profiler_enabled()
    return shared, profiling or getattr(torch.autograd.profiler, "_is_profiler_enabled", False)


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


def install(report: Report) -> None:
    """Record GPU activity from the first use of CUDA on. Idempotent. Never raises."""
    global _attached
    with _lock:
        if _attached is None:
            try:
                _attached = CudaCalls(report)
            except Exception as error:
                report("hook", f"kernels are not recorded: {error!r}")


def uninstall(seconds: float) -> None:
    """Stop it; wait so long (s) at most for what CUPTI still has. Idempotent. Never raises."""
    global _attached
    with _lock:
        attached, _attached = _attached, None
    if attached is not None:
        attached.detach(seconds)
