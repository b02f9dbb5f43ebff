"""Which Python runs a script: the one that its user's shell would take, if haiprof is there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import Final, NamedTuple

from haiprof.options import ENABLED_VARIABLE

_NAMES: Final = ("python", "python3")
#: What the other Python is asked: whether it would record, without recording that.
_QUESTION: Final = "import haiprof._core"
#: How long it may take to answer, s.
_SECONDS: Final = 20.0


class Interpreter(NamedTuple):
    """A Python, and a line that says why, where that is no matter of course; else empty."""

    path: str
    why: str = ""


def for_script(script: str) -> Interpreter:
    """Return the Python that runs a script: the first on PATH, else the one of haiprof.

    Args:
        script: what the line calls it.
    """
    first = next(filter(None, map(shutil.which, _NAMES)), None)
    if first is None or _same(first, sys.executable):
        return Interpreter(sys.executable)
    if _has_haiprof(first):
        return Interpreter(first, f"{script} is run by {first}, the first Python on PATH")
    return Interpreter(
        sys.executable,
        f"{script} is run by {sys.executable}: {first}, the first Python on PATH, has no haiprof "
        f"({first} -m pip install haiprof)",
    )


def _same(one: str, other: str) -> bool:
    # By their folders: the Python of a virtual environment is a link to that of the system.
    return os.path.realpath(os.path.dirname(one)) == os.path.realpath(os.path.dirname(other))  # noqa: PTH120


def _has_haiprof(python: str) -> bool:
    try:
        asked = subprocess.run(
            [python, "-c", _QUESTION],
            env={**os.environ, ENABLED_VARIABLE: "0"},
            cwd="/",  # a folder named haiprof here is no installation
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return asked.returncode == 0
