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
#: What stands for Python's own files among the names of packages.
PYTHON: Final = "python"
IMPORTLIB: Final = "importlib"
#: How the qualified names of methods of dataclasses begin.
_GENERATED: Final = ("__create_fn__.", "__dataclass_builder__.")
_PACKAGES: Final = re.compile(r"^.*/(?:site|dist)-packages/|^.*/lib/python3\.\d+t?/")


def short_file(file: str) -> str:
    """Return a file's path without the folder in which its package, or Python itself, lies."""
    return _PACKAGES.sub("", file)


def in_package(function: str, file: str) -> str | None:
    """Return the package that a frame is of, ``python`` for Python's own; None: of the job itself.

    The machinery of imports is ``importlib``. A file without a folder, as ``<string>``, is the
    job's, but for those frozen into Python, and methods that it generates for dataclasses.
    """
    if file == "<string>" and function.startswith(_GENERATED):
        return PYTHON
    if file.startswith("<frozen"):
        return IMPORTLIB if file.startswith("<frozen importlib") else PYTHON
    found = _PACKAGES.match(file)
    if found is None:
        return None
    if not found.group().endswith("-packages/"):
        return PYTHON
    return file[found.end() :].partition("/")[0].removesuffix(".py")


def frame_text(function: str, file: str, line: int | None) -> str:
    """Return a frame as ``function (file:line)``; a line that is 0 or None is not known."""
    text = f"{function} ({short_file(file)}{f':{line}' if line else ''})" if file else function
    return text.replace(SEPARATOR, ",").replace("\n", " ")
