"""What of a job can be recorded: torch's phases, ``haiprof run``, kernels of GPUs.

Each check runs in its own interpreter: only trying shows, and a broken driver may kill it.

Tests: tests/cli/test_doctor.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from haiprof.cli.doctor.finding import ABSENT, BROKEN, DENIED, OK, Finding
from haiprof.options import ENABLED_VARIABLE

#: Without one of these hooks, steps or phases are missing.
_OF_STEPS: Final = frozenset({"modules", "compiled", "optimizer", "backward", "dataloader"})
_NEWER_NCCL: Final = "use a torch with a newer NCCL to record what its operations do on the network"
_MAY_READ_MEMORY: Final = (
    "let the container call process_vm_readv on its own processes (seccomp; Docker: --cap-add "
    "SYS_PTRACE); until then only what goes through libaio, io_uring and USRBIO is not counted"
)
#: How long an interpreter may take to import torch, s.
_PYTHON_SECONDS: Final = 180.0


def torch() -> Iterator[Finding]:
    """Attach to torch and say what works with it."""
    program = (
        "import json, os, torch\n"
        "from haiprof.capture import hooks\n"
        "hooks.install()\n"
        "print(json.dumps([torch.__version__, hooks.status()]), flush=True)\n"
        "os._exit(0)\n"  # to take down torch takes a third as long as to import it
    )
    code, said, error = ask_python(program, ENABLED_VARIABLE, "0")
    if code != 0:
        missing = "No module named 'torch'" in error
        yield Finding(
            "torch",
            ABSENT if missing else BROKEN,
            f"not installed for {sys.executable}" if missing else error,
            "run haiprof doctor with the Python of the job",
        )
        return
    version, hooks = json.loads(said.splitlines()[-1])
    yield Finding("torch", OK, str(version))
    yield from hook_findings(hooks)


def hook_findings(hooks: Mapping[str, object]) -> Iterator[Finding]:
    """Say of each hook whether it works, by what :func:`haiprof.capture.hooks.status` returned."""
    for name, how in hooks.items():
        what, found = f"hook {name}", str(how)
        if not found.startswith("off"):
            yield Finding(what, OK, found)
        elif name in _OF_STEPS:
            fix = "mark steps with haiprof.step() and phases with haiprof.range()"
            yield Finding(what, BROKEN, found, fix)
        elif "not permitted" in found:
            yield Finding(what, DENIED, found, _MAY_READ_MEMORY)
        elif name == "nccl":
            yield Finding(what, ABSENT, found, _NEWER_NCCL)
        else:
            yield Finding(what, BROKEN, found, "report this as a bug of haiprof")


def start_file() -> Iterator[Finding]:
    """Check that the environment starts haiprof in a job that does not import it."""
    program = "import sys; print(hasattr(sys, '_haiprof_armed'))"
    code, said, error = ask_python(program, ENABLED_VARIABLE, "1")
    if code == 0 and said.strip() == "True":
        yield Finding("start file", OK, f"{ENABLED_VARIABLE}=1 starts haiprof in this Python")
    else:
        yield Finding(
            "start file",
            ABSENT,
            f"{error or 'haiprof.pth is in no site folder'}, so haiprof run sees no steps",
            f"{sys.executable} -m pip install haiprof, or call haiprof.start() in the job",
        )


def ask_python(program: str, variable: str, value: str) -> tuple[int, str, str]:
    """Run ``program`` in a fresh interpreter; return its code, output and last line of errors."""
    # haiprof need not be installed to be asked about.
    paths = [str(Path(__file__).parents[3]), *filter(None, [os.environ.get("PYTHONPATH")])]
    answer = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, variable: value, "PYTHONPATH": os.pathsep.join(paths)},
        cwd="/",
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_PYTHON_SECONDS,
        check=False,
    )
    errors = answer.stderr.strip().splitlines()
    return answer.returncode, answer.stdout, errors[-1] if errors else ""


def gpu_kernels() -> Iterator[Finding]:
    """Ask CUPTI whether it can record kernels."""
    program = (
        "import json; from haiprof import _core; "
        "from haiprof.capture.hooks.cuda import libcupti_folders; "
        "print(json.dumps(_core.gpu_probe(':'.join(libcupti_folders()))))"
    )
    code, said, error = ask_python(program, ENABLED_VARIABLE, "0")
    if code != 0:
        yield Finding(
            "GPU kernels", BROKEN, f"asking CUPTI ended with {code}: {error}", "install it anew"
        )
        return
    found, fix, version = json.loads(said.splitlines()[-1])
    if version == 0:
        yield Finding("GPU kernels", ABSENT, found, fix)
    else:
        yield Finding("GPU kernels", OK, f"{found}, API version {version}", fix)
