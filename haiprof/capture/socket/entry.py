"""What runs first and last of haiprof in a process that it was brought into."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, Final

from haiprof.capture.bundle import bundled
from haiprof.capture.yielding import gently

#: What is answered to who wants to record this process: that began, or another recording goes on.
BEGAN: Final = "ok"
RECORDED: Final = "recorded"
#: Bytes that are kept free for the answer.
ANSWER_BYTES: Final = 4096


def begin(
    given: dict[str, Any], told: str, python: tuple[str, list[str]] | None, modules: str = ""
) -> None:
    """Begin to record, on a thread of its own. Never raises.

    Args:
        given: options, as of ``haiprof.start``.
        told: the file in which whoever attached waits for ``BEGAN``, ``RECORDED`` or what is in the
            way. It goes when nobody waits any more: nothing is recorded then.
        python: of who brought haiprof here, as for ``haiprof.recorder.launch.brought_by``; None:
            this Python has its own.
        modules: a file with what is to be imported (:mod:`haiprof.capture.bundle`); empty: each
            module is read from its own.
    """
    try:
        with gently(), bundled(modules):
            if python is not None:
                from haiprof.recorder import launch

                launch.brought_by(*python)
            line = _begun(given, told)
    except BaseException as error:
        line = f"{type(error).__name__}: {error}"
    if not _tell(told, line) and line == BEGAN:
        with contextlib.suppress(BaseException):
            _leave()


def end(told: str) -> None:
    """End the recording and leave, where the socket cannot be asked to. Never raises.

    Args:
        told: the file in which whoever attached waits for ``ok`` or for what is in the way.
    """
    try:
        _leave()
        line = "ok"
    except BaseException as error:
        line = f"{type(error).__name__}: {error}"
    _tell(told, line)


def _begun(given: dict[str, Any], told: str) -> str:
    from haiprof.capture.session import recording
    from haiprof.capture.stderr import overheard

    if not Path(told).exists():  # importing took too long
        return ""
    with overheard() as lines:
        active, began = recording.start_beside_imports(**given)
        if not active.recording and not active.warming_up and not began:
            active.open()
    if not active.recording and not active.warming_up:
        return lines[-1] if lines else "its stderr says why"
    if began:
        return BEGAN
    from haiprof.capture.socket import requests, server

    server.open_socket(requests.answer)
    return RECORDED


def _leave() -> None:
    from haiprof.capture.session import recording
    from haiprof.capture.socket import server

    recording.stop()
    server.close_socket()


def _tell(told: str, line: str) -> bool:
    """Answer; False: nobody waits for it any more."""
    try:
        # Not made anew, nor emptied: the room that is kept for it may be the last on the disk.
        with Path(told).open("r+", encoding="utf-8") as file:
            file.write(line[: ANSWER_BYTES // 4])
    except FileNotFoundError:
        return False
    except OSError:
        pass
    return True
