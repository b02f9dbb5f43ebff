"""One line of the doctor's examination.

Tests: tests/cli/test_doctor_require.py.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

OK: Final = "ok"
ABSENT: Final = "absent"
DENIED: Final = "denied"
BROKEN: Final = "broken"


@dataclass(frozen=True, slots=True)
class Finding:
    """What was looked at, its state, what was found (or why not), and how to fix it."""

    what: str
    state: str
    found: str
    fix: str = ""
    #: The recorder (``HAIPROF_RECORDERS``) that it belongs to; empty: haiprof itself, or the job.
    recorder: str = ""
    #: Without it haiprof records nothing at all.
    core: bool = False

    @property
    def name(self) -> str:
        """What it is called where it is asked for: ``host cpu`` is ``cpu``."""
        return self.what.lower().removeprefix("host ").replace(" ", "_")


def failed(what: str, error: Exception, recorder: str = "", *, core: bool = False) -> Finding:
    """Return what is to be said of a check that raised: of a file, which and what is the matter."""
    if isinstance(error, OSError) and error.filename:
        found = f"{os.fsdecode(error.filename)}: {error.strerror}"
        if isinstance(error, PermissionError):
            fix = "let this user read it, or run haiprof as one who may"
            return Finding(what, DENIED, found, fix, recorder, core)
        return Finding(what, BROKEN, found, "see whether that is as it should be", recorder, core)
    return Finding(what, BROKEN, repr(error), "report this as a bug of haiprof", recorder, core)
