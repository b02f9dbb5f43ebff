"""What :mod:`haiprof.cli.hosts.stacks` starts on each host: looks at the processes there.

Tests: tests/cli/hosts/test_stacks.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from haiprof.cli.hosts.fan_out_end import serve
from haiprof.control.stacks import chosen, look_at


def main() -> NoReturn:
    """Look at the processes of the task's target."""
    serve(_obey)


def _obey(task: dict[str, Any], control: int, send: Callable[..., None]) -> None:
    those = look_at(chosen(task["target"]), native=task["native"])
    send(looked=[process.as_json() for process in those])
