"""The tools that haiprof is held against: each in an environment of its own, run in a process of
its own.

    make_environment(PLUGIN)                       its Python, installed when it is first wanted
    drive(python, PLUGIN.driver, folder)           one run of it: times, memory, rows

    make_packages(MEGATRON)                        a folder for PYTHONPATH, beside our own torch

Both are kept in ``build/peers`` and made anew when the packages here change.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fixtures import ROOT

DRIVERS = Path(__file__).resolve().parent / "drivers"
ENVIRONMENTS = ROOT / "build" / "peers"
#: The Python for which the packages below were seen to give the numbers that are known.
PYTHON = "python3.11"
_PIP = ("install", "--quiet", "--disable-pip-version-check", "--retries", "1", "--timeout", "20")


class Unavailable(Exception):
    """A tool cannot be had here; ``str()`` of it is why."""


@dataclass(frozen=True)
class Peer:
    """A tool: what to install, and the driver that runs it, if one does.

    ``whole``: what its packages need is installed, too, where they lie in a folder. ``python``: the
    one that its packages are made for, where what is used of them runs on this one, too.
    """

    name: str
    packages: tuple[str, ...]
    driver: Path | None = None
    whole: bool = False
    python: str | None = None


PLUGIN = Peer(
    "torch-tb-profiler",
    ("torch-tb-profiler==0.4.3", "tensorboard==2.21.0", "pandas==3.1.1", "numpy==2.4.6"),
    DRIVERS / "drive_plugin.py",
)
HTA = Peer(
    "HolisticTraceAnalysis",
    ("HolisticTraceAnalysis==0.5.0", "pandas==2.3.3", "numpy==2.2.6"),
    DRIVERS / "drive_hta.py",
)
MEMRAY = Peer("memray", ("memray==1.20.0",))
MEGATRON = Peer("megatron-core", ("megatron-core==0.16.1", "packaging==26.3"))
MEGATRON_LM = Peer("megatron-lm", ("megatron-core==0.19.2", "packaging==26.3"), python="3.12")
DEEPSPEED = Peer(
    "deepspeed",
    (
        "deepspeed==0.19.8",
        *("annotated-types==0.8.0", "einops==0.8.2", "hjson==3.1.0", "msgpack==1.2.4"),
        *("packaging==26.3", "psutil==7.2.2", "py-cpuinfo==9.0.0", "pydantic==2.14.3"),
        *("pydantic-core==2.50.4", "tqdm==4.70.1", "typing-inspection==0.4.5"),
    ),
)
TRACKERS = Peer(
    "trackers", ("tensorboard==2.21.0", "wandb==0.31.0", "mlflow-skinny==3.17.2"), whole=True
)
COMET = Peer("comet", ("comet-ml==3.58.8",), whole=True)
FRAMEWORKS = Peer(
    "frameworks",
    (
        *("transformers==5.24.0", "tokenizers==0.23.3", "safetensors==0.8.0"),
        *("huggingface_hub==2.4.0", "regex==2026.11.19", "tqdm==4.70.1"),
        *("lightning==2.6.6", "pytorch-lightning==2.6.6", "lightning-utilities==0.15.3"),
        *("torchmetrics==1.9.0", "accelerate==1.15.0"),
    ),
)
RAY = Peer("ray", ("ray[train]==2.60.0",), whole=True)
TORCHTITAN = Peer(
    "torchtitan",
    (
        *("torchtitan==0.3.0", "spmd_types==0.2.3", "torch_checkpointing==0.1.1"),
        *("torchdata==0.11.0", "tyro==1.0.17", "docstring_parser==0.18.0", "typeguard==4.6.1"),
        *("datasets==4.7.0", "dill==0.4.0", "multiprocess==0.70.18", "xxhash==4.1.0"),
        *("fsspec==2026.2.0", "huggingface_hub==1.33.0", "tokenizers==0.23.3", "tqdm==4.70.1"),
        *("pandas==3.1.1", "python-dateutil==4.0.0", "tzdata==2026.6", "safetensors==0.8.0"),
        *("tensorboard==2.21.0", "absl-py==2.5.1", "grpcio==1.85.3", "Markdown==3.11.3"),
        *("Werkzeug==3.1.9", "einops==0.8.2", "aiohttp==3.14.5", "multidict==7.2.1"),
        *("yarl==1.25.1", "aiohappyeyeballs==2.7.1", "aiosignal==1.4.0", "frozenlist==1.8.0"),
        "propcache==0.5.4",
    ),
)
HAIPROF = DRIVERS / "drive_haiprof.py"


@dataclass(frozen=True)
class Run:
    """One run of a tool: ``work_s`` after its imports until all views were there.

    ``opened_s`` is until the first view, ``cpu_s`` of all its processes. ``peak_bytes`` is resident
    memory, imports included: of one process exactly, of several the most that they held together at
    one of the looks at them, each page counted once.
    """

    work_s: float
    opened_s: float
    cpu_s: float
    peak_bytes: int
    rows: dict[str, int]
    tables: dict[str, Any] = field(default_factory=dict)


def make_environment(peer: Peer) -> Path:
    """Return the Python of the environment in which ``peer`` is installed.

    Raises:
        Unavailable: there is no such Python, or the packages cannot be had.
    """
    folder = ENVIRONMENTS / peer.name
    python, stamp = folder / "bin" / "python", folder / "installed"
    wanted = "\n".join((PYTHON, *peer.packages))
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    made_by = shutil.which(PYTHON)
    if made_by is None:
        raise Unavailable(f"{peer.name} needs {PYTHON}: not on PATH")
    shutil.rmtree(folder, ignore_errors=True)
    _install(peer, made_by, "-m", "venv", folder)
    _install(peer, python, "-m", "pip", *_PIP, *peer.packages)
    stamp.write_text(wanted)
    return python


def make_packages(peer: Peer) -> Path:
    """Return the folder in which ``peer`` lies for this Python, which has torch already.

    Raises:
        Unavailable: the packages cannot be had.
    """
    folder = ENVIRONMENTS / f"{peer.name}-{sys.version_info.major}.{sys.version_info.minor}"
    stamp, wanted = folder / "installed", "\n".join(peer.packages)
    if not (stamp.exists() and stamp.read_text() == wanted):
        shutil.rmtree(folder, ignore_errors=True)
        alone = () if peer.whole else ("--no-deps", "--no-build-isolation")
        made_for = ("--python-version", peer.python, "--only-binary", ":all:")
        options = (*_PIP, *alone, *(made_for if peer.python else ()), "--target", folder)
        _install(peer, sys.executable, "-m", "pip", *options, *peer.packages)
        stamp.write_text(wanted)
    return folder


def _install(peer: Peer, *command: str | Path) -> None:
    done = subprocess.run(
        command, capture_output=True, text=True, env=_environment(Path(command[0]))
    )
    if done.returncode:
        said = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        wrong = [line for line in said if line.startswith("ERROR")] or said or ["no reason"]
        raise Unavailable(f"{peer.name} cannot be installed: {wrong[-1]}")


def drive(python: Path, driver: Path, *arguments: object, timeout: float = 3600) -> Run:
    """Run a driver in a fresh process and return what it measured.

    Raises:
        AssertionError: it failed; the text is the end of what it said.
    """
    with tempfile.TemporaryDirectory() as folder:
        report, output = Path(folder) / "report", Path(folder) / "output"
        command = [os.fspath(python), driver, report, *map(str, arguments)]
        with output.open("wb") as file:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, cwd=folder,
                env=_environment(python), start_new_session=True,
            )  # fmt: skip
            watched = _Watched(process.pid)
            try:
                status = process.wait(timeout)
            finally:
                with contextlib.suppress(ProcessLookupError):  # nothing of it is left
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                together = watched.stop()
        said = output.read_text("utf-8", "replace")[-4000:]
        assert status == 0, f"{driver.name} {arguments} ended with {status}:\n{said}"
        result = json.loads(report.read_text())
    result["peak_bytes"] = max(result["peak_bytes"], together)
    return Run(**result)


def _environment(python: Path) -> dict[str, str]:
    """What is in the environment, but options of haiprof, and packages of another Python."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("HAIPROF_")}
    if os.fspath(python) != sys.executable:
        kept.pop("PYTHONPATH", None)
    return kept


class _Watched:
    """Memory that a process and all beneath it hold together, looked at ten times a second.

    What a forked process shares with others is split among them. A process alone is not looked at:
    it knows its own peak, and each look would stop it for a moment.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._most = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def stop(self) -> int:
        """Stop looking; return the most bytes seen, 0 if there was never more than one process."""
        self._over.set()
        self._thread.join()
        return self._most

    def _watch(self) -> None:
        while not self._over.wait(0.1):
            family = list(_family(self._pid))
            if len(family) > 1:
                self._most = max(self._most, sum(map(_own_bytes, family)))


def _family(pid: int) -> Iterator[int]:
    yield pid
    for task in _listed(Path(f"/proc/{pid}/task")):
        for child in _text(task / "children").split():
            yield from _family(int(child))


def _own_bytes(pid: int) -> int:
    found = _text(Path(f"/proc/{pid}/smaps_rollup")).partition("Pss:")[2].split()
    return int(found[0]) * 1024 if found else 0


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:  # it has ended
        return []


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
