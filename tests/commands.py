"""Runs the haiprof command as a user would: as a process of its own.

A command of the analysis whose start is not what is tested begins with its imports done.
"""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import warm_programs

HAIPROF = [sys.executable, "-m", "haiprof.cli.main"]
#: A command that goes on until the file END is in its folder.
UNTIL_END = ("sh", "-c", "until [ -e END ]; do sleep 0.1; done")

_OF_ANALYSIS: Final = ("report", "export", "import", "diagnose", "compare", "sql", "runs")


def haiprof(*words: str | Path, **keywords: Any) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; its output is text."""
    if str(words[0] if words else "") in _OF_ANALYSIS and keywords.keys() <= {"cwd", "env"}:
        program = warm_programs.start(
            "from haiprof.cli.main import main; main()",
            *map(str, words),
            kind="analysis",
            **keywords,
        )
        out, err = program.communicate(timeout=300)
        return subprocess.CompletedProcess(words, program.wait(), out, err)
    keywords.setdefault("stdin", None if "input" in keywords else subprocess.DEVNULL)
    if "input" in keywords:
        del keywords["stdin"]
    keywords.setdefault("timeout", 300)
    return subprocess.run([*HAIPROF, *map(str, words)], capture_output=True, text=True, **keywords)


def haiprof_on_terminal(*words: str | Path, **keywords: Any) -> tuple[int, str, str]:
    """Run a command whose stderr is a terminal; return its code, stdout, and what one would see."""
    ours, its = pty.openpty()
    process = subprocess.Popen(
        [*HAIPROF, *map(str, words)], text=True, stdout=subprocess.PIPE, stderr=its, **keywords
    )
    os.close(its)
    seen = b""
    with contextlib.suppress(OSError):  # how a terminal ends that nobody writes to any more
        while piece := os.read(ours, 1 << 16):
            seen += piece
    os.close(ours)
    assert process.stdout is not None
    with process.stdout:
        printed = process.stdout.read()
    return process.wait(300), printed, seen.decode()


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
