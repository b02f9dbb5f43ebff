"""Handles the requests of the control socket, on its thread."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from haiprof import __version__, _core
from haiprof.capture.after_import import imported
from haiprof.capture.session import recording
from haiprof.capture.socket import server
from haiprof.capture.stderr import captured_lines
from haiprof.common.places import node_name
from haiprof.common.protocol import Refused
from haiprof.options import HOST_RECORDERS, OPTIONS, Options
from haiprof.recorder.election import recorder_pid

#: The options that `set` can change.
_OF_KERNELS: Final = ("kernels", "kernels_period", "graphs", "budget")
_OF_PACE: Final = (
    "sample_hz",
    "drain_hz",
    "stack_hz",
    *(f"{name}_interval" for name in HOST_RECORDERS),
)
CHANGEABLE: Final = ("time", *_OF_KERNELS, *_OF_PACE)

#: The arguments of `trace`, and the options that they are checked as.
_TRACE: Final = {
    "steps": "trace_steps",
    "seconds": "trace_seconds",
    "warmup": "trace_warmup",
    "mib": "trace_mib",
    "with": "trace_with",
}

_FLUSH_SECONDS: Final = 10.0


def answer(request: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Carry out a request, and return its result (docs/control.md).

    Raises:
        Refused: there is no such request, or the process cannot or must not do it now.
    """
    handler = _REQUESTS.get(request)
    if handler is None:
        raise Refused(f"there is no request {request!r:.80}; there are {', '.join(_REQUESTS)}")
    return handler(arguments)


# -- the requests ---------------------------------------------------------------------------------


def _status(arguments: Mapping[str, Any]) -> dict[str, Any]:
    _known(arguments, ())
    active = recording.active()
    status: dict[str, Any] = {
        "state": _state(active),
        "pid": os.getpid(),
        "uid": os.getuid(),
        "host": os.uname().nodename,
        "node": node_name(),
        "script": sys.argv[0] if sys.argv else "",
        "version": __version__,
        "python": platform.python_version(),
        "trace": _trace_state(),
        "brought": "haiprof.capture.socket.entry" in sys.modules,
    }
    if active is None:
        return status
    place = active.place
    folder = active.folder() if active.recording else None
    return status | {
        "rank": place.rank,
        "local_rank": place.local_rank,
        "world_size": place.world_size,
        "attempt": place.attempt,
        "run": active.run,
        "run_dir": str(active.run_dir),
        "folder": None if folder is None else str(folder),
        "ring": None if active.ring is None else str(active.ring),
        "recorder": None if active.ring is None else recorder_pid(active.ring.parent),
        "since_ns": active.since_ns if active.recording else None,
        "begins_in": active.begins_in,
        "ends_in": active.ends_in,
        "step": _core.current_step() if active.recording else None,
        "lost": sum(_core.losses().values()),
        "options": {k: _json(v) for k, v in active.options._asdict().items()},
    }


def _start(arguments: Mapping[str, Any]) -> dict[str, Any]:
    given = _checked(arguments)
    active = recording.active()
    waited = _state(active) == "armed"
    new = False
    with captured_lines() as lines:
        if active is None:
            active, new = recording.start_beside_imports(**given)
        ignored = [] if new else _start_of_active(active, given)
    if _state(recording.active()) not in ("recording", "warming up"):
        raise Refused(lines[-1] if lines else "nothing can be recorded here; its stderr says why")
    return _status({}) | {"began": new or waited, "ignored": ignored}


def _start_of_active(active: recording.Session, given: Mapping[str, Any]) -> list[str]:
    """Change the existing recording as requested; return the options that cannot be applied."""
    if "time" in given:
        active.end_after(given["time"])
    if not active.recording and not active.warming_up:
        active.open()
    of_trace = {name: given[name] for name in _TRACE.values() if name in given}
    if given.get("trace"):
        _begin_trace(active, of_trace)
    known = active.options._asdict()
    return [
        name
        for name, value in given.items()
        if name != "trace" and name not in of_trace and str(value) != str(known[name])
    ]


def _stop(arguments: Mapping[str, Any]) -> dict[str, Any]:
    _known(arguments, ("leave",))
    if arguments.get("leave"):
        server.close_after_answer()
    active = recording.active()
    if active is None:
        return {"stopped": False, "state": "idle"}
    recording.stop()
    ring = active.ring
    return {
        "stopped": True,
        "state": _state(recording.active()),
        "run": active.run,
        "run_dir": str(active.run_dir),
        "rank": active.place.rank,
        "closed": ring is None or not ring.exists(),
    }


def _flush(arguments: Mapping[str, Any]) -> dict[str, Any]:
    _known(arguments, ("seconds",))
    seconds = arguments.get("seconds", _FLUSH_SECONDS)
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds <= 600:
        raise Refused("seconds must be a number, above 0 and at most 600")
    active = recording.active()
    if active is None or not active.recording:
        raise Refused("nothing is recorded here, so there is nothing to flush")
    with captured_lines() as lines:
        files = active.flush(float(seconds))
    if lines:
        raise Refused(lines[-1])
    return {
        "run": active.run,
        "run_dir": str(active.run_dir),
        "rank": active.place.rank,
        "folder": str(files[0].parent) if files else None,
        "files": len(files),
    }


