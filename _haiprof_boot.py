"""Runs at interpreter start: arms haiprof when HAIPROF_ENABLED asks for it, else does nothing.

Python 3.14 and older come here from ``haiprof.pth``, later ones from ``haiprof.start`` (PEP 829).
It may not fail: an interpreter that does not start is worse than a job that is not profiled.
"""

import os
import sys


def arm() -> None:
    """Wait for torch to be imported, then hook it; without torch nothing ever happens."""
    if os.environ.get("HAIPROF_ENABLED", "0").strip().lower() in ("", "0", "false", "no", "off"):
        return
    if hasattr(sys, "_haiprof_armed"):  # both files may be honoured by one interpreter
        return
    sys._haiprof_armed = True  # type: ignore[attr-defined]
    try:
        from haiprof.capture.session import arm as arm_session

        arm_session()
    except BaseException as error:
        if sys.stderr is not None:
            print(
                f"haiprof: not recording: {error!r}. The job continues unprofiled", file=sys.stderr
            )
