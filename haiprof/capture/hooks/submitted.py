"""Bytes that are read and written through libaio, io_uring and 3FS's USRBIO.

Tests: tests/io/test_submitted.py.
"""

from __future__ import annotations

from haiprof import _core


class SubmittedBytes:
    """What /proc does not count: requests that are submitted, not read() and write()."""

    name = "io"

    def attach(self) -> str:
        """Replace the functions that submit by ours; return how.

        Raises:
            OSError: the system does not let us.
        """
        refused = _core.count_submitted()
        if refused:
            raise OSError(refused)
        return "on: import slots"

    def detach(self) -> None:
        """Restore them."""
        _core.leave_submitted()
