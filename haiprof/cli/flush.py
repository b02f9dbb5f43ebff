"""``haiprof flush``: brings to disk what was recorded of a job so far.

Tests: tests/cli/test_ps.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from haiprof.cli.asking import ask_job


def flush_job(target: str, timeout: float, hosts: Sequence[str] = ()) -> int:
    """Have every rank do so; print a line for each, and return the exit code."""
    if hosts:
        from haiprof.cli.hosts.ask import ask_on

        return ask_on(hosts, target, "flush", timeout, _told)
    return ask_job(target, "flush", timeout, _told)


def _told(result: dict[str, Any]) -> str:
    return f"everything up to now is in {result['run_dir']}"
