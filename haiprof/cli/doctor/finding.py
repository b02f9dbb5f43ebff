"""One line of the doctor's examination.

Tests: tests/cli/test_doctor_require.py.
"""

from __future__ import annotations

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
    mend: str = ""
    #: The recorder (``HAIPROF_RECORDERS``) that it belongs to; empty: haiprof itself, or the job.
    recorder: str = ""
    #: Without it haiprof records nothing at all.
    core: bool = False

    @property
    def name(self) -> str:
        """What it is called where it is asked for: ``host cpu`` is ``cpu``."""
        return self.what.lower().removeprefix("host ").replace(" ", "_")
