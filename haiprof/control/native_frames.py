"""Stacks with the frames of C and C++ between those of Python, by pystack.

To unwind native frames a process has to be stopped, for a tenth of a second to some seconds. That
is done by a program of its own, which takes hundreds of MB for the symbols of torch: when it is
killed, because it takes too long, the kernel lets the process go on.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from typing import Any, Final

#: How long one process may take, s: the symbols of torch are half a GB.
SECONDS: Final = 20.0
_UNKNOWN: Final = ("", "???")


def missing() -> str:
    """Return what to do before native frames can be read; empty: nothing."""
    there = importlib.util.find_spec("pystack") is not None
    return "" if there else "native frames need pystack: pip install 'haiprof[stacks]'"


def native_frames(
    pid: int, seconds: float = SECONDS
) -> tuple[dict[int, list[tuple[str, str, int]]], str]:
    """Stop a process for a moment, and return the stack of each of its threads.

    Returns:
        By the thread's number in the process's own namespace its frames, the innermost first, as
        function, file and line (0: not known); and why there are none, if so.
    """
    if why := missing():
        return {}, why
    command = [sys.executable, "-P", "-m", __name__, str(pid)]
    if sys.version_info < (3, 11):
        command.remove("-P")
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return {}, f"reading its native frames took more than {seconds:g} s"
    try:
        threads = json.loads(done.stdout)
        return {
            int(number): [(str(function), str(file), int(line)) for function, file, line in frames]
            for number, frames in threads
        }, ""
    except (ValueError, TypeError):
        lines = done.stderr.strip().splitlines()
        return {}, f"pystack: {lines[-1]}" if lines else f"pystack ended with {done.returncode}"


def main() -> None:
    """Print the stacks of the process whose pid is the argument, as JSON."""
    from pystack.engine import NativeReportingMode, get_process_threads

    threads = get_process_threads(
        int(sys.argv[1]), stop_process=True, native_mode=NativeReportingMode.ALL
    )
    print(json.dumps([(thread.tid, merged(thread)) for thread in threads]))


def merged(thread: Any) -> list[tuple[str, str, int]]:
    """Return the frames of one of pystack's threads, the innermost first.

    Of the interpreter itself those are left out that only call what follows. Where pystack has not
    found each call of the interpreter, a stack has its Python frames only.
    """
    from pystack.types import NativeFrame, frame_type

    kinds = [frame_type(frame, thread.python_version) for frame in thread.native_frames]
    python = list(thread.all_frames)
    entries = sum(frame.is_entry for frame in python)
    if kinds.count(NativeFrame.FrameType.EVAL) != entries:
        return [_of_python(frame) for frame in reversed(python) if not frame.is_shim]
    found: list[tuple[str, str, int]] = []
    at = 0
    for frame, kind in zip(thread.native_frames, kinds, strict=True):
        if kind == NativeFrame.FrameType.EVAL:
            begin = at
            while at < len(python) and (at == begin or not python[at].is_entry):
                if not python[at].is_shim:
                    found.append(_of_python(python[at]))
                at += 1
        # What comes before the first Python frame has only started it.
        elif kind == NativeFrame.FrameType.OTHER and (at or not python):
            found.append(_of_native(frame))
    return found[::-1]


def _of_python(frame: Any) -> tuple[str, str, int]:
    return frame.code.scope, frame.code.filename, frame.code.location.lineno


def _of_native(frame: Any) -> tuple[str, str, int]:
    if frame.path in _UNKNOWN:
        return frame.symbol, frame.library, 0
    return frame.symbol, frame.path, frame.linenumber


if __name__ == "__main__":
    main()
