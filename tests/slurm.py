"""A SLURM of its own for tests: a controller, and two nodes on this machine, ``n1`` and ``n2``.

A host name's, a pid and a mount namespace stand for a machine; each has shared memory of its own.
All it needs lies in one folder, and all of it ends with the ``with``.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from launched import free_port
from recording import wait_for

_PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scontrol", "unshare")
_CONFIGURATION = """
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthInfo=cred_expire=5,socket={folder}/munge
SlurmctldPort={ports[0]}
SlurmctldPidFile={folder}/controller.pid
StateSaveLocation={folder}/state
SlurmctldLogFile={folder}/controller.log
SlurmdPidFile={folder}/%n.pid
SlurmdSpoolDir={folder}/spool-%n
SlurmdLogFile={folder}/%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/builtin
SchedulerParameters=batch_sched_delay=0,sched_interval=2
KillWait=2
NodeName=n1 NodeAddr=127.0.0.1 Port={ports[1]} CPUs=8
NodeName=n2 NodeAddr=127.0.0.1 Port={ports[2]} CPUs=8
PartitionName=all Nodes=ALL Default=YES
"""
_NODE = """
hostname {name} && mount -t tmpfs tmpfs /dev/shm && mkdir -p "${{HAIPROF_SHM_DIR:-/dev/shm}}" &&
exec slurmd -D -N {name}
"""


@contextlib.contextmanager
def slurm(settings: str = "") -> Iterator[None]:
    """Run it, with more settings; its commands find it meanwhile. Skips the test without it."""
    # Jobs find the Python that runs the tests.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"], "/usr/sbin"])
    missing = [name for name in _PROGRAMS if shutil.which(name, path=path) is None]
    if missing:
        pytest.skip(f"SLURM is not installed: no {', '.join(missing)}")
    if os.getuid() != 0:
        pytest.skip("needs root for namespaces")
    folder = Path(tempfile.mkdtemp(prefix="haiprof-slurm-"))  # a short path: sockets lie in it
    folder.chmod(0o711)  # munged wants all to reach its own
    daemons: list[subprocess.Popen[bytes]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", path)
        patch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
        for name in list(os.environ):
            if name.startswith("SLURM") and name != "SLURM_CONF":
                patch.delenv(name)
        try:
            _configure(folder, settings)
            daemons.append(_start(folder, "munged", *_munge(folder)))
            wait_for((folder / "munge").exists, what="munged's socket")
            daemons.append(_start(folder, "slurmctld", "-D", "-c"))
            for name in ("n1", "n2"):
                apart = ["--uts", "--pid", "--mount", "--mount-proc", "--fork", "--kill-child"]
                daemons.append(
                    _start(folder, "unshare", *apart, "sh", "-c", _NODE.format(name=name))
                )
            wait_for(lambda: _idle(folder, daemons), what="idle nodes")
            yield
        finally:
            _end_jobs()
            for daemon in reversed(daemons):
                # What unshare has started takes its namespace with it, and unshare ends after it.
                subprocess.run(["pkill", "-KILL", "-P", str(daemon.pid)])
                if daemon.args[0] != "unshare":
                    daemon.kill()
                daemon.wait(10)
            shutil.rmtree(folder, ignore_errors=True)


def ask(*words: str) -> str:
    """Return what one of SLURM's commands prints."""
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def _configure(folder: Path, settings: str) -> None:
    for name in ("state", "spool-n1", "spool-n2"):
        (folder / name).mkdir()
    (folder / "key").touch(0o600)
    (folder / "key").write_bytes(secrets.token_bytes(64))
    user = pwd.getpwuid(os.getuid()).pw_name
    text = _CONFIGURATION.format(folder=folder, user=user, ports=_free_ports(3))
    (folder / "slurm.conf").write_text(text + settings)


def _free_ports(count: int) -> list[int]:
    found: set[int] = set()
    while len(found) < count:
        found.add(free_port())
    return sorted(found)


def _munge(folder: Path) -> list[str]:
    files = {"key-file": "key", "socket": "munge", "pid-file": "munge.pid"}
    files |= {"seed-file": "seed", "log-file": "munge.log"}
    return ["--foreground", *(f"--{option}={folder / name}" for option, name in files.items())]


def _start(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    with (folder / "daemons.log").open("ab") as log:
        return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def _idle(folder: Path, daemons: list[subprocess.Popen[bytes]]) -> bool:
    ended = [daemon for daemon in daemons if daemon.poll() is not None]
    if ended:
        pytest.skip(f"no SLURM here: {(folder / 'daemons.log').read_text()[-500:]}")
    done = subprocess.run(["sinfo", "-h", "-o", "%D %t"], capture_output=True, text=True)
    return done.stdout.split() == ["2", "idle"]


def _end_jobs() -> None:
    """Have no job left when its node goes."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        subprocess.run(["scancel", "-u", str(os.getuid())], capture_output=True, timeout=5)
        until = time.monotonic() + 5
        while time.monotonic() < until:
            left = subprocess.run(["squeue", "-h"], capture_output=True, timeout=5)
            if not left.stdout:
                return
            time.sleep(0.1)
