"""Makes a thread of ours yield to the job's while it imports and attaches in a running job."""

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

#: How soon our thread yields to the job's, s. Python's own 5 ms are what each operation of torch
#: may wait for, since each takes the interpreter's lock anew.
_SWITCH_INTERVAL: Final = 0.00002
#: How long it rests when it has worked for so long, s.
_REST: Final = 0.003
_WORK: Final = 0.002
#: A rest, or the wait between two, takes this long if another thread keeps the lock for long, s.
#: Beside such a thread we take what Python gives us: a few us now and then would never suffice.
_KEPT: Final = 0.05
#: It is this many times the CPU time that we had meanwhile, unless we wait for a CPU.
_KEPT_TIMES: Final = 20


@contextlib.contextmanager
def yielding() -> Iterator[None]:
    """Leave the interpreter to the job's threads most of the time, so that they make progress."""
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
    """Rest, if this thread is to yield and has worked for a while."""
    for rests in tuple(_resting):
        rests.rest()


class _Rests:
    """Stands first in ``sys.meta_path``, finds nothing, and rests at each search."""

    def __init__(self, as_before: Callable[[], None]) -> None:
        """Let this thread rest; ``as_before`` is called when that takes too long."""
        self._thread = threading.get_ident()
        self._as_before = as_before
        self._next = 0.0
        self._looked, self._worked = time.monotonic(), time.thread_time()

    def find_spec(self, name: str, *others: object) -> None:
        """Rest, and leave the search to others."""
        self.rest()

    def rest(self) -> None:
        """Rest, if it is time to and this is its thread."""
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
        # On a busy machine a rest takes longer, and so may the work between rests.
        self._next = rested + max(_WORK, (rested - now) / 2)
        self._looked, self._worked = rested, time.thread_time()
        if kept:
            self._next = math.inf
            self._as_before()

    def in_forked_child(self) -> None:
        """Undo it in a child in place of the resting thread, which is not there."""
        if threading.get_ident() == self._thread:
            return  # this thread forked: it is there
        _resting.remove(self)
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(self)
        self._as_before()
        _forget_imports(self._thread)


#: The active ones.
_resting: Final[list[_Rests]] = []


def _forget_imports(thread: int) -> None:
    """Forget imports of a thread that is gone, so that they start anew instead of blocking."""
    locks = getattr(sys.modules.get("_frozen_importlib"), "_module_locks", {})
    for name, lock in list(locks.items()):
        if getattr(lock(), "owner", None) != thread:
            continue
        del locks[name]
        about = getattr(sys.modules.get(name), "__spec__", None)
        if getattr(about, "_initializing", False):
            # With its submodules: the new package must get them as attributes.
            for known in list(sys.modules):
                if known == name or known.startswith(f"{name}."):
                    del sys.modules[known]


def _after_fork() -> None:
    for rests in list(_resting):
        with contextlib.suppress(Exception):
            rests.in_forked_child()


os.register_at_fork(after_in_child=_after_fork)
