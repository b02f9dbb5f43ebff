"""What runs first and last of haiprof in a process that it was brought into."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any


def begin(given: dict[str, Any], told: str) -> None:
    """Begin to record, on a thread of its own. Never raises.

    Args:
        given: options, as of ``haiprof.start``.
        told: the file in which whoever attached waits for ``ok`` or for what is in the way.
    """
    try:
        from haiprof import session

        active = session.active()
        if active is not None and (active.recording or active.warming_up):
            line = "ok"
        else:
            with session.overheard() as lines:
                active = session.start_beside_imports(**given)
            begun = active.recording or active.warming_up
            line = "ok" if begun else (lines[-1] if lines else "its stderr says why")
    except BaseException as error:
        line = f"{type(error).__name__}: {error}"
    with contextlib.suppress(OSError), Path(told).open("w", encoding="utf-8") as file:
        file.write(line)


def end(told: str) -> None:
    """End the recording and leave, where the socket cannot be asked to. Never raises.

    Args:
        told: the file in which whoever attached waits for ``ok`` or for what is in the way.
    """
    try:
        from haiprof import session
        from haiprof.control import server

        session.stop()
        server.close_socket()
        line = "ok"
    except BaseException as error:
        line = f"{type(error).__name__}: {error}"
    with contextlib.suppress(OSError), Path(told).open("w", encoding="utf-8") as file:
        file.write(line)
