"""How a process ended, from all that is known: a record, and a sentence about it.

No source counts for more than it proves: the exception that the job reported, the kernel's wait
status, the goodbye in the ring, and the kernel's kills for memory.

Tests: tests/recorder/test_ended.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from haiprof import _core, schema
from haiprof.common.printable import printable
from haiprof.recorder.arrow_stream import Batch
from haiprof.recorder.memory_kills import Verdict

_STEPS: Final = tuple(_core.CATEGORIES.index(name) for name in ("step", "inference_step"))
#: Kinds of events by which the job reports its end.
_EXCEPTION: Final = "exception"
_GOODBYE: Final = "goodbye"
_CTRL_C: Final = "KeyboardInterrupt"
#: Signals by which somebody asks a process to end.
_ASKED: Final = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
_WORDS: Final = {
    signal.SIGSEGV: "segmentation fault",
    signal.SIGBUS: "bus error",
    signal.SIGABRT: "abort",
    signal.SIGFPE: "arithmetic error",
    signal.SIGILL: "illegal instruction",
    signal.SIGINT: "Ctrl-C",
}
#: The exit code of a shell whose command a signal ended is the signal's number and this.
_SHELL: Final = 128
#: Letters of an exception that are kept.
_MOST: Final = 400


class Raised(NamedTuple):
    """What the job reported of the exception that ended it."""

    time_ns: int
    text: str
    #: File and line, as in ``train.py:41``; empty: not known.
    where: str
    #: Class, with its module unless it is built in.
    kind: str
    step: int | None


class LastWords:
    """What one process reported of its end, read from its events as they are written."""

    def __init__(self) -> None:
        """Nothing is known yet."""
        self.newest: Raised | None = None
        #: When the process announced its end, ns UTC; None: it has not.
        self.goodbye_ns: int | None = None
        #: Whether it waits for its files before it ends.
        self.waits = False

    def read(self, events: Batch) -> None:
        """Look for an exception that ends the process, and for its goodbye."""
        texts = events.column("kind").texts
        assert texts is not None
        wanted = {n: text for n, text in enumerate(texts.all) if text in (_EXCEPTION, _GOODBYE)}
        if not wanted:
            return
        for row, number in enumerate(events.numbers("kind")):
            if wanted.get(number) == _GOODBYE:
                self.goodbye_ns = events.numbers("time")[row]
                self.waits = "waits" in str(events.value("text", row) or "")
            elif number in wanted:
                values = {name: events.value(name, row) for name in _COLUMNS}
                self.newest = _raised(**values) or self.newest

    def survived(self, spans: Batch) -> None:
        """Forget an exception after which the job has made a step: it was shown, and no more."""
        if self.newest is None:
            return
        categories, starts = spans.numbers("category"), spans.numbers("start")
        begun = [
            start for category, start in zip(categories, starts, strict=True) if category in _STEPS
        ]
        if begun and max(begun) > self.newest.time_ns:
            self.newest = None


_COLUMNS: Final = ("time", "text", "step", "attributes")


def _raised(time: int, text: str | None, step: int | None, attributes: str | None) -> Raised | None:
    attributes_read: dict[str, Any] = {}
    with contextlib.suppress(ValueError, RecursionError):  # the job can have written anything
        attributes_read = json.loads(attributes or "{}")
    if not isinstance(attributes_read, dict):
        attributes_read = {}
    if "thread" in attributes_read:  # it ends a thread, not the process
        return None
    file, line = attributes_read.get("file"), attributes_read.get("line")
    where = f"{os.path.basename(file)}:{line}" if isinstance(file, str) and file else ""
    text = text or "an exception"
    kind = str(attributes_read.get("type") or text.partition(":")[0])
    return Raised(time, text, where, kind, None if step is None else step % schema.INFERENCE)


def described(
    status: int | None,
    time_ns: int,
    *,
    goodbye: bool,
    words: LastWords | None = None,
    memory: Verdict = Verdict(),  # noqa: B008 (immutable)
    asked: int = 0,
    living: bool = False,
    parent: int | None = None,
) -> dict[str, Any]:
    """Return what ``process.json`` has as ``ended`` (see docs/recording.md).

    Args:
        status: as of wait(2); None: nobody knows it.
        time_ns: when the process was seen to have ended, ns UTC.
        goodbye: it closed its ring itself.
        words: what the process reported of its end.
        memory: whom the kernel killed for memory.
        asked: signal by which its parent had asked it to end; 0: none.
        living: it may still run.
        parent: pid of the process that started it, of a fork or a helper.
    """
    code = os.WEXITSTATUS(status) if status is not None and os.WIFEXITED(status) else None
    number = os.WTERMSIG(status) if status is not None and os.WIFSIGNALED(status) else None
    words = words or LastWords()
    survived = code == 0 or (living and words.goodbye_ns is None)
    exception = None if survived else words.newest
    kind, text = _by_status(code, number, goodbye, memory, living)
    if asked and code and kind == "failed":
        kind, text = "interrupted", f"{text}, after {_name(asked)}"
    if exception is not None and exception.kind == _CTRL_C:
        kind, text = "interrupted", f"{_CTRL_C} (Ctrl-C)"
    elif exception is not None:
        by_code = kind == "interrupted" and code is not None
        kind = "interrupted" if by_code else "failed"
        shortened = printable(exception.text)
        shortened = shortened if len(shortened) <= _MOST else f"{shortened[:_MOST]}…"
        where = f" ({printable(exception.where)})" if exception.where else ""
        # A launcher also ends ranks that have failed but take long to end.
        asked_too = number in _ASKED
        text = (
            f"{shortened}{where}" if status is None or asked_too else f"{shortened}{where}, {text}"
        )
    if memory.kills and number != signal.SIGKILL and kind in ("failed", "killed"):
        where = "its control group" if memory.in_group else "this machine"
        text += f"; the kernel killed {_count(memory.kills)} of {where} for memory meanwhile"
    reason = None
    if exception is not None:
        reason = "exception"
    elif number == signal.SIGKILL and memory.proven:
        reason = "out of memory"
    return {
        "kind": kind,
        "exit_code": code,
        "signal": None if number is None else _name(number),
        "reason": reason,
        "text": text,
        "time_ns": time_ns,
        # The first rank to fail may take long to end; the others fail after it.
        "failed_ns": exception.time_ns if exception is not None else words.goodbye_ns or time_ns,
        "parent_pid": parent,
    }


def sentence(pid: int, ended: Mapping[str, Any], *, goodbye: bool) -> str:
    """Return the text of the event that says how a process ended."""
    if ended["kind"] == "stopped":
        return f"process {pid} stopped recording"
    child = f", a child of process {ended['parent_pid']}," if ended["parent_pid"] else ""
    without = "" if goodbye else " without a goodbye"
    return f"process {pid}{child} ended{without}: {ended['text']}"


def _by_status(
    code: int | None, number: int | None, goodbye: bool, memory: Verdict, living: bool
) -> tuple[str, str]:
    if living:
        return "stopped", "it stopped recording"
    if code is not None:
        return _by_code(code)
    if number is not None:
        return _by_signal(number, goodbye, memory)
    return "unknown", "exit code unknown"


def _by_code(code: int) -> tuple[str, str]:
    if code == 0:
        return "finished", "exit code 0"
    if code - _SHELL in signal.valid_signals():
        kind = "interrupted" if code - _SHELL in _ASKED else "failed"
        return kind, f"exit code {code} ({_SHELL} + {_name(code - _SHELL)})"
    return "failed", f"exit code {code}"


def _by_signal(number: int, goodbye: bool, memory: Verdict) -> tuple[str, str]:
    name = _name(number)
    while_ = ", while it was exiting" if goodbye else ""
    if number in _ASKED:
        words = f" ({_WORDS[signal.SIGINT]})" if number == signal.SIGINT else ""
        return "interrupted", f"ended by {name}{words}{while_}"
    if number != signal.SIGKILL:
        words = f" ({_WORDS[signal.Signals(number)]})" if number in _WORDS else ""
        return "killed", f"killed by {name}{words}{while_}"
    if memory.proven:
        limit = "" if memory.limit is None else f" (cgroup limit {_size(memory.limit)})"
        return "killed", f"killed by the kernel: out of memory{limit}{while_}"
    if memory.kills:
        where = "its control group" if memory.in_group else "this machine"
        seen = f"which killed {_count(memory.kills)} of {where} meanwhile"
        return (
            "killed",
            f"killed by SIGKILL (kill -9, or the kernel's out-of-memory killer, {seen})",
        )
    return "killed", f"killed by SIGKILL (kill -9, or the kernel's out-of-memory killer){while_}"


def _count(kills: int) -> str:
    return "1 process" if kills == 1 else f"{kills} processes"


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal, which only has a number
        return f"signal {number}"


def _size(count: int) -> str:
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.3g} {unit}"
        value /= 1024
    return f"{value:.4g} GiB"
