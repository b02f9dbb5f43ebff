"""Haiprof built for Pythons that do not run the tests, with environments of what it needs.

Both are kept in build/pythons.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fixtures import ROOT

BUILD = ROOT / "build" / "pythons"
#: What the recorder needs, which runs in the job's Python where that has haiprof.
TO_RECORD = ("numpy>=1.26", "pyarrow>=17.0")
#: What is needed to look at what was recorded, too.
TO_LOOK = ("isal>=1.7", "plotly>=6.0", "polars>=1.32", "rich>=13.7", "typer>=0.15")


def said(*command: str | Path, **keywords: Any) -> str:
    """Run a command to its successful end; what it printed."""
    done = subprocess.run(command, capture_output=True, text=True, **keywords)
    assert done.returncode == 0, done.stderr[-4000:] + done.stdout[-4000:]
    return done.stdout.strip()


@dataclass(frozen=True)
class Python:
    """A Python, bare, and an environment of it with all that haiprof needs.

    Attributes:
        bare: has nothing.
        equipped: has what haiprof needs, or its recorder alone, and haiprof where ``site`` is in
            PYTHONPATH.
        site: our package, built for it.
    """

    bare: Path
    equipped: Path
    site: Path

    @property
    def environment(self) -> dict[str, str]:
        """In which it finds haiprof."""
        return {**os.environ, "PYTHONPATH": str(self.site)}


def equipped(bare: Path, needed: tuple[str, ...]) -> Python:
    """Make an environment of a Python, unless it is there, and build haiprof for it.

    Skips the test where there can be none.
    """
    abi = said(bare, "-c", "import sys; print('%d.%d' % sys.version_info[:2], end=sys.abiflags)")
    environment = BUILD / f"environment-{abi}"
    if not (environment / "installed").exists():
        shutil.rmtree(environment, ignore_errors=True)
        words = "install --quiet --disable-pip-version-check --only-binary :all:"
        pip = (environment / "bin" / "pip", *words.split())
        for command in ((bare, "-m", "venv", environment), (*pip, *needed)):
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                pytest.skip(f"no environment for {bare}: {(done.stderr or done.stdout)[-300:]}")
        (environment / "installed").touch()
    python = environment / "bin" / "python"
    return Python(bare, python, built(python, BUILD / f"site-{abi}"))


def built(python: Path, site: Path) -> Path:
    """Build the extension module, unless one is newer than its sources.

    All but the bindings is the same for all Pythons and built once.
    """
    suffix = said(python, "-c", "import sysconfig; print(sysconfig.get_config_var('EXT_SUFFIX'))")
    module = BUILD / f"_core{suffix}"
    sources = [ROOT / "CMakeLists.txt", *(p for p in (ROOT / "src").rglob("*") if p.is_file())]
    changed = max(path.stat().st_mtime for path in sources)
    if not module.exists() or module.stat().st_mtime < changed:
        tools = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        said(
            "cmake", "-S", ROOT, "-B", BUILD, "-G", "Ninja", "-U", "*PYTHON*", "-U", "*Python*",
            f"-DPython_EXECUTABLE={python}",
            f"-Dpybind11_DIR={said(sys.executable, '-m', 'pybind11', '--cmakedir')}",
            env=tools,
        )  # fmt: skip
        said("cmake", "--build", BUILD, "--target", "_core", env=tools)
    shutil.rmtree(site, ignore_errors=True)
    ignored = shutil.ignore_patterns("__pycache__", "*.so")
    shutil.copytree(ROOT / "haiprof", site / "haiprof", ignore=ignored)
    shutil.copy(module, site / "haiprof")
    for beside in ("haiprof.pth", "haiprof.start", "_haiprof_boot.py"):
        shutil.copy(ROOT / beside, site)
    return site
