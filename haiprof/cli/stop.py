"""``haiprof stop``: ends the recording of a job, not the job.

Tests: tests/cli/test_ps.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from haiprof.cli.asking import ask_job


def stop_job(target: str, timeout: float, hosts: Sequence[str] = ()) -> int:
    """End the recording in every rank; print a line for each, and return the exit code."""
    if hosts:
        from haiprof.cli.hosts.ask import ask_on

        return ask_on(hosts, target, "stop", timeout, _line)
    return ask_job(target, "stop", timeout, _line)


def _line(result: dict[str, Any]) -> str:
    if not result["stopped"]:
        return "nothing was recorded"
    if not result["closed"]:
        return f"stopped; its recorder is still closing the files in {result['run_dir']}"
    return f"stopped; its files are in {result['run_dir']}"
