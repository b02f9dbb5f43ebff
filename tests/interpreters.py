"""Pythons that are here, beside the one that runs the tests."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from pathlib import Path

#: Paths that end in python3.N, with colons between. Taken out of the environment: to a job it would
#: be an option that nobody knows.
_NAMED = os.environ.pop("HAIPROF_TEST_PYTHONS", "")
NAMES = tuple(f"python3.{minor}" for minor in range(10, 16))
#: Those without the global interpreter lock, as CPython calls their programs, and distributions.
FREE_THREADED = tuple(
    f"python3.{minor}{ending}" for minor in range(13, 16) for ending in ("t", "-nogil")
)


@functools.cache
def interpreters() -> dict[str, Path]:
    """The Pythons by name (``python3.12``): of HAIPROF_TEST_PYTHONS, of ~/.pyenv, on PATH."""
    return _here(NAMES, without_lock=False)


@functools.cache
def free_threaded() -> dict[str, Path]:
    """Those without the lock by name (``python3.13t``), from the same places."""
    return _here(FREE_THREADED, without_lock=True)


def _here(names: tuple[str, ...], without_lock: bool) -> dict[str, Path]:
    found = {}
    for name in names:
        named = [Path(path) for path in _NAMED.split(":") if Path(path).name == name]
        kept = sorted(Path.home().glob(f".pyenv/versions/{name[6:10]}.*/bin/{name}"))
        on_path = shutil.which(name)
        for path in (*named, *kept, *([Path(on_path)] if on_path else [])):
            if _is_without_lock(path) is without_lock:
                found[name] = path
                break
    return found


def _is_without_lock(python: Path) -> bool | None:
    """None: it is no more than a shim for one that is not there.

    Its name is not enough: where CPython is installed without the lock, python3.13 is python3.13t.
    """
    asked = subprocess.run([python, "-c", "import sys; print(sys.abiflags)"], capture_output=True)
    return b"t" in asked.stdout if asked.returncode == 0 else None
