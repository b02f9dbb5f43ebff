"""Small training jobs with a deep trace, and what they leave on disk."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import textwrap
from pathlib import Path
from typing import Any

from recording import python, read_table, wait_recorded

#: A job that is armed as by haiprof.pth, with one training step as a function.
JOB = """
    import os, sys, threading, time
    import _haiprof_boot
    _haiprof_boot.arm()
    import haiprof, torch
    from torch import nn
    from haiprof.capture import trace as deep
    from haiprof.capture.session import recording
    from haiprof.capture.trace import files

    # A busy machine takes its time to start the recorder.
    files._FOLDER_SECONDS = recording._STOP_SECONDS = 60

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.randn(8, 16)

    def train(steps=1):
        for _ in range(steps):
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()

    # Not until the file is there: the thread that writes it gives way to work.
    def until_traced(work):
        until = time.monotonic() + 60
        while time.monotonic() < until:
            work()
            trace = deep.current()
            if trace is not None and trace.state not in ("waiting", "recording"):
                break
"""


class Left:
    """What a job left: its file (None when there is none), and its events of kind "trace"."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = sorted(folder.glob("*.pt.trace.json.gz"))
        self.text = gzip.decompress(self.files[0].read_bytes()).decode() if self.files else ""
        self.trace: dict[str, Any] = json.loads(self.text) if self.files else {}
        self.table = sorted(read_table(folder, "events").to_pylist(), key=lambda row: row["time"])
        self.rows = [
            (row, json.loads(row["attributes"])) for row in self.table if row["kind"] == "trace"
        ]

    def events(self, category: str) -> list[dict[str, Any]]:
        return [e for e in self.trace["traceEvents"] if e.get("cat") == category]

    def steps(self) -> list[dict[str, Any]]:
        """The steps as tools find them, by their numbers."""
        found = [e for e in self.trace["traceEvents"] if e["name"].startswith("ProfilerStep#")]
        return sorted(found, key=lambda e: int(e["name"].partition("#")[2]))

    def numbers(self) -> list[int]:
        return [int(e["name"].partition("#")[2]) for e in self.steps()]

    def states(self) -> list[str]:
        return [attributes["state"] for _, attributes in self.rows]

    def end(self) -> dict[str, Any]:
        """The attributes and text of the last row."""
        assert len(self.rows) >= 1
        attributes: dict[str, Any] = self.rows[-1][1] | {"text": self.rows[-1][0]["text"]}
        return attributes


def environment(log_dir: Path, **options: object) -> dict[str, str]:
    """The environment in which a job is recorded, with these options."""
    given = {"enabled": 1, "log_dir": log_dir, "run": "run", **options}
    return {**os.environ, **{f"HAIPROF_{name.upper()}": str(v) for name, v in given.items()}}


def start_job(
    program: str, log_dir: Path, *, ranks: dict[str, str] | None = None, **options: object
) -> subprocess.Popen[str]:
    """Start a job; ``program`` follows JOB."""
    variables = environment(log_dir, **options) | (ranks or {})
    return python(textwrap.dedent(JOB) + textwrap.dedent(program), env=variables, warm=True)


def run_job(
    program: str, shm: Path, log_dir: Path, *, code: int = 0, **options: Any
) -> tuple[Left, str]:
    """Run a job of one process to its end; return what it left and what it printed."""
    process = start_job(program, log_dir, **options)
    out, err = process.communicate(timeout=300)
    assert process.returncode == code, err
    wait_recorded(shm)
    assert not list(log_dir.rglob(".*")), "something unfinished was left behind"
    (folder,) = log_dir.glob("run/*#*")
    return Left(folder), out
