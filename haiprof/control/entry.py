"""What runs first and last of haiprof in a process that it was brought into."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

#: What is answered to who wants to record this process: that began, or another recording goes on.
BEGAN: Final = "ok"
RECORDED: Final = "recorded"
#: Bytes that are kept free for the answer.
ANSWER_BYTES: Final = 4096
#: How soon our thread gives way to the job's, s. Python's own 5 ms are what each operation of torch
#: may wait for, since each takes the interpreter's lock anew.
_SWITCH_INTERVAL: Final = 0.00002
#: How long it rests before it imports another module when it has worked for so long, s.
_REST: Final = 0.003
_WORK: Final = 0.001
#: What a rest takes where another thread keeps the lock for long, s. From such a one we take what
#: Python gives us: with a few us now and then we would never come to an end.
_KEPT: Final = 0.05


def begin(given: dict[str, Any], told: str, python: tuple[str, list[str]] | None) -> None:
    """Begin to record, on a thread of its own. Never raises.

    Args:
        given: options, as of ``haiprof.start``.
        told: the file in which whoever attached waits for ``BEGAN``, ``RECORDED`` or what is in the
            way. It goes when nobody waits any more: nothing is recorded then.
        python: of who brought haiprof here, as for ``haiprof.recorder.launch.brought_by``; None:
            this Python has its own.
    """
    try:
        with _gently():
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
    from haiprof import session

    if not Path(told).exists():  # importing took too long
        return ""
    with session.overheard() as lines:
        active, began = session.start_beside_imports(**given)
        if not active.recording and not active.warming_up and not began:
            active.open()
    if not active.recording and not active.warming_up:
        return lines[-1] if lines else "its stderr says why"
    if began:
        return BEGAN
    from haiprof.control import requests, server

    server.open_socket(requests.answer)
    return RECORDED


def _leave() -> None:
    from haiprof import session
    from haiprof.control import server

    session.stop()
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


@contextlib.contextmanager
def _gently() -> Iterator[None]:
    """Leave the interpreter to the job's threads most of the time: a step of theirs goes on."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_INTERVAL)
    ours = sys.getswitchinterval()

    def as_before() -> None:
        if sys.getswitchinterval() == ours:  # else the job has set one meanwhile
            sys.setswitchinterval(before)

    rests = _Rests(as_before)
    _resting.append(rests)
    sys.meta_path.insert(0, rests)
    try:
        yield
    finally:
        sys.meta_path.remove(rests)
        _resting.remove(rests)
        as_before()


class _Rests:
    """Stands first in ``sys.meta_path``, finds nothing, and takes its time for that."""

    def __init__(self, as_before: Callable[[], None]) -> None:
        """Rest at the imports of this thread; ``as_before`` is called when that takes too long."""
        self._thread = threading.get_ident()
        self._as_before = as_before
        self._next = 0.0

    def find_spec(self, name: str, *others: object) -> None:
        """Let others find it, after a rest."""
        now = time.monotonic()
        if threading.get_ident() != self._thread or now < self._next:
            return
        time.sleep(_REST)
        rested = time.monotonic()
        self._next = rested + _WORK
        if rested - now > _KEPT:
            self._next = math.inf
            self._as_before()

    def in_forked_child(self) -> None:
        """Undo in a child what the thread that rests, which is not there, cannot."""
        if threading.get_ident() == self._thread:
            return  # it is there: it has forked
        _resting.remove(self)
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(self)
        self._as_before()
        _forget_imports(self._thread)


#: Who rests just now.
_resting: Final[list[_Rests]] = []


def _forget_imports(thread: int) -> None:
    """Have what a thread was importing when it vanished imported anew, rather than waited for."""
    locks = getattr(sys.modules.get("_frozen_importlib"), "_module_locks", {})
    for name, lock in list(locks.items()):
        if getattr(lock(), "owner", None) != thread:
            continue
        del locks[name]
        about = getattr(sys.modules.get(name), "__spec__", None)
        if getattr(about, "_initializing", False):
            # With what it is a package of: anew it must get them as its attributes.
            for known in list(sys.modules):
                if known == name or known.startswith(f"{name}."):
                    del sys.modules[known]


def _after_fork() -> None:
    for rests in list(_resting):
        with contextlib.suppress(Exception):
            rests.in_forked_child()


os.register_at_fork(after_in_child=_after_fork)
