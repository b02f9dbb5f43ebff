"""The hosts that a command is started on: named, in a file, or SLURM's.

Tests: tests/cli/hosts/test_launch.py.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from haiprof.cli.arguments import UsageError

_HOSTS: Final = "HAIPROF_HOSTS"
_HOSTFILE: Final = "HAIPROF_HOSTFILE"
_NODE_LISTS: Final = ("SLURM_JOB_NODELIST", "SLURM_NODELIST")
_FIX: Final = (
    "name them: --hosts a,b,... or --hostfile FILE before the command, "
    f"{_HOSTS} or {_HOSTFILE}, or start it within an allocation of SLURM"
)
#: What MPICH writes behind a host, how many processes it takes; an address of IPv6 has more colons.
_SLOTS: Final = re.compile(r"^([^:]+):\d+$")
#: A host that begins with a dash would be an option of ssh.
_HOST: Final = re.compile(r"[A-Za-z0-9_\[][\w.:@%\[\]-]*")


def choose_hosts(nodes: int | None, hosts: str = "", hostfile: str = "") -> list[str]:
    """Return the first ``nodes`` of the known hosts, all of them for None.

    Args:
        nodes: how many.
        hosts: names with commas between, as ``--hosts`` gave them.
        hostfile: a file of them, as ``--hostfile`` gave it. With neither, their variables count,
            and then the allocation of SLURM that this process is in.

    Raises:
        UsageError: there are too few, a name is invalid, or the file cannot be read.
    """
    known = _known(hosts, hostfile)
    for host in known:
        if not _HOST.fullmatch(host):
            raise UsageError(f"{host!r} is not a valid host name")
    wanted = len(known) if nodes is None else nodes
    if not known or wanted > len(known):
        are = f"{len(known)} {'is' if len(known) == 1 else 'are'} known"
        raise UsageError(f"{wanted or 'no'} hosts were requested and {are}; {_FIX}")
    return known[:wanted]


def hosts_named(nodes: str, hostfile: str = "") -> list[str]:
    """Return the hosts that ``--nodes N`` or ``--nodes A,B,...`` mean, and ``--hostfile FILE``.

    Args:
        nodes: a number: the first N known ones, as for ``haiprof run``; or names.
        hostfile: a file of them.

    Returns:
        Empty where neither is given.

    Raises:
        UsageError: see :func:`choose_hosts`.
    """
    if nodes.isdecimal():
        return choose_hosts(int(nodes[:9]), "", hostfile)
    return choose_hosts(None, nodes, hostfile) if nodes or hostfile else []


def how_to_collect(hosts: Sequence[str], run_dir: Path) -> str:
    """Return the command that brings a run together where each host has a log folder of its own.

    Args:
        hosts: which.
        run_dir: where the run is on each, and is to be here.
    """
    logs = str(run_dir.parent)
    names = ",".join(dict.fromkeys(hosts))
    words = ["haiprof", "collect", logs, "--hosts", names, "--run", run_dir.name, "--into", logs]
    return shlex.join(words)


def _known(hosts: str, hostfile: str) -> list[str]:
    if hosts:
        return _listed(hosts)
    if hostfile:
        return _in_file(hostfile)
    if os.environ.get(_HOSTS):
        return _listed(os.environ[_HOSTS])
    if os.environ.get(_HOSTFILE):
        return _in_file(os.environ[_HOSTFILE])
    return _of_slurm()


def _listed(text: str) -> list[str]:
    return [host.strip() for host in text.split(",") if host.strip()]


def _in_file(path: str) -> list[str]:
    """Return the hosts of a file as MPI has them: a host a line, then anything about it."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except ValueError:
        raise UsageError(f"{path}: is not text") from None
    words = [line.partition("#")[0].split() for line in lines]
    return [_SLOTS.sub(r"\1", line[0]) for line in words if line]


def _of_slurm() -> list[str]:
    listed = next((os.environ[name] for name in _NODE_LISTS if os.environ.get(name)), None)
    if listed is None:
        return []
    try:
        done = subprocess.run(
            ["scontrol", "show", "hostnames", listed], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise UsageError(f"scontrol cannot list the hosts of {listed}: {error}; {_FIX}") from None
    return done.stdout.split()
