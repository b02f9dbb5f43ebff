"""torch.profiler as a deep trace uses it, and its other users, to which it gives way.

Tests: tests/capture/trace/test_ends.py.
"""

from __future__ import annotations

import functools
import importlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from haiprof.capture.trace.plan import Plan

#: The functions through which torch.profiler and torch.autograd.profiler begin and end.
_BEGINS: Final = ("_prepare_profiler", "_enable_profiler")
_ENDS: Final = ("_disable_profiler",)


class Profiler:
    """One session of torch.profiler. Its thread is the one that starts and stops it."""

    def __init__(self, plan: Plan) -> None:
        """Choose what is recorded. Nothing runs yet."""
        import torch.profiler

        self._torch = torch
        contents = plan.contents
        self._profile = torch.profiler.profile(
            activities=activities(torch),
            record_shapes="shapes" in contents,
            profile_memory="memory" in contents,
            with_stack="stacks" in contents or "callstacks" in contents,
            with_modules="modules" in contents,
            experimental_config=_verbose() if "callstacks" in contents else None,
        )
        self._step: Any = None

    def prepare(self) -> None:
        """Let it warm up: what begins to record on a GPU is not timed yet."""
        self._profile.prepare_trace()

    def start(self) -> None:
        """Record from here on."""
        self._profile.start_trace()

    def begin_step(self, number: int) -> None:
        """Begin the annotation that tools take for a step."""
        self._step = self._torch.profiler.record_function(f"ProfilerStep#{number}")
        self._step.__enter__()

    def end_step(self) -> None:
        """End it."""
        step, self._step = self._step, None
        if step is not None:
            step.__exit__(None, None, None)

    def add_metadata(self, members: Mapping[str, Any]) -> None:
        """Add members to the file's head. Only while it records."""
        for name, value in members.items():
            # json.dumps() puts a blank behind the colon: some tools look for `"rank": 0`.
            self._profile.add_metadata_json(name, json.dumps(value))

    def knows_its_rank(self) -> bool:
        """Whether torch itself writes the rank into the file."""
        distributed = getattr(self._torch, "distributed", None)
        return bool(
            distributed is not None
            and distributed.is_available()
            and distributed.is_initialized()
        )  # fmt: skip

    def stop(self) -> None:
        """Record no more. Takes long: torch sorts and links all events."""
        self._profile.stop_trace()

    def records(self) -> bool:
        """Whether this thread still records: if somebody else ended it there is nothing to save."""
        return bool(self._torch._C._autograd._profiler_enabled())

    def save(self, path: Path) -> None:
        """Write the file, uncompressed."""
        self._profile.export_chrome_trace(str(path))

    def discard(self) -> None:
        """Free the events, which something of torch may refer to in circles."""
        inner = getattr(self._profile, "profiler", None)
        if inner is not None:
            inner.kineto_results = None


def _verbose() -> Any:
    try:
        from torch._C._profiler import _ExperimentalConfig

        return _ExperimentalConfig(verbose=True)
    except (ImportError, TypeError):  # a torch that always writes call stacks
        return None


def activities(torch: ModuleType) -> set[Any]:
    """Return the CPU and the devices that the process uses: asking for one initialises it."""
    return {
        activity
        for activity in torch.profiler.supported_activities()
        if activity.name == "CPU" or _in_use(torch, activity.name.lower())
    }


def _in_use(torch: ModuleType, device: str) -> bool:
    module = getattr(torch, device, None)
    if device == "privateuse1":
        module = getattr(torch, torch._C._get_privateuse1_backend_name(), None)
    initialised = getattr(module, "is_initialized", None) or getattr(module, "is_available", None)
    return bool(initialised is not None and initialised())


class OtherUsers:
    """Watches for other profilers, so that the job's own always takes precedence."""

    def __init__(self, give_way: Callable[[], None]) -> None:
        """Call ``give_way()`` right before another one begins."""
        self._module: Any = importlib.import_module("torch.autograd.profiler")
        self._give_way = give_way
        self._recording = False
        self._ours = False
        self._replaced: dict[str, tuple[Any, Any]] = {}
        for names, watched in ((_BEGINS, self._begins), (_ENDS, self._ends)):
            for name in names:
                original = getattr(self._module, name, None)
                if original is not None:
                    self._replace(name, original, watched)

    def _replace(self, name: str, original: Any, watched: Callable[[], None]) -> None:
        @functools.wraps(original)
        def with_notice(*arguments: Any, **keywords: Any) -> Any:
            if not self._ours:
                watched()
            return original(*arguments, **keywords)

        self._replaced[name] = (original, with_notice)
        setattr(self._module, name, with_notice)

    def _begins(self) -> None:
        self._recording = True
        self._give_way()

    def _ends(self) -> None:
        self._recording = False

    def __enter__(self) -> None:
        """What happens inside is ours."""
        self._ours = True

    def __exit__(self, *_: object) -> None:
        self._ours = False

    @property
    def recording(self) -> bool:
        """Whether another one records now, or is about to."""
        import torch

        return (
            self._recording
            or bool(getattr(self._module, "_is_profiler_enabled", False))
            or bool(torch._C._autograd._profiler_enabled())
        )

    def leave(self) -> None:
        """Watch no longer."""
        for name, (original, ours) in self._replaced.items():
            if getattr(self._module, name, None) is ours:
                setattr(self._module, name, original)
        self._replaced.clear()
