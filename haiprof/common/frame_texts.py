"""Frames of Python stacks as texts.

Tests: tests/views/run/test_stacks.py.
"""

from __future__ import annotations

import re
from typing import Final

#: What the frames of a folded stack stand between.
SEPARATOR: Final = ";"
#: The file that haiprof's own threads in a job begin in.
OUR_THREADS: Final = "/haiprof/common/threads.py"
_PACKAGES: Final = re.compile(r"^.*/(?:site|dist)-packages/|^.*/lib/python3\.\d+t?/")


def short_file(file: str) -> str:
    """Return a file's path without the folder in which its package, or Python itself, lies."""
    return _PACKAGES.sub("", file)


def frame_text(function: str, file: str, line: int | None) -> str:
    """Return a frame as ``function (file:line)``; a line that is 0 or None is not known."""
    text = f"{function} ({short_file(file)}{f':{line}' if line else ''})" if file else function
    return text.replace(SEPARATOR, ",").replace("\n", " ")
