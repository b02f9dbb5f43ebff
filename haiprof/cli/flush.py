"""``haiprof flush``: writes everything a job has recorded so far to disk.

Tests: tests/cli/test_ps.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from haiprof.cli.asking import ask_job


def flush_job(target: str, timeout: float, hosts: Sequence[str] = ()) -> int:
    """Have every rank flush; print a line for each, and return the exit code."""
    if hosts:
        from haiprof.cli.hosts.ask import ask_on

        return ask_on(hosts, target, "flush", timeout, _line)
    return ask_job(target, "flush", timeout, _line)


def _line(result: dict[str, Any]) -> str:
    return f"everything recorded so far is in {result['run_dir']}"
