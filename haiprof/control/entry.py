"""The first thing of haiprof that runs in a process it was brought into: begins the recording."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

#: How soon our thread gives way to the job's, s. Python's own 5 ms are what each operation of torch
#: may wait for, since each takes the interpreter's lock anew.
_SWITCH_INTERVAL: Final = 0.00002
#: How long it rests before it imports another module when it has worked for so long, s.
_REST: Final = 0.003
_WORK: Final = 0.001


def begin(given: dict[str, Any], told: str) -> None:
    """Begin to record, on a thread of its own. Never raises.

    Args:
        given: options, as of ``haiprof.start``.
        told: the file in which whoever attached waits for ``ok`` or for what is in the way.
    """
    try:
        with _gently():
            line = _begun(given)
    except BaseException as error:
        line = f"{type(error).__name__}: {error}"
    with contextlib.suppress(OSError), Path(told).open("w", encoding="utf-8") as file:
        file.write(line)


def _begun(given: dict[str, Any]) -> str:
    from haiprof import session

    active = session.active()
    if active is not None and (active.recording or active.warming_up):
        return "ok"
    with session.overheard() as lines:
        active = session.start_beside_imports(**given)
    if active.recording or active.warming_up:
        return "ok"
    return lines[-1] if lines else "its stderr says why"


@contextlib.contextmanager
def _gently() -> Iterator[None]:
    """Leave the interpreter to the job's threads most of the time: a step of theirs goes on."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_INTERVAL)
    ours = sys.getswitchinterval()
    rests = _Rests()
    sys.meta_path.insert(0, rests)
    try:
        yield
    finally:
        sys.meta_path.remove(rests)
        if sys.getswitchinterval() == ours:  # else the job has set one meanwhile
            sys.setswitchinterval(before)


class _Rests:
    """Stands first in ``sys.meta_path``, finds nothing, and takes its time for that."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._rested = time.monotonic()

    def find_spec(self, name: str, *others: object) -> None:
        """Let others find it, after a rest."""
        if threading.get_ident() == self._thread and time.monotonic() - self._rested > _WORK:
            time.sleep(_REST)
            self._rested = time.monotonic()
