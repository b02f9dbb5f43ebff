"""What the job itself knows about its end: uncaught exceptions.

They are recorded before whatever prints them is called, and nothing is printed or changed here. A
hook that the job puts in place of ours wins: Python keeps the exception until the end anyway.

Tests: tests/cli/test_ended.py.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final

#: Characters of a message, and of the last lines of a traceback, that are kept.
_MESSAGE: Final = 1000
_TRACEBACK: Final = 4096
_OF_CAUSE: Final = 1500
#: Characters of a traceback in a message that are looked at.
_LONGEST: Final = 65536
#: Characters of an exception, and of what led to it, in a text that has both.
_AFTER: Final = 200
_FRAMES: Final = 8
#: In messages that quote the traceback of another process.
_QUOTED: Final = "Traceback (most recent call last):"
#: Frames of a traceback, and causes of an exception, that are looked at.
_DEEPEST: Final = 10_000
_CAUSES: Final = 16
#: At most this many exceptions are recorded: some programs print many and continue.
_MOST: Final = 20

#: Called with the text of an exception, its attributes as JSON, and whether it is worth a ring.
Report = Callable[[str, str, bool], None]
_report: Report | None = None
_recorded = 0
#: id() of the newest that was recorded as the end.
_newest: int | None = None
_previous: Callable[..., Any] | None = None
_previous_of_threads: Callable[..., Any] | None = None


def install(report: Report) -> None:
    """Record exceptions from now on; another call replaces ``report``."""
    global _report, _previous, _previous_of_threads
    if _report is None:
        if callable(sys.excepthook):
            _previous, sys.excepthook = sys.excepthook, _hook
        if callable(threading.excepthook):
            _previous_of_threads, threading.excepthook = threading.excepthook, _hook_of_threads
    _report = report


def uninstall() -> None:
    """Stop recording. If the job has wrapped our hook, the hook stays but does nothing."""
    global _report
    _report = None
    if sys.excepthook is _hook and _previous is not None:
        sys.excepthook = _previous
    if threading.excepthook is _hook_of_threads and _previous_of_threads is not None:
        threading.excepthook = _previous_of_threads


def at_exit() -> None:
    """As Python ends, record the exception that ended it unless a hook of ours has."""
    # An interactive prompt keeps its newest exception there, too, but ends otherwise.
    error = getattr(sys, "last_value", None)
    if isinstance(error, BaseException) and not hasattr(sys, "ps1") and id(error) != _newest:
        _record(error, ends=True)


def at_end_of_worker() -> None:
    """Record what ends a child of multiprocessing, which prints it without any hook."""
    error = sys.exc_info()[1]
    if isinstance(error, SystemExit):
        # torch.multiprocessing hands the exception to the parent, and exits.
        error = error.__context__ if error.code not in (None, 0) else None
    if error is not None and id(error) != _newest:
        _record(error, ends=True)


def record(error: BaseException) -> None:
    """Record an exception that ends this process, and that a framework keeps from every hook."""
    if id(error) != _newest:
        _record(error, ends=True)


def _hook(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> Any:
    global _newest
    if isinstance(error, BaseException) and _recorded < _MOST:
        _record(error, ends=True, where=where)
    else:
        _newest = None  # the last of them is left to at_exit()
    before = _previous
    return sys.__excepthook__(kind, error, where) if before is None else before(kind, error, where)


def _hook_of_threads(arguments: threading.ExceptHookArgs) -> Any:
    error = arguments.exc_value
    if error is not None and not isinstance(error, SystemExit) and _recorded < _MOST:
        _record(error, ends=False, thread=arguments.thread)
    before = _previous_of_threads
    return threading.__excepthook__(arguments) if before is None else before(arguments)


def _record(
    error: BaseException,
    *,
    ends: bool,
    where: TracebackType | None = None,
    thread: threading.Thread | None = None,
) -> None:
    """Record an exception; failures here must not reach the job."""
    global _recorded, _newest
    report = _report
    if report is None:
        return
    _recorded += 1
    if ends:
        _newest = id(error)
    with contextlib.suppress(BaseException):
        if isinstance(error, KeyboardInterrupt):
            # Importing or evaluating anything makes Python forget to end by SIGINT.
            report(_name(type(error)), "{}", False)
            return
        import json

        text, attributes = _described(error, where or error.__traceback__)
        if not ends:
            attributes["thread"] = str(getattr(thread, "name", None))[:100]
        report(text, json.dumps(attributes), ends)


def _described(error: BaseException, where: TracebackType | None) -> tuple[str, dict[str, Any]]:
    kind = _name(type(error))
    message = _in_a_line(_message(error))
    text = f"{kind}: {message}" if message else kind
    first = _first_cause(error)
    if first is not error:
        reason = _in_a_line(_message(first))
        # Both must fit in a line, of which the end is cut.
        text = f"{text[:_AFTER]}, after {_name(type(first))}: {reason[:_AFTER]}"
    file, line, function = _place_of_another(error) or _place(where)
    attributes: dict[str, Any] = {"type": kind, "traceback": _last_lines(error, where)}
    if file:
        attributes.update(file=_clean(file), line=line, function=_clean(function))
    return text, attributes


def _name(kind: type[BaseException]) -> str:
    module = kind.__module__
    name = kind.__qualname__
    return _clean(name if module in ("builtins", "__main__") else f"{module}.{name}")[:200]


def _message(error: BaseException) -> str:
    try:
        message = str(error)
    except Exception:  # as the traceback shows it
        return "<exception str() failed>"
    if len(message) > _MESSAGE and _QUOTED in message:  # whose last line says what happened
        half = _MESSAGE // 2
        return f"{_clean(message[:half])}…{_clean(message[-half:])}"
    return _clean(message[:_MESSAGE]) + ("…" if len(message) > _MESSAGE else "")


def _in_a_line(message: str) -> str:
    """Return a message as one line; of a traceback that it quotes only the last line."""
    before, quotes, traceback = message.partition(_QUOTED)
    if quotes:
        before = before.rpartition("\n")[0] if not before.endswith("\n") else before
        last = traceback.rstrip().rpartition("\n")[2]
        message = f"{before.rstrip().rstrip('.:')}: {last}" if before.strip() else last
    return " ".join(message.split())


def _clean(text: str) -> str:
    """Return text that can be encoded."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _is_library(file: str) -> bool:
    if "site-packages" in file or "dist-packages" in file or file.startswith("<"):
        return True
    return file.startswith(os.path.dirname(os.__file__) + os.sep)


