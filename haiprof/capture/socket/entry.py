"""The first and last code of haiprof that runs in a process that it was injected into."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, Final

from haiprof.capture.bundle import bundled
from haiprof.capture.yielding import yielding

#: Answers to an attach: the recording began, or another one is under way.
BEGAN: Final = "ok"
RECORDED: Final = "recorded"
#: Bytes that are reserved for the answer.
ANSWER_BYTES: Final = 4096


def begin(
    options: dict[str, Any], answer: str, python: tuple[str, list[str]] | None, modules: str = ""
) -> None:
    """Begin to record, on a thread of its own. Never raises.

    Args:
        options: options, as of ``haiprof.start``.
        answer: the file in which the injector waits for ``BEGAN``, ``RECORDED`` or an error. It is
            removed when nobody waits any more: nothing is recorded then.
        python: the injector's, for ``haiprof.recorder.launch.use_python_of_injector``; None: this
            Python has its own.
        modules: a bundle of the modules (:mod:`haiprof.capture.bundle`); empty: each module is
            read from its own file.
    """
    try:
        with yielding(), bundled(modules):
            if python is not None:
                from haiprof.recorder import launch

                launch.use_python_of_injector(*python)
            line = _begun(options, answer)
    except BaseException as error:
        line = f"{type(error).__name__}: {error}"
    if not _write_answer(answer, line) and line == BEGAN:
        with contextlib.suppress(BaseException):
            _leave()


def end(answer: str) -> None:
    """End the recording and leave, if the socket cannot be used for that. Never raises.

    Args:
        answer: the file in which the injector waits for ``ok`` or an error.
    """
    try:
        _leave()
        line = "ok"
    except BaseException as error:
        line = f"{type(error).__name__}: {error}"
    _write_answer(answer, line)


def _begun(options: dict[str, Any], answer: str) -> str:
    from haiprof.capture.session import recording
    from haiprof.capture.stderr import captured_lines

    if not Path(answer).exists():  # importing took too long
        return ""
    with captured_lines() as lines:
        active, began = recording.start_beside_imports(**options)
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


def _write_answer(answer: str, line: str) -> bool:
    """Answer; False: nobody waits for it any more."""
    try:
        # Neither created nor truncated: its reserved space may be the last on the disk.
        with Path(answer).open("r+", encoding="utf-8") as file:
            file.write(line[: ANSWER_BYTES // 4])
    except FileNotFoundError:
        return False
    except OSError:
        pass
    return True
