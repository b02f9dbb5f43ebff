"""A thread of ours gives way to the job's while it imports and attaches in the middle of a job."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

from haiprof.common.threads import sleep

#: How soon our thread gives way to the job's, s. Python's own 5 ms are what each operation of torch
#: may wait for, since each takes the interpreter's lock anew.
_SWITCH_INTERVAL: Final = 0.00002
#: How long it rests when it has worked for so long, s.
_REST: Final = 0.003
_WORK: Final = 0.002
#: What a rest takes, or waiting between two, where another thread keeps the lock for long, s. From
#: such a one we take what Python gives us: with a few us now and then we would come to no end.
_KEPT: Final = 0.05
#: Of the CPU's time that we had meanwhile it is many times as much, unless we wait for a CPU.
_KEPT_TIMES: Final = 20


@contextlib.contextmanager
def gently() -> Iterator[None]:
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


def rest() -> None:
    """Rest, where this thread is to be gentle and has worked for a while."""
    for rests in tuple(_resting):
        rests.rest()


class _Rests:
    """Stands first in ``sys.meta_path``, finds nothing, and takes its time for that."""

    def __init__(self, as_before: Callable[[], None]) -> None:
        """Let this thread rest; ``as_before`` is called when that takes too long."""
        self._thread = threading.get_ident()
        self._as_before = as_before
        self._next = 0.0
        self._looked, self._worked = time.monotonic(), time.thread_time()

    def find_spec(self, name: str, *others: object) -> None:
        """Let others find it, after a rest."""
        self.rest()

    def rest(self) -> None:
        """Rest, if it is this thread's time to."""
        if threading.get_ident() != self._thread:
            return
        now = time.monotonic()
        if now < self._next:
            return
        passed, worked = now - self._looked, time.thread_time() - self._worked
        rested = now
        kept = passed > max(_KEPT, _KEPT_TIMES * worked)
        if not kept:
            sleep(_REST)
            rested = time.monotonic()
            kept = rested - now > _KEPT
        # On a machine that is busy a rest takes longer, and so may work.
        self._next = rested + max(_WORK, (rested - now) / 2)
        self._looked, self._worked = rested, time.thread_time()
        if kept:
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
