"""Emulated hosts, on each of which a rank of a job runs.

A network, a pid, a mount and a host name's namespace stand for a machine; each has shared memory, a
job and, unless it is to be one, a log folder of its own. What stands for ssh enters them.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SSH = """#!/bin/sh
here=$(dirname "$0")
[ -e "$here/$1.pid" ] || { echo "ssh: no route to $1" >&2; exit 255; }
pass='echo $$ > "$0"; exec cat'
sh -c "$pass" "$here/$1.in" |
nsenter --target "$(cat "$here/$1.pid")" --uts --pid --mount --net -- sh -c "$2" |
sh -c "$pass" "$here/$1.out"
"""


class Cluster:
    """Two hosts, ``n1`` and ``n2``, and what runs on them."""

    def __init__(self, folder: Path, script: str) -> None:
        """Nothing runs yet.

        Args:
            folder: where the hosts' disks are, and the log folder, ``logs``.
            script: the name of what is run on each, in it.
        """
        self.folder = folder
        self.script = script
        self.jobs: dict[str, subprocess.Popen[str]] = {}

    def start_job(self, host: str, rank: int, own_disk: bool, *arguments: str) -> None:
        """Start the job on a host, which is there as long as that."""
        disk = self.folder / f"disk-{host}" if own_disk else self.folder / "logs"
        disk.mkdir(exist_ok=True)
        logs = self.folder / "logs"
        logs.mkdir(exist_ok=True)
        program = " ".join([sys.executable, self.script, *arguments])
        inside = (
            f"hostname {host}; mount --bind {disk} {logs}; mount -t tmpfs tmpfs /dev/shm; "
            f"RANK={rank} WORLD_SIZE=2 OMP_NUM_THREADS=1 {program} & "
            "echo up; wait $!"
        )
        words = ["unshare", "--uts", "--pid", "--mount", "--net", "--fork", "--kill-child"]
        job = subprocess.Popen(
            [*words, "--mount-proc", "sh", "-c", inside],
            stdout=subprocess.PIPE, text=True, cwd=self.folder,
        )  # fmt: skip
        self.jobs[host] = job
        assert job.stdout is not None
        if job.stdout.readline() != "up\n":
            pytest.skip("no namespaces here")
        first = subprocess.run(
            ["pgrep", "-P", str(job.pid)], capture_output=True, text=True, check=True
        )
        (self.folder / f"{host}.pid").write_text(first.stdout.strip())

    def wait_ready(self) -> None:
        """Wait until each has made some steps."""
        for job in self.jobs.values():
            assert job.stdout is not None
            assert job.stdout.readline() == "ready\n"

    def run_on(self, host: str, line: str) -> None:
        """Have a host's shell run a line."""
        subprocess.run([self.folder / "ssh", host, line], check=True, stdin=subprocess.DEVNULL)

    def lose(self, host: str) -> None:
        """Cut the last connection to a host."""
        os.kill(int((self.folder / f"{host}.in").read_text()), 9)
        # What runs on the host may have seen that already, and ended the other direction.
        with contextlib.suppress(ProcessLookupError):
            os.kill(int((self.folder / f"{host}.out").read_text()), 9)


@contextlib.contextmanager
def emulated(
    folder: Path, script: str, *arguments: str, own_disks: bool = True
) -> Iterator[Cluster]:
    """Run a script of ``folder`` on both; HAIPROF_SSH_COMMAND and the folder are ours meanwhile.

    The jobs must go on whatever is done, until there is a file END.
    """
    if os.getuid() != 0:
        pytest.skip("needs root for namespaces")
    (folder / "ssh").write_text(SSH)
    (folder / "ssh").chmod(0o755)
    cluster = Cluster(folder, script)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HAIPROF_SSH_COMMAND", str(folder / "ssh"))
        patch.chdir(folder)
        try:
            for rank, host in enumerate(("n1", "n2")):
                cluster.start_job(host, rank, own_disks, *arguments)
            cluster.wait_ready()
            yield cluster
            for job in cluster.jobs.values():
                assert job.poll() is None
            (folder / "END").touch()
            for job in cluster.jobs.values():
                assert job.wait(120) == 0
        finally:
            for job in cluster.jobs.values():
                job.kill()
                job.communicate()
