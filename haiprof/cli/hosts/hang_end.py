"""What :mod:`haiprof.cli.hosts.hang` starts on each host: looks at the ranks there.

Tests: tests/cli/hosts/test_hang.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from haiprof.cli.hosts.fan_out_end import serve
from haiprof.control.hang import look


def main() -> NoReturn:
    """Look at the ranks of the task's target."""
    serve(_obey)


def _obey(task: dict[str, Any], control: int, send: Callable[..., None]) -> None:
    send(looked=[rank.as_json() for rank in look(task["target"], task["least_s"])])
