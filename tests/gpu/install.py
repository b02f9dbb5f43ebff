"""haiprof for the parts: from a wheel that was built before, or else built from the sources."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

#: A build that takes longer, s, is given up.
PATIENCE = 300.0
_QUIET = ("--quiet", "--upgrade", "--no-index", "--no-deps", "--disable-pip-version-check")


class Installed(NamedTuple):
    """Where haiprof came from, or why there is none; either in words."""

    source: str
    reason: str = ""


def install(site: Path, sources: Path, wheel: str) -> Installed:
    """Install haiprof into a folder, and what lies beside the wheel and is missing here.

    A wheel that cannot be installed or imported is not the end: the sources are built then.
    """
    _made_a_site(site)
    why = "HAIPROF_WHEEL names no wheel"
    if wheel:
        why, beside = _from_wheel(site, Path(wheel))
        if not why:
            return Installed(f"wheel {Path(wheel).name}, {beside}")
    failed = _pip(site, "--no-build-isolation", str(sources)) or _imported(site)
    if failed:
        return Installed("none", f"haiprof is not installed: {why}; it cannot be built: {failed}")
    return Installed(f"built from the sources, because {why}")


def _made_a_site(folder: Path) -> None:
    """Have Pythons whose PYTHONPATH has the folder read its ``.pth`` files, as in site-packages."""
    text = f"import site\nsite.addsitedir({str(folder)!r})\n"
    (folder / "sitecustomize.py").write_text(text)


def _from_wheel(site: Path, wheel: Path) -> tuple[str, str]:
    """Install it; return why that does not work, or nothing, and what came from beside it."""
    if not wheel.is_file():
        return f"there is no {wheel}", ""
    beside = [path for path in sorted(wheel.parent.glob("*.whl"))
              if path != wheel and _missing(path)]  # fmt: skip
    said = "and beside it " + (", ".join(path.name for path in beside) or "nothing that is missing")
    if beside and (failed := _pip(site, *map(str, beside))):
        said = f"without what lies beside it: {failed}"
    return _pip(site, str(wheel)) or _imported(site), said


def _missing(wheel: Path) -> bool:
    try:
        importlib.metadata.version(wheel.name.partition("-")[0])
    except importlib.metadata.PackageNotFoundError:
        return True
    return False


def _pip(site: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "pip", "install", *_QUIET, "--target", str(site), *arguments]
    return _failed(command, dict(os.environ), site)


def _imported(site: Path) -> str:
    # Behind what the site has come the packages of this Python.
    environment = {**os.environ, "PYTHONPATH": str(site)}
    return _failed([sys.executable, "-c", "import haiprof._core"], environment, site)


def _failed(command: list[str], environment: dict[str, str], folder: Path) -> str:
    try:
        done = subprocess.run(
            command, env=environment, cwd=folder, capture_output=True, text=True,
            errors="replace", timeout=PATIENCE,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"pip took more than {PATIENCE:.0f} s"
    if done.returncode == 0:
        return ""
    said = [line for line in done.stderr.splitlines() if line.strip()]
    return " | ".join(said[-3:])[-600:] or f"exit code {done.returncode}"
