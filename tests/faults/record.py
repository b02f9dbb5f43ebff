"""Records a case: its program under ``haiprof run``, and what is true of it beside the run.

A case has a folder: ``logs/run`` is the run, ``truth.json`` what is true of it, ``work`` what the
program wrote.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from faults import conditions
from faults.cases import Case
from faults.truth import truth

PROGRAMS = Path(__file__).resolve().parent / "programs"
#: How long a run may take, s; a machine that does other things as well is slow.
PATIENCE = 600
#: What a file has that is read past the page cache.
DATA_MB = 128


def reason_against(case: Case) -> str | None:
    """Return why a case cannot be recorded here, if so."""
    for condition in case.conditions:
        if reason := conditions.missing(condition):
            return reason
    needed = {
        "with_trainer": "transformers",
        "with_lightning": "lightning",
        "accelerated": "accelerate",
    }
    module = needed.get(case.style)
    if module and importlib.util.find_spec(module) is None:
        return f"{module} is not installed"
    return None


def _data(keep: Path) -> Path:
    """Return a large file, made the first time."""
    path = keep / "data"
    if not path.exists():
        partial = keep / f"data.{os.getpid()}"
        with partial.open("wb") as file:
            for _ in range(DATA_MB):
                file.write(os.urandom(2**20))
            file.flush()
            os.fsync(file.fileno())
        partial.rename(path)
    return path


def settings_of(case: Case, keep: Path, work: Path) -> dict[str, Any]:
    """Return the settings of the program, with paths in place of names."""
    tasks = []
    for task in case.job.get("tasks", ()):
        more = dict(task.get("more", {}))
        if more.get("file") == "data":
            more["file"] = str(_data(keep))
        elif "file" in more:
            more["file"] = str(work / more["file"])  # an absolute one stays as it is
        tasks.append({**task, "more": more})
    return {**case.job, "tasks": tasks, "notes": str(work / "notes"), "folder": str(work)}


def command(case: Case) -> list[str]:
    """Return the words that start the program."""
    program = str(PROGRAMS / f"{case.style}.py")
    if case.world == 1:
        return [sys.executable, program]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    words = [*launcher, f"--nproc-per-node={case.world}", program]
    if "again" in case.job.get("extras", {}):
        return ["sh", "-c", '"$@" && "$@"', "sh", *words]
    return words


def hear_interrupts() -> None:
    """Not to ignore Ctrl-C, as what is started in the background does."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def record(case: Case, keep: Path) -> dict[str, Any]:
    """Make a run; return what is true of it, which is written last."""
    folder = keep / case.name
    shutil.rmtree(folder, ignore_errors=True)
    work = folder / "work"
    work.mkdir(parents=True)
    around = conditions.Surroundings(work)
    begun = time.monotonic()
    with contextlib.ExitStack() as stack:
        for condition in case.conditions:
            stack.enter_context(conditions.CONDITIONS[condition["what"]](condition, around))
        environment = {
            **os.environ, "OMP_NUM_THREADS": "1", **around.environment,
            "JOB": json.dumps(settings_of(case, keep, work)),
        }  # fmt: skip
        ours = [sys.executable, "-m", "haiprof.cli.main", "run", "--run", "run", *around.options]
        words = [*around.words, *ours, "--log-dir", str(folder / "logs"), "--", *command(case)]
        with (folder / "output.txt").open("wb") as output:
            process = subprocess.Popen(
                words, env=environment, stdout=output, stderr=output, cwd=work,
                stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=hear_interrupts,
            )  # fmt: skip
            around.started.set_result(process.pid)
            try:
                code = process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                code = -signal.SIGKILL
            finally:
                # Only of one that has not ended: a recorder may still write what is left.
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
    found = truth(case, work, around.measured, code)
    found["wall_s"] = round(time.monotonic() - begun, 1)
    for path in work.glob("state-*"):
        path.unlink()
    temporary = folder / "truth.part"
    temporary.write_text(json.dumps(found, indent=1), "utf-8")
    temporary.rename(folder / "truth.json")
    return found
