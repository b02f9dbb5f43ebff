"""Stacks of other Pythons: every frame and line, as the process itself says it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from built_pythons import TO_RECORD, said
from built_pythons import equipped as with_haiprof
from interpreters import interpreters
from stack_jobs import check, still_job

pytestmark = pytest.mark.pythons


@pytest.mark.parametrize("bare", interpreters().values(), ids=lambda path: path.name)
def test_every_frame_and_line_is_what_the_process_says(bare: Path) -> None:
    python = with_haiprof(bare, TO_RECORD)
    version = said(bare, "-c", "import sys; print(sys.version_info >= (3, 15), sys.abiflags)")
    if re.search("True|t", version):
        program = "from haiprof import _core; _core.python_layout()"
        with pytest.raises(AssertionError, match="RuntimeError"):
            said(python.equipped, "-c", program, env=python.environment)
        return
    with still_job(python.equipped, python.environment) as job:
        check(job)