def _place_of_another(error: BaseException) -> tuple[str, int, str] | None:
    """Return the same as :func:`_place` of a traceback that a message quotes, if it does.

    So does what a DataLoader raises for its worker, and torch.multiprocessing for its child.
    """
    try:
        _, quotes, traceback = str(error).partition(_QUOTED)
    except Exception:
        return None
    own = None
    if quotes:
        import re

        # Whoever writes megabytes into a message ends, too.
        text = traceback[-_LONGEST:]
        frames = re.findall(r'^ *File "(.+)", line (\d{1,9}), in (.+)$', text, re.MULTILINE)
        own = next((each for each in reversed(frames) if not _is_library(each[0])), None)
    return None if own is None else (own[0], int(own[1]), own[2])


def _place(where: TracebackType | None) -> tuple[str, int, str]:
    """Return file, line and function of the innermost frame of the job's own code."""
    innermost = own = None
    for _ in range(_DEEPEST):
        if where is None:
            break
        innermost = where
        if not _is_library(where.tb_frame.f_code.co_filename):
            own = where
        where = where.tb_next
    found = own or innermost
    if found is None:
        return "", 0, ""
    code = found.tb_frame.f_code
    return code.co_filename, found.tb_lineno, code.co_name


def _first_cause(error: BaseException) -> BaseException:
    """Return the exception that led to this one, or itself."""
    first, seen = error, {id(error)}
    for _ in range(_CAUSES):
        cause = first.__cause__
        if cause is None and not first.__suppress_context__:
            cause = first.__context__
        if cause is None or id(cause) in seen:
            break
        seen.add(id(cause))
        first = cause
    return first


def _last_lines(error: BaseException, where: TracebackType | None) -> str:
    """Return the innermost frames of an exception, those of its first cause before."""
    first = _first_cause(error)
    if first is error:
        return _formatted(error, where)[-_TRACEBACK:]
    between = "\nwhich led to\n"
    cause_text = _formatted(first, first.__traceback__)[-_OF_CAUSE:]
    room = _TRACEBACK - len(cause_text) - len(between)
    return cause_text + between + _formatted(error, where)[-room:]


def _formatted(error: BaseException, where: TracebackType | None) -> str:
    import traceback

    frames = "".join(traceback.format_tb(where, limit=-_FRAMES))
    return f"{_clean(frames)}{_name(type(error))}: {_message(error)}"
