"""Runs the haiprof command as a user would: as a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

HAIPROF = [sys.executable, "-m", "haiprof.cli.main"]


def haiprof(*words: str | Path, **keywords: Any) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; its output is text."""
    keywords.setdefault("stdin", None if "input" in keywords else subprocess.DEVNULL)
    if "input" in keywords:
        del keywords["stdin"]
    return subprocess.run(
        [*HAIPROF, *map(str, words)], capture_output=True, text=True, timeout=120, **keywords
    )


def start_haiprof(*words: str | Path, **keywords: Any) -> subprocess.Popen[str]:
    """Start a command in a process group of its own; its output is text."""
    keywords.setdefault("stdout", subprocess.PIPE)
    keywords.setdefault("stderr", subprocess.PIPE)
    keywords.setdefault("start_new_session", True)
    return subprocess.Popen([*HAIPROF, *map(str, words)], text=True, **keywords)


def only_line(done: subprocess.CompletedProcess[str]) -> str:
    """Return the one line on stderr, which is ours."""
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("haiprof: ")
    return lines[0]


def the_run(log_dir: Path) -> Path:
    """Return the only run in a log directory."""
    (run,) = (p.parent for p in log_dir.glob("*/run.json"))
    return run
