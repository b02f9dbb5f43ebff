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


@functools.cache
def interpreters() -> dict[str, Path]:
    """The Pythons by name (``python3.12``): of HAIPROF_TEST_PYTHONS, of ~/.pyenv, on PATH."""
    found = {}
    for name in NAMES:
        named = [Path(path) for path in _NAMED.split(":") if Path(path).name == name]
        kept = sorted(Path.home().glob(f".pyenv/versions/{name[6:]}.*/bin/{name}"))
        on_path = shutil.which(name)
        for path in (*named, *kept, *([Path(on_path)] if on_path else [])):
            if _runs(path):
                found[name] = path
                break
    return found


def _runs(python: Path) -> bool:
    """Whether it is more than a shim for one that is not there."""
    return subprocess.run([python, "-c", ""], capture_output=True).returncode == 0