def _stacks(arguments: Mapping[str, Any]) -> dict[str, Any]:
    _known(arguments, ("hz", "seconds"))
    hz, seconds = arguments.get("hz"), arguments.get("seconds")
    wrong = OPTIONS["stack_hz"].check(hz)
    if wrong is not None or not hz:
        raise Refused(f"hz={hz!r:.80} {wrong or 'must be above 0'}")
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds <= 600:
        raise Refused("seconds must be a number, above 0 and at most 600")
    active = recording.active()
    if active is None or not active.recording:
        raise Refused("nothing is recorded here, so no stacks are sampled")
    active.sample_stacks(float(hz), float(seconds))
    return {"run": active.run, "run_dir": str(active.run_dir)}


def _kernels(arguments: Mapping[str, Any]) -> dict[str, Any]:
    _known(arguments, ())
    active = recording.active()
    if active is None or not active.recording:
        raise Refused("nothing is recorded here, so no kernels are")
    if active.options.kernels != "windows" or not _core.gpu_tracing():
        raise Refused("kernels are not recorded in windows here")
    _core.gpu_hasten_window()
    return {"run": active.run, "run_dir": str(active.run_dir)}


def _trace(arguments: Mapping[str, Any]) -> dict[str, Any]:
    _known(arguments, tuple(_TRACE))
    given = _checked({_TRACE[name]: value for name, value in arguments.items()})
    active = recording.active()
    if active is None or not active.recording:
        raise Refused("nothing is recorded here; start a recording first, with trace=true")
    began = _begin_trace(active, given)
    return {"run": active.run, "began": began, "trace": _trace_state()}


def _set(arguments: Mapping[str, Any]) -> dict[str, Any]:
    given = _checked(arguments)
    active = recording.active()
    if active is None:
        raise Refused("nothing is recorded here; give options to the start")
    fixed = [name for name in given if name not in CHANGEABLE]
    if fixed:
        raise Refused(
            f"{', '.join(fixed)} cannot change during a recording: stop, and start with it; "
            f"changeable are {', '.join(CHANGEABLE)}"
        )
    if "time" in given:
        active.end_after(given["time"])
    if kernels := {name: value for name, value in given.items() if name in _OF_KERNELS}:
        active.record_kernels(**kernels)
    if pace := {name: value for name, value in given.items() if name in _OF_PACE}:
        active.change_pace(**pace)
    return {"run": active.run, "changed": {n: _json(v) for n, v in given.items()}}


_REQUESTS: Final[dict[str, Callable[[dict[str, Any]], dict[str, Any]]]] = {
    "status": _status,
    "start": _start,
    "stop": _stop,
    "flush": _flush,
    "stacks": _stacks,
    "kernels": _kernels,
    "trace": _trace,
    "set": _set,
}


# -- what they share ------------------------------------------------------------------------------


def _state(active: recording.Session | None) -> str:
    if active is None:
        return "idle"
    if active.recording:
        return "recording"
    return "warming up" if active.warming_up else "armed"


def _known(arguments: Mapping[str, Any], names: tuple[str, ...]) -> None:
    unknown = [f"{name:.80}" for name in arguments if name not in names]
    if unknown:
        known = f"there are {', '.join(names)}" if names else "there are none"
        raise Refused(f"there is no argument {', '.join(unknown)}; {known}")


def _checked(given: Mapping[str, Any]) -> dict[str, Any]:
    """Check options strictly; a start in the program would use defaults for invalid ones."""
    _known(given, tuple(OPTIONS))
    for name, value in given.items():
        wrong = OPTIONS[name].check(value)
        if wrong is not None:
            raise Refused(f"{name}={value!r:.80} {wrong}")
    return dict(given)


def _begin_trace(active: recording.Session, given: Mapping[str, Any]) -> bool:
    """Make a deep trace of the thread that trains; False where one is being made."""
    from haiprof.capture import trace as deep_trace
    from haiprof.capture.trace.plan import plan_of

    length = {"trace_steps": 0, "trace_seconds": 0.0, "trace_warmup": 0.0}
    options: Options = active.options._replace(**(length | {"time": 0.0} | dict(given)))
    if not options.traces_rank(active.place.rank):
        raise Refused(f"rank {active.place.rank} is not in trace_ranks ({options.trace_ranks})")
    before = deep_trace.current()
    live = before is not None and before.live
    deep_trace.trace_training(plan_of(options))
    return not live


def _trace_state() -> dict[str, Any] | None:
    deep_trace = imported("haiprof.capture.trace")
    trace = None if deep_trace is None else deep_trace.current()
    if trace is None:
        return None
    return {
        "state": trace.state,
        "why": trace.why,
        "file": None if trace.file is None else str(trace.file),
    }


def _json(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value
