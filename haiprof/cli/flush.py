"""``haiprof flush``: writes everything a job has recorded so far to disk.

Tests: tests/cli/test_ps.py.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from haiprof.cli.asking import ask_job
from haiprof.cli.process.progress import seconds_passing

_TURN_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Burst:
    """Stacks that are sampled more often before the flush: times a second, and for how long, s."""

    hz: float
    seconds: float


def flush_job(
    target: str, timeout: float, hosts: Sequence[str] = (), burst: Burst | None = None
) -> int:
    """Have every rank flush; print a line for each, and return the exit code."""

    def asked(request: str, line: Any, arguments: Mapping[str, Any] | None = None) -> int:
        if hosts:
            from haiprof.cli.hosts.ask import ask_on

            return ask_on(hosts, target, request, timeout, line, arguments)
        return ask_job(target, request, timeout, line, arguments)

    if burst is not None:

        def sampling(result: dict[str, Any]) -> str:
            return f"stacks of {result['run']} at {burst.hz:g} Hz for {burst.seconds:g} s"

        code = asked("stacks", sampling, {"hz": burst.hz, "seconds": burst.seconds})
        if code:
            return code
        with seconds_passing("sampling stacks", burst.seconds) as bar:
            begun = time.monotonic()
            while (passed := time.monotonic() - begun) < burst.seconds:
                bar(passed)
                time.sleep(min(_TURN_SECONDS, burst.seconds - passed))
    return asked("flush", _line)


def _line(result: dict[str, Any]) -> str:
    return f"everything recorded so far is in {result['run_dir']}"
