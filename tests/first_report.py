"""From a wheel and nothing else to the first report, as a user gets there. Torch is there before.

Tests: tests/wheels/test_first_report.py.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from fixtures import ROOT

#: What the job imports.
OF_THE_JOB = ("torch", "scikit-learn")


class Took(NamedTuple):
    """Seconds."""

    environment: float
    install: float
    job: float


def environment(folder: Path, python: str | Path) -> Path:
    """Make a clean environment; return its Python."""
    _run(folder.parent, python, "-m", "venv", folder)
    return folder / "bin" / "python"


def install(python: Path, what: str) -> None:
    """Install a wheel with what it depends on, none of it from sources."""
    pip = (python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet")
    _run(python.parent, *pip, "--only-binary=:all:", what)


def first_report(wheel: Path, folder: Path) -> tuple[Path, Took]:
    """Install it beside a torch, run the example of the README; return the report, and how long."""
    began = time.monotonic()
    python = environment(folder / "environment", sys.executable)
    made = time.monotonic()
    lend(python, folder / "lent")
    lent = time.monotonic()
    install(python, f"{wheel}[report]")
    installed = time.monotonic()
    words = ("haiprof", "run", "--log-dir", "logs", "--report", "--", python)
    _run(folder, *words, ROOT / "examples" / "train_digits.py", path=python.parent)
    ended = time.monotonic()
    [report] = folder.glob("logs/*/*.html")
    return report, Took(made - began, installed - lent, ended - installed)


def lend(python: Path, folder: Path) -> None:
    """Have an environment import what the job needs from that of the tests, and nothing else."""
    folder.mkdir()
    for name in needed(OF_THE_JOB):
        distribution = importlib.metadata.distribution(name)
        tops = {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}
        for top in tops:
            if not (folder / top).exists():
                (folder / top).symlink_to(Path(str(distribution.locate_file(top))))
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = subprocess.check_output([python, "-c", code], text=True).strip()
    Path(site, "lent.pth").write_text(f"{folder}\n")


def needed(names: tuple[str, ...]) -> Iterator[str]:
    """These distributions and what they require, as far as it is here."""
    seen: set[str] = set()
    left = list(names)
    while left:
        name = left.pop()
        if name in seen:
            continue
        seen.add(name)
        try:
            requires = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue  # of another system
        yield name
        left += [re.split(r"[^\w.-]", each)[0] for each in requires if "extra ==" not in each]


def _run(folder: Path, *words: str | Path, path: Path | None = None) -> None:
    environment = {**os.environ, "PATH": f"{path}:{os.environ['PATH']}"} if path else None
    done = subprocess.run(
        list(map(str, words)), cwd=folder, capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
