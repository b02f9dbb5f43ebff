"""Jobs in containers made of namespaces: processes, files and shared memory of their own."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from recording import wait_for

from haiprof.control.container_folder import acting_as_user_of

#: Makes a root of its own below $1, with the Python whose prefix is $2, the packages that lie in $3
#: but for those named in $4, the volume $5 and shared memory of a container; then runs the rest of
#: its arguments.
ENTER = r"""
set -e
root=$1 prefix=$2 packages=$3 without=$4 volume=$5
shift 5
mount --make-rprivate /
mount -t tmpfs none "$root"
cd "$root"
mkdir -p usr proc dev/shm tmp opt/python opt/all opt/site old
for name in bin sbin lib lib64; do
    if [ -L /$name ]; then ln -s "$(readlink /$name)" $name
    elif [ -d /$name ]; then mkdir $name; mount --rbind /$name $name; fi
done
mount --rbind /usr usr
mount --bind "$prefix" opt/python
for own in opt/python/lib/python3*/site-packages; do
    if [ -d $own ]; then mount -t tmpfs none $own; fi
done
if [ -n "$packages" ]; then
    mount --bind "$packages" opt/all
    for path in opt/all/*; do
        name=${path##*/}
        case " $without " in *" ${name%%[-.]*} "*) ;; *) ln -s /opt/all/$name opt/site/$name;; esac
    done
fi
for name in null zero urandom; do touch dev/$name; mount --bind /dev/$name dev/$name; done
mount -t tmpfs -o size=64m none dev/shm
if [ -n "$volume" ]; then mkdir -p ".$volume"; mount --bind "$volume" ".$volume"; fi
chmod 1777 tmp
pivot_root . old
cd /
mount -t proc proc /proc
umount -l /old
export LD_LIBRARY_PATH=/opt/python/lib HAIPROF_SHM_DIR=/dev/shm PYTHONPATH=/opt/site
exec "$@"
"""
#: What is ours, or comes with us.
OURS = "haiprof haiprof_boot pyarrow polars numpy pytest"
_NAMESPACES = ["unshare", "--pid", "--mount", "--fork", "--kill-child"]


#: The same by a user whom the container knows as root; root of the machine is nobody in it.
USER = 12345
_OF_USER = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", *_NAMESPACES]
_OF_USER += ["--user", "--map-root-user"]


def needs_namespaces(prefix: list[str]) -> None:
    """Skip where none can be made."""
    if os.geteuid() != 0 or not shutil.which("unshare") or not shutil.which("pivot_root"):
        pytest.skip("needs root, unshare and pivot_root")
    if subprocess.run([*prefix, "--mount-proc", "true"], capture_output=True).returncode:
        pytest.skip("no namespaces may be made here")


class Container:
    """One, and the Python job in it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        """Wait until the job is ready."""
        self.process = process
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", process.communicate()
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        #: The job, as it is numbered here, and those that it started.
        self.pid = int(children.read_text().split()[0])
        self.files = Path(f"/proc/{self.pid}/root")
        self.stderr = ""

    def children(self) -> list[int]:
        """Return the pids of what the job started, as they are numbered here."""
        text = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text()
        return [int(word) for word in text.split()]

    def finish(self, end: str = "END") -> str:
        """Have the job end, as it must be able to whatever was done to it; return its output."""
        with acting_as_user_of(self.pid):
            (self.files / end).touch()
        out, self.stderr = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, self.stderr
        return out

    def kill(self) -> None:
        """End all that runs in it."""
        os.kill(self.pid, 9)
        wait_for(lambda: not Path(f"/proc/{self.pid}").exists())


@contextlib.contextmanager
def container(
    folder: Path,
    program: str,
    *,
    prefix: str = sys.base_prefix,
    packages: str = "",
    without: str = OURS,
    volume: str = "",
    before: str = "",
    users: bool = False,
) -> Iterator[Container]:
    """Run a program in a container.

    Args:
        folder: where its root may be put.
        program: says ``ready``, and ends when there is a file ``/END``.
        prefix: of its Python.
        packages: a folder of packages that it has, too; empty: it has none.
        without: those that it has not.
        volume: a folder that it has at the same path.
        before: what its shell does first, beginning in its root.
        users: it has users of its own.
    """
    root = folder / "root"
    root.mkdir(exist_ok=True)
    version = sorted((Path(prefix) / "bin").glob("python3.[0-9]*[0-9]"))[0].name
    enter = ["sh", "-c", ENTER, "sh", str(root), prefix, packages, without, volume]
    shell = ["sh", "-ec", f'{before}\nexec "$@"', "sh"]
    python = [f"/opt/python/bin/{version}", "-u", "-c", textwrap.dedent(program)]
    with _entered([*enter, *shell, *python], _OF_USER if users else _NAMESPACES) as container:
        yield container


@contextlib.contextmanager
def processes_only(program: str) -> Iterator[Container]:
    """Run a program in a container whose files are ours, but for shared memory."""
    before = (
        "mount --make-rprivate /; mount -t proc proc /proc; "
        "mount -t tmpfs -o size=64m none /dev/shm; export HAIPROF_SHM_DIR=/dev/shm"
    )
    shell = ["sh", "-ec", f'{before}\nexec "$@"', "sh"]
    with _entered(
        [*shell, sys.executable, "-u", "-c", textwrap.dedent(program)], _NAMESPACES
    ) as container:
        yield container


@contextlib.contextmanager
def _entered(command: list[str], prefix: list[str]) -> Iterator[Container]:
    needs_namespaces(prefix)
    process = subprocess.Popen(
        [*prefix, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd="/",
    )
    try:
        yield Container(process)
    finally:
        process.kill()
        process.communicate()
