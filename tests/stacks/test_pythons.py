"""Stacks of other Pythons: every frame and line, as the process itself says it; and of workers."""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path

import pytest
from built_pythons import TO_RECORD, said
from built_pythons import equipped as with_haiprof
from fixtures import ROOT
from interpreters import interpreters
from sampled import SPAWNS, WORKS
from stack_jobs import check, still_job

pytestmark = pytest.mark.pythons
PYTHONS = pytest.mark.parametrize("bare", interpreters().values(), ids=lambda path: path.name)

#: Samples a job that starts a worker, with the sampler of this very Python, until it has run; says
#: what it saw of processes that are not the job's own: the innermost function, file and line.
SAMPLES = """
import os, subprocess, sys, time
from sampled import Sampled
with subprocess.Popen(
    [sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE, text=True, start_new_session=True
) as job:
    try:
        sampled = Sampled(job.pid, bytes.fromhex(job.stdout.readline()), 50.0)
        found, until = set(), time.monotonic() + 60
        while not any(name == "works" for name, _, _ in found) and time.monotonic() < until:
            time.sleep(0.1)
            innermost = {s.stack for s in sampled.take() if s.process != job.pid}
            places = map(sampled.nodes.__getitem__, innermost)
            found = {(name, file, line) for _, name, file, line, *_ in places}
        sampled.end()
    finally:
        os.killpg(job.pid, 9)  # its workers, too, which have our output
print(sorted(found))
"""


def is_known(bare: Path) -> bool:
    """Whether haiprof knows where this Python keeps its frames."""
    version = said(bare, "-c", "import sys; print(sys.version_info >= (3, 15), sys.abiflags)")
    return not re.search("True|t", version)


@PYTHONS
def test_every_frame_and_line_is_what_the_process_says(bare: Path) -> None:
    python = with_haiprof(bare, TO_RECORD)
    if not is_known(bare):
        program = "from haiprof import _core; _core.python_layout()"
        with pytest.raises(AssertionError, match="RuntimeError"):
            said(python.equipped, "-c", program, env=python.environment)
        return
    with still_job(python.equipped, python.environment) as job:
        check(job)


@PYTHONS
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_are_sampled(bare: Path, method: str, tmp_path: Path) -> None:
    if not is_known(bare):
        pytest.skip("no stacks of this Python")
    python = with_haiprof(bare, TO_RECORD)
    (tmp_path / "spawned_work.py").write_text(WORKS)
    layout = "from haiprof import _core; print(_core.python_layout().hex(), flush=True)\n"
    job = layout + SPAWNS.format(folder=str(tmp_path), method=method)
    beside = os.pathsep.join((str(python.site), str(ROOT / "tests")))
    environment = {**python.environment, "PYTHONPATH": beside}
    found = ast.literal_eval(said(python.equipped, "-c", SAMPLES, job, env=environment))
    (place,) = [place for place in found if place[0] == "works"]
    (line,) = [n for n, text in enumerate(WORKS.splitlines(), 1) if "sleep" in text]
    assert place == ("works", str(tmp_path / "spawned_work.py"), line)
